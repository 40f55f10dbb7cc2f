"""A folder to look at, from a file of results: Markdown, JSON and plots."""

import dataclasses
import importlib.util
import json
import os
import pathlib
from collections.abc import Sequence
from typing import Any

from specjax.evaluation import drafter_costs, table


def write(
    rows: Sequence[dict[str, Any]],
    folder: str | os.PathLike[str],
    *,
    with_plots: bool = True,
) -> list[pathlib.Path]:
    """Writes ``report.md``, ``report.json`` and the plots.

    Args:
      rows: of ``bench.run`` or ``rows.read``.
      folder: made if there is none.
      with_plots: whether to draw, which needs matplotlib.

    Returns:
      The files written.

    Raises:
      ValueError: there are no rows, or matplotlib is wanted and missing.
    """
    if not rows:
        raise ValueError("results hold no rows; run `specjax bench` first")
    if with_plots and importlib.util.find_spec("matplotlib") is None:
        raise ValueError(
            "plots need matplotlib; install specjax[plots] or pass --no-plots"
        )
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    lines = table.summarise(rows)
    different = [_short(row) for row in rows if not row["identical"]]
    settings = rows[0].get("settings", {})
    written = [folder / "report.md", folder / "report.json"]
    plots: list[pathlib.Path] = []
    if with_plots:
        from specjax.evaluation import plots as plots_lib  # matplotlib is an extra

        plots = plots_lib.draw(rows, lines, folder)
    costs = drafter_costs.summarise(rows)
    names = [plot.name for plot in plots]
    markdown = _markdown(settings, lines, costs, different, names)
    written[0].write_text(markdown, encoding="utf-8")
    summary = {
        "settings": settings,
        "table": [dataclasses.asdict(line) for line in lines],
        "costs": [dataclasses.asdict(cost) for cost in costs],
        "different": different,
    }
    written[1].write_text(f"{json.dumps(summary, indent=2)}\n", encoding="utf-8")
    return written + plots


def _short(row: dict[str, Any]) -> dict[str, Any]:
    names = ("question_id", "turn", "drafter", "first_difference")
    return {
        **{name: row.get(name) for name in names},
        "margin_at_difference": row.get("margin_at_difference"),
    }


def _markdown(settings, lines, costs, different, plots: Sequence[str]) -> str:
    parts = ["# Benchmark", table.to_markdown(lines)]
    parts.append(
        "tau: new tokens a target call. speedup: total decode time of `none` over the "
        "drafter's. identical: rows with the very tokens of `none`."
    )
    if costs:
        parts.append("## What the drafters themselves cost, at batch 1")
        parts.append(drafter_costs.to_markdown(costs))
    if different:
        listed = [
            f"- question {row['question_id']}, turn {row['turn']}, `{row['drafter']}`: "
            f"token {row['first_difference']}, margin {_number(row)}"
            for row in different
        ]
        parts.append("## Outputs that differ from those of `none`")
        parts.append("\n".join(listed))
    parts += [f"![{name.removesuffix('.png')}]({name})" for name in plots]
    parts.append("## Settings")
    parts.append("\n".join(_listed(settings)))
    return "\n\n".join(parts) + "\n"


def _listed(settings, prefix: str = "") -> list[str]:
    """Settings as lines, those within others by both names."""
    lines = []
    for name, value in settings.items():
        if isinstance(value, dict):
            lines += _listed(value, f"{prefix}{name}.")
        else:
            shown = ", ".join(map(str, value)) if isinstance(value, list) else value
            lines.append(f"- {prefix}{name}: `{shown}`")
    return lines


def _number(row: dict[str, Any]) -> str:
    margin = row["margin_at_difference"]
    return "unknown" if margin is None else f"{margin:.2e}"
