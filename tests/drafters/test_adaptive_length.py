"""As many drafts as pay, against plain Python."""

import numpy as np
import pytest

from specjax.drafters.compose.adaptive_length import adaptive_length
from specjax.drafters.compose.merge import merge
from tests.drafters import once, replay
from tests.drafters.fixed import fixed

CHAIN = ((1, -1, 0.8), (2, 0, 0.5), (3, 1, 0.5), (4, 2, 0.5), (5, 3, 0.5), (6, 4, 0.5))
BROAD = ((1, -1, 0.5), (2, -1, 0.3), (3, -1, 0.1), (4, 0, 0.5))
LADDER = (1, 2, 4, 7)
PROMPTS = [[1, 2, 3, 1, 2]]


class Oracle:
    """Rates of each (source, bin) so far; the width with most tokens a millisecond.

    A node is (token, parent, stated confidence); all of one source, or each with a
    source of its own.
    """

    def __init__(self, nodes, costs, sources=None, kept_cost=0.0, kept_free=0):
        self.nodes, self.costs = nodes, costs
        self.kept_cost, self.kept_free = kept_cost, kept_free
        self.sources = sources or {token: 0 for token, _, _ in nodes}
        self.tried, self.taken = {}, {}

    def _place(self, token, stated):
        return self.sources[token], min(int(stated * 8), 7)

    def _chances(self, room):
        chances, depths = [], []
        for token, parent, stated in self.nodes:
            depths.append(1 if parent < 0 else depths[parent] + 1)
            at = self._place(token, stated)
            rate = self.taken.get(at, 0) + 6 * stated
            rate /= self.tried.get(at, 0) + 6
            above = 1.0 if parent < 0 else chances[parent]
            chances.append(above * rate)
        return [(c, d) for c, d in zip(chances, depths, strict=True) if d < room]

    def propose(self, text, room):
        drafts = self._chances(room)
        chances = [chance for chance, _ in drafts]
        best = sorted(drafts, key=lambda draft: -draft[0])
        rates = []
        for width, cost in zip(LADDER, self.costs, strict=True):
            fit = best[: width - 1]
            kept = sum(chance for chance, _ in fit)
            dear = sum(chance for chance, depth in fit if depth > self.kept_free)
            rates.append((1 + kept) / (cost + self.kept_cost * dear))
        keep = LADDER[int(np.argmax(rates))] - 1
        order = sorted(range(len(chances)), key=lambda at: (-chances[at], at))[:keep]
        kept = sorted(order)
        where = {old: new for new, old in enumerate(kept)} | {-1: -1}
        return [(self.nodes[at][0], where[self.nodes[at][1]]) for at in kept]

    def observe(self, seen):
        names = {token: stated for token, _, stated in self.nodes}
        for at, (token, parent) in enumerate(seen.drafts):
            if parent == -1 or parent in seen.path:
                place = self._place(token, names[token])
                self.tried[place] = self.tried.get(place, 0) + 1
                self.taken[place] = self.taken.get(place, 0) + (at in seen.path)


@pytest.mark.parametrize(
    ("nodes", "costs", "kept"),
    [
        (CHAIN, (1.0, 1.2, 1.4, 1.6), {}),
        (CHAIN, (1.0, 1.2, 1.4, 1.6), {"kept_cost": 0.35}),
        (CHAIN, (1.0, 1.2, 1.4, 1.6), {"kept_cost": 0.35, "kept_free": 2}),
        (CHAIN, (1.0, 1.55, 1.6, 3.0), {}),
        (BROAD, (1.0, 1.2, 1.5, 2.5), {"kept_cost": 0.1}),
        (BROAD, (1.0, 1.25, 1.3, 1.32), {}),
    ],
)
def test_against_plain_python(nodes, costs, kept):
    made = adaptive_length(fixed(*nodes), widths=LADDER, costs=costs, **kept)
    (run,) = replay.check(
        made,
        lambda: Oracle(nodes, costs, **kept),
        PROMPTS,
        rounds=60,
        max_new_tokens=90,
        temperature=0.8,
    )
    assert len({len(seen.drafts) for seen in run if seen.room > 10}) > 1


