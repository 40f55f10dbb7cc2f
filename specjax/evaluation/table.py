"""Rows of a benchmark summed up: by category and in all."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import rich.box
import rich.table

IN_ALL = "in all"
NEAR_TIE = 1e-4  # a narrower margin at the first difference is rounding


@dataclasses.dataclass(frozen=True, kw_only=True)
class Line:
    """One drafter on one category.

    Attributes:
      category: its name, or ``IN_ALL``.
      drafter: label.
      rows: prompts (or turns).
      tokens: new tokens.
      tau: new tokens a target call, the first of each row left out.
      seconds: total decode time; rows of a batch share it.
      tokens_per_second: of decoding.
      speedup: total decode time of "none" over this one's, None without it.
      identical: rows with the tokens of "none".
      near_ties: further rows that part from it at a margin under ``NEAR_TIE``.
      drafted, accepted: nodes.
    """

    category: str
    drafter: str
    rows: int
    tokens: int
    tau: float
    seconds: float
    tokens_per_second: float
    speedup: float | None
    identical: int
    near_ties: int
    drafted: int
    accepted: int


def summarise(rows: Sequence[dict[str, Any]]) -> list[Line]:
    """One line a category and drafter, then those in all, in order of appearance."""
    categories = list(dict.fromkeys(row["category"] for row in rows))
    drafters = list(dict.fromkeys(row["drafter"] for row in rows))
    lines = []
    for category in [*categories, IN_ALL]:
        here = [r for r in rows if category in (IN_ALL, r["category"])]
        plain = decode_seconds(r for r in here if r["drafter"] == "none")
        for drafter in drafters:
            mine = [r for r in here if r["drafter"] == drafter]
            if mine:
                lines.append(_line(category, drafter, mine, plain))
    return lines


def _line(category: str, drafter: str, rows: Sequence[dict], plain: float) -> Line:
    seconds = decode_seconds(rows)
    later = sum(max(row["new_tokens"] - 1, 0) for row in rows)
    calls = sum(row["target_calls"] for row in rows)
    narrow = [row.get("margin_at_difference") for row in rows if not row["identical"]]
    return Line(
        category=category,
        drafter=drafter,
        rows=len(rows),
        tokens=sum(row["new_tokens"] for row in rows),
        tau=later / calls if calls else 1.0,
        seconds=seconds,
        tokens_per_second=later / seconds if seconds else 0.0,
        speedup=plain / seconds if plain and seconds else None,
        identical=sum(row["identical"] for row in rows),
        near_ties=sum(margin is not None and margin < NEAR_TIE for margin in narrow),
        drafted=sum(row["drafted"] for row in rows),
        accepted=sum(row["accepted"] for row in rows),
    )


def decode_seconds(rows: Iterable[dict[str, Any]]) -> float:
    """Total decode time; rows of a batch each carry the time of all of it."""
    return sum(row["decode_seconds"] / row.get("batch", 1) for row in rows)


HEADINGS = (
    "category",
    "drafter",
    "tokens",
    "tau",
    "tokens/s",
    "speedup",
    "identical",
)


def cells(line: Line) -> tuple[str, ...]:
    """A line as texts under ``HEADINGS``."""
    same = f"{line.identical}/{line.rows}"
    if line.near_ties:
        same += f" (+{line.near_ties} near ties)"
    return (
        line.category,
        line.drafter,
        str(line.tokens),
        f"{line.tau:.2f}",
        f"{line.tokens_per_second:.1f}",
        "-" if line.speedup is None else f"{line.speedup:.2f}",
        same,
    )


def to_rich(lines: Sequence[Line]) -> rich.table.Table:
    """The table for a terminal."""
    table = rich.table.Table(box=rich.box.SIMPLE_HEAD, padding=(0, 0))
    for index, heading in enumerate(HEADINGS):
        table.add_column(heading, justify="left" if index < 2 else "right")
    for before, line in zip([None, *lines], lines, strict=False):
        if before is not None and before.category != line.category:
            table.add_section()
        table.add_row(*cells(line), style="bold" if line.category == IN_ALL else None)
    return table


def to_markdown(lines: Sequence[Line]) -> str:
    """The table in Markdown."""
    ruler = ["---", "---"] + ["---:"] * (len(HEADINGS) - 2)
    table = [HEADINGS, ruler, *map(cells, lines)]
    return "\n".join(f"| {' | '.join(row)} |" for row in table)
