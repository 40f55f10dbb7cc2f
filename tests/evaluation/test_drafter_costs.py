"""What drafters themselves cost, by hand."""

import pytest

from specjax.evaluation import drafter_costs


def row(drafter, calls, seconds, **sources):
    return {
        "drafter": drafter,
        "target_calls": calls,
        "decode_seconds": seconds,
        "drafter_mb": 1.5,
        "propose_ms": 0.5,
        "observe_ms": 0.25,
        "drafted_per_source": {name: pair[0] for name, pair in sources.items()},
        "accepted_per_source": {name: pair[1] for name, pair in sources.items()},
    }


ROWS = [
    row("none", 10, 1.0),
    row("x", 5, 0.5, own=(4, 3), other=(2, 0)),
    row("none", 20, 2.0),
    row("x", 20, 2.5, own=(6, 1), other=(1, 1)),
]


def test_what_a_drafter_itself_costs():
    found = drafter_costs.summarise(ROWS)
    assert [cost.drafter for cost in found] == ["none", "x"]
    assert found[1].sources == {"own": (10, 4), "other": (3, 1)}
    assert found[1].step_ms == pytest.approx(100)  # 3 s of "none" over 30 calls
    text = drafter_costs.to_markdown(found)
    assert "| x | 1.50 | 0.50 (0.5% of a step) | 0.25 (0.2% of a step) |" in text
    assert "own 4/10, other 1/3" in text


def test_old_results_have_no_costs():
    old = [
        {key: value for key, value in entry.items() if key != "drafter_mb"}
        for entry in ROWS
    ]
    assert drafter_costs.summarise(old) == []
