"""As many drafts as pay, against plain Python."""

import numpy as np
import pytest

from specjax.drafters.compose.adaptive_length import adaptive_length
from tests.drafters import replay
from tests.drafters.fixed import fixed

CHAIN = ((1, -1, 0.8), (2, 0, 0.5), (3, 1, 0.5), (4, 2, 0.5), (5, 3, 0.5), (6, 4, 0.5))
BROAD = ((1, -1, 0.5), (2, -1, 0.3), (3, -1, 0.1), (4, 0, 0.5))
LADDER = (1, 2, 4, 7)
PROMPTS = [[1, 2, 3, 1, 2]]


class Oracle:
    """Rates of each (source, bin) so far; the width with most tokens a millisecond."""

    def __init__(self, nodes, costs):
        self.nodes, self.costs = nodes, costs
        self.tried, self.taken = {}, {}

    def _chances(self, room):
        chances, depths = [], []
        for _, parent, stated in self.nodes:
            depths.append(1 if parent < 0 else depths[parent] + 1)
            at = min(int(stated * 8), 7)
            rate = self.taken.get(at, 0) + 6 * stated
            rate /= self.tried.get(at, 0) + 6
            above = 1.0 if parent < 0 else chances[parent]
            chances.append(above * rate)
        return [c for c, d in zip(chances, depths, strict=True) if d < room]

    def propose(self, text, room):
        chances = self._chances(room)
        best = sorted(chances, reverse=True)
        rates = [
            (1 + sum(best[: width - 1])) / cost
            for width, cost in zip(LADDER, self.costs, strict=True)
        ]
        keep = LADDER[int(np.argmax(rates))] - 1
        order = sorted(range(len(chances)), key=lambda at: (-chances[at], at))[:keep]
        kept = sorted(order)
        where = {old: new for new, old in enumerate(kept)} | {-1: -1}
        return [(self.nodes[at][0], where[self.nodes[at][1]]) for at in kept]

    def observe(self, seen):
        names = {token: stated for token, _, stated in self.nodes}
        for at, (token, parent) in enumerate(seen.drafts):
            if parent == -1 or parent in seen.path:
                place = min(int(names[token] * 8), 7)
                self.tried[place] = self.tried.get(place, 0) + 1
                self.taken[place] = self.taken.get(place, 0) + (at in seen.path)


@pytest.mark.parametrize(
    ("nodes", "costs"),
    [
        (CHAIN, (1.0, 1.2, 1.4, 1.6)),
        (CHAIN, (1.0, 1.55, 1.6, 3.0)),
        (BROAD, (1.0, 1.2, 1.5, 2.5)),
        (BROAD, (1.0, 1.25, 1.3, 1.32)),
    ],
)
def test_against_plain_python(nodes, costs):
    made = adaptive_length(fixed(*nodes), widths=LADDER, costs=costs)
    (run,) = replay.check(
        made,
        lambda: Oracle(nodes, costs),
        PROMPTS,
        rounds=60,
        max_new_tokens=90,
        temperature=0.8,
    )
    assert len({len(seen.drafts) for seen in run if seen.room > 10}) > 1


def test_nothing_is_drafted_where_every_width_costs_too_much():
    made = adaptive_length(fixed(*CHAIN), widths=LADDER, costs=(1, 5, 6, 7))
    (run,) = replay.record(made, PROMPTS)
    assert not any(seen.drafts for seen in run)


def test_free_width_is_used_whole():
    made = adaptive_length(fixed(*CHAIN), widths=LADDER, costs=(1, 1, 1, 1))
    (run,) = replay.record(made, PROMPTS, rounds=5)
    assert [len(seen.drafts) for seen in run if seen.room] == [6] * 5


def test_rows_share_the_width_that_pays_for_all():
    # One row's room ends early: it drafts less, the other as much as the width holds.
    made = adaptive_length(fixed(*CHAIN), widths=LADDER, costs=(1, 1.01, 1.02, 1.03))
    runs = replay.record(made, [[1, 2, 3], [3, 2, 1]], rounds=3)
    assert all(len(seen.drafts) == 6 for run in runs for seen in run if seen.room)


def test_costs_are_params():
    one = adaptive_length(fixed(*CHAIN), widths=LADDER, costs=(1, 2, 3, 4))
    other = adaptive_length(fixed(*CHAIN), widths=LADDER, costs=(1, 1, 1, 1))
    assert one.drafter is other.drafter
    assert one.widths == LADDER
    assert one.drafter.bounds.nodes == 6


@pytest.mark.parametrize("widths", [(), (2, 4), (1, 4, 4), (1, 8, 4)])
def test_bad_ladder(widths):
    with pytest.raises(ValueError, match="widths must ascend from 1"):
        adaptive_length(fixed(*CHAIN), widths=widths, costs=[1.0] * len(widths))


@pytest.mark.parametrize("costs", [(1.0,), (1.0, 0.0), (1.0, -2.0)])
def test_bad_costs(costs):
    with pytest.raises(ValueError, match="costs must be 2 positive numbers"):
        adaptive_length(fixed(*CHAIN), widths=(1, 4), costs=costs)
