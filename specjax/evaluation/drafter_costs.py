"""What drafters themselves cost, out of the rows of a benchmark."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from specjax.evaluation import table

_FIELDS = {
    "drafter_mb",
    "propose_ms",
    "observe_ms",
    "drafted_per_source",
    "accepted_per_source",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cost:
    """What a drafter itself costs, and which of its sources won.

    Attributes:
      drafter: label.
      megabytes: of its state and weights, at batch 1.
      propose_ms, observe_ms: medians, at batch 1.
      step_ms: of plain decoding, to compare with; None without it.
      sources: {name: (drafted, accepted)}.
    """

    drafter: str
    megabytes: float
    propose_ms: float
    observe_ms: float
    step_ms: float | None
    sources: dict[str, tuple[int, int]]


def summarise(rows: Sequence[dict[str, Any]]) -> list[Cost]:
    """One entry a drafter, in order of appearance."""
    plain = [row for row in rows if row["drafter"] == "none"]
    calls = sum(row["target_calls"] / row.get("batch", 1) for row in plain)
    step = 1e3 * table.decode_seconds(plain) / calls if calls else None
    found = []
    for drafter in dict.fromkeys(row["drafter"] for row in rows):
        mine = [row for row in rows if row["drafter"] == drafter]
        if not all(_FIELDS <= row.keys() for row in mine):
            continue
        sources = {
            name: (
                sum(row["drafted_per_source"].get(name, 0) for row in mine),
                sum(row["accepted_per_source"].get(name, 0) for row in mine),
            )
            for name in mine[0]["drafted_per_source"]
        }
        found.append(
            Cost(
                drafter=drafter,
                megabytes=mine[0]["drafter_mb"],
                propose_ms=mine[0]["propose_ms"],
                observe_ms=mine[0]["observe_ms"],
                step_ms=step,
                sources=sources,
            )
        )
    return found


def to_markdown(found: Sequence[Cost]) -> str:
    """The costs in Markdown."""
    heading = (
        "drafter",
        "MB",
        "propose ms",
        "observe ms",
        "accepted/drafted by source",
    )
    lines = [heading, ["---", "---:", "---:", "---:", "---"]]
    for cost in found:
        sources = ", ".join(
            f"{name} {accepted}/{drafted}"
            for name, (drafted, accepted) in cost.sources.items()
        )
        lines.append(
            (
                cost.drafter,
                f"{cost.megabytes:.2f}",
                _share(cost.propose_ms, cost.step_ms),
                _share(cost.observe_ms, cost.step_ms),
                sources or "-",
            )
        )
    return "\n".join(f"| {' | '.join(row)} |" for row in lines)


def _share(ms: float, step: float | None) -> str:
    return f"{ms:.2f}" if step is None else f"{ms:.2f} ({ms / step:.1%} of a step)"
