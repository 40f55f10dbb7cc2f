"""Sums of a benchmark, by hand."""

import pytest

from specjax.evaluation import table


def row(category, drafter, new_tokens, calls, seconds, **changes):
    return {
        "category": category,
        "drafter": drafter,
        "new_tokens": new_tokens,
        "target_calls": calls,
        "decode_seconds": seconds,
        "identical": True,
        "drafted": 0,
        "accepted": 0,
        **changes,
    }


ROWS = [
    row("a", "none", 11, 10, 1.0),
    row("a", "x", 11, 5, 0.5),
    row("b", "none", 21, 20, 2.0),
    row("b", "x", 21, 20, 2.5, identical=False, margin_at_difference=1e-5),
]


def test_lines_by_category_and_in_all():
    lines = {(x.category, x.drafter): x for x in table.summarise(ROWS)}
    assert lines["a", "x"].tau == 2.0
    assert lines["a", "x"].speedup == 2.0
    assert lines["b", "x"].speedup == pytest.approx(0.8)
    everything = lines[table.IN_ALL, "x"]
    # 10 + 20 later tokens in 5 + 20 calls; 3.0 s of none over 3.0 s.
    assert everything.tau == pytest.approx(30 / 25)
    assert everything.speedup == 1.0
    assert everything.tokens == 32
    assert (everything.identical, everything.near_ties) == (1, 1)


def test_rows_of_a_batch_share_their_time():
    rows = [row("a", "none", 11, 10, 3.0, batch=2) for _ in range(2)]
    (first, _) = table.summarise(rows)
    assert first.seconds == 3.0
    assert first.tokens_per_second == pytest.approx(20 / 3)


def test_a_wide_margin_is_no_near_tie():
    rows = [row("a", "x", 2, 1, 1.0, identical=False, margin_at_difference=0.5)]
    assert table.summarise(rows)[0].near_ties == 0


def test_markdown():
    text = table.to_markdown(table.summarise(ROWS))
    assert "| a | x | 11 | 2.00 | 20.0 | 2.00 | 1/1 |" in text
    assert "0/1 (+1 near ties)" in text