def test_sources_are_told_apart():
    """Two drafters that promise the same, each of which is corrected by its own."""
    first, second = ((1, -1, 0.5), (2, 0, 0.5)), ((3, -1, 0.5), (4, 0, 0.5))
    child = merge(fixed(*first), fixed(*second, name="other"), budget=4)
    costs = (1.0, 1.3, 1.6, 1.9)
    # As they are united: all of the first, then all of the second.
    nodes = (*first, (3, -1, 0.5), (4, 2, 0.5))
    made = adaptive_length(child, widths=LADDER, costs=costs)
    (run,) = replay.check(
        made,
        lambda: Oracle(nodes, costs, {1: 0, 2: 0, 3: 1, 4: 1}),
        PROMPTS,
        rounds=60,
        max_new_tokens=90,
        temperature=0.8,
    )
    # Each of them is thought to be the better one at some time.
    drafted = {frozenset(token for token, _ in seen.drafts) for seen in run}
    assert drafted >= {frozenset({1, 2, 3}), frozenset({1, 3, 4})}


def test_nothing_is_drafted_where_every_width_costs_too_much():
    made = adaptive_length(fixed(*CHAIN), widths=LADDER, costs=(1, 5, 6, 7))
    (run,) = replay.record(made, PROMPTS)
    assert not any(seen.drafts for seen in run)


def test_free_width_is_used_whole():
    made = adaptive_length(fixed(*CHAIN), widths=LADDER, costs=(1, 1, 1, 1))
    (run,) = replay.record(made, PROMPTS, rounds=5)
    assert [len(seen.drafts) for seen in run if seen.room] == [6] * 5


def drafts_by_row(costs, room, **kept):
    """How many drafts rows with that room get in their first round."""
    made = adaptive_length(fixed(*CHAIN), widths=LADDER, costs=costs, **kept)
    rows = len(room)
    state = made.drafter.init({"drafter": made.params}, rows, once.CAPACITY)
    nodes = once.propose(made, [[1, 2, 3]] * rows, room=room, state=state)
    return [len(row) for row in nodes]


def test_a_row_drafts_what_it_has_room_for():
    assert drafts_by_row((1, 1, 1, 1), [3, 20, 0]) == [2, 6, 0]


def test_rows_share_the_width_that_pays_for_all():
    """A mate that drafts nothing still makes every width more expensive."""
    costs = (1.0, 1.2, 1.5, 1.8)
    # 1, 1.8, 2.4 and 2.575 tokens: by the costs 1, 1.5, 1.6 and 1.43.
    assert drafts_by_row(costs, [20]) == [3]
    # With 0.8, 1.4 and 1.575 kept the costs are 1, 2, 2.9 and 3.375.
    assert drafts_by_row(costs, [20], kept_cost=1.0) == [0]
    # Drafts of a depth up to 3 are free again, and the others are not worth it.
    assert drafts_by_row(costs, [20], kept_cost=1.0, kept_free=3) == [3]
    # One token more each, over the costs of 2, 4, 8 and 14 tokens, which are 1.2, 1.5,
    # 1.93 and 2.73: 1.67, 1.87, 1.76 and 1.31.
    assert drafts_by_row(costs, [20, 1]) == [1, 0]


def test_a_negative_cost_of_what_is_kept():
    with pytest.raises(ValueError, match="kept_cost must be 0 or more, got -1"):
        adaptive_length(fixed(*CHAIN), widths=(1,), costs=(1.0,), kept_cost=-1)


def test_a_negative_depth_of_what_is_free():
    with pytest.raises(ValueError, match="kept_free must be 0 or more, got -1"):
        adaptive_length(fixed(*CHAIN), widths=(1,), costs=(1.0,), kept_free=-1)


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


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"widths": 4}, TypeError, "widths must be a list, got 4"),
        ({"costs": 3.0}, TypeError, "costs must be a list"),
        ({"widths": (1, 4.0)}, TypeError, "a width must be an integer, got 4.0"),
        ({"costs": (1, "2")}, TypeError, "a cost must be a number"),
        ({"costs": (1, 10**400)}, ValueError, "a cost must be a number that a float"),
        ({"kept_cost": 10**400}, ValueError, "kept_cost must be a number that a float"),
    ],
)
def test_wrong_kinds(changes, error, message):
    given = {"widths": (1, 4), "costs": (1.0, 2.0), **changes}
    with pytest.raises(error, match=message):
        adaptive_length(fixed(*CHAIN), **given)
