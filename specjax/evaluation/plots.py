"""Plots of a benchmark. Needs matplotlib, the extra ``plots``."""

import pathlib
from collections.abc import Sequence
from typing import Any

from matplotlib import figure, ticker

from specjax.evaluation import table

_DOTS_PER_INCH = 150
_LEGEND_ROW = 0.25  # inches


def draw(
    rows: Sequence[dict[str, Any]],
    lines: Sequence[table.Line],
    folder: pathlib.Path,
) -> list[pathlib.Path]:
    """Draws speedup and tau by category, and acceptance by depth.

    Args:
      rows: of the benchmark.
      lines: their summary.
      folder: where the files go.

    Returns:
      The files written.
    """
    drawn = [
        ("speedup.png", _bars(lines, "speedup", "decode time of none / drafter's")),
        ("tau.png", _bars(lines, "tau", "new tokens a target call")),
        ("acceptance.png", _acceptance(rows)),
    ]
    for name, picture in drawn:
        picture.savefig(folder / name, dpi=_DOTS_PER_INCH)
    return [folder / name for name, _ in drawn]


def _bars(lines: Sequence[table.Line], field: str, label: str) -> figure.Figure:
    """Grouped bars of one number, a group a category, a bar a drafter."""
    categories = list(dict.fromkeys(line.category for line in lines))
    drafters = [d for d in dict.fromkeys(line.drafter for line in lines) if d != "none"]
    values = {(line.category, line.drafter): getattr(line, field) for line in lines}
    picture, axes = _canvas(width=2.0 + 0.9 * len(categories))
    thick = 0.8 / max(len(drafters), 1)
    for index, drafter in enumerate(drafters):
        heights = [values.get((category, drafter)) or 0.0 for category in categories]
        at = [place + (index + 0.5) * thick - 0.4 for place in range(len(categories))]
        axes.bar(at, heights, width=thick, label=drafter)
    axes.axhline(1.0, color="black", linewidth=0.8, linestyle="--", label="none")
    axes.set_xticks(
        range(len(categories)), categories, rotation=30, ha="right", parse_math=False
    )
    axes.set_ylabel(label)
    _legend(picture)
    return picture


def _acceptance(rows: Sequence[dict[str, Any]]) -> figure.Figure:
    """Share of target calls that kept at least so many drafts, a line a drafter."""
    picture, axes = _canvas(width=6.0)
    for drafter in dict.fromkeys(row["drafter"] for row in rows):
        mine = [row for row in rows if row["drafter"] == drafter]
        depths = max(len(row["accepted_per_depth"]) for row in mine)
        calls = sum(row["target_calls"] for row in mine)
        if not depths or not calls:
            continue
        totals = [0] * depths
        for row in mine:
            for depth, count in enumerate(row["accepted_per_depth"]):
                totals[depth] += count
        shares = [total / calls for total in totals]
        axes.plot(range(1, depths + 1), shares, marker="o", label=drafter)
    axes.set_xlabel("drafts kept, at least")
    axes.set_ylabel("share of target calls")
    axes.set_ylim(0.0, 1.0)
    axes.xaxis.set_major_locator(ticker.MaxNLocator(integer=True))
    if axes.lines:
        _legend(picture)
    return picture


def _legend(picture: figure.Figure) -> None:
    """Above the axes, which keep their size: inside it would lie on what they show."""
    made = picture.legend(
        loc="outside upper center", ncols=2, fontsize="small", frameon=False
    )
    for text in made.get_texts():
        text.set_parse_math(False)
    rows = -(-len(made.get_texts()) // 2)
    picture.set_figheight(picture.get_figheight() + _LEGEND_ROW * rows)


def _canvas(width: float):
    picture = figure.Figure(figsize=(max(width, 5.0), 4.0), layout="constrained")
    axes = picture.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    return picture, axes
