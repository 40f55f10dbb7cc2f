"""Token recycling against the reference's tree, hand cases and a dict oracle."""

import collections
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.core import contracts
from specjax.core import history as history_lib
from specjax.core import outcome as outcome_lib
from specjax.core import tree as tree_lib
from specjax.drafters.lookup import token_recycling as recycling
from specjax.drafters.lookup.token_recycling import token_recycling
from tests.drafters import replay

VOCAB = 12
SMALL = {"vocab_size": VOCAB, "nodes": 6, "top_k": 2}
_PROPOSE = {}
_OBSERVE = {}


def view_of(rows, room=99, decoding=True):
    nothing: Any = None  # this drafter reads neither sampling nor processors
    return contracts.View(
        history=history_lib.empty(rows, 8),
        sampling=nothing,
        processors=nothing,
        start=jnp.zeros((rows,), jnp.int32),
        room=jnp.full((rows,), room, jnp.int32),
        rounds=jnp.zeros((rows,), jnp.int32),
        decoding=decoding,
    )


def trunks(roots, slots):
    """Trees whose trunks are one token each."""
    tokens = jnp.asarray(roots, jnp.int32)[:, None]
    ones = jnp.ones((len(roots),), jnp.int32)
    history = history_lib.create(tokens, ones, 2)
    return tree_lib.trunk(history, ones * 0, ones, slots)


def state_of(known, rows=1, width=2):
    """A state that knows some successors; None stands for none."""
    table = np.full((rows, VOCAB, width), recycling.UNSEEN, np.int32)
    for token, after in known.items():
        table[:, token] = after
    return recycling.TokenRecyclingState(successor=jnp.asarray(table))


def drafted(drafter, known, roots, room=99):
    """Each row's drafts as (token, parent, tag)."""
    run = _PROPOSE.setdefault(drafter, jax.jit(drafter.propose))
    state = state_of(known, len(roots), drafter.needs.top_k)
    root = trunks(roots, 1 + drafter.bounds.nodes)
    tree = jax.tree.map(np.asarray, run({}, state, view_of(len(roots), room), root)[0])
    return [
        [
            (
                int(tree.token[row, slot]),
                int(tree.parent[row, slot]) - 1,
                int(tree.tag[row, slot]),
            )
            for slot in range(1, tree.num_nodes[row])
        ]
        for row in range(len(roots))
    ]


class Oracle:
    """A dict of lists, and recursion down the template."""

    def __init__(self, *, nodes, top_k, vocab_size, warm_prompt=True):
        self.choices = recycling.likeliest(nodes, min(top_k, vocab_size)).choices
        self.warm_prompt = warm_prompt
        self.after = {}

    def propose(self, text, room):
        found: dict[tuple[int, ...], int] = {(): text[-1]}
        place: dict[tuple[int, ...], int] = {(): -1}
        drafts = []
        for choice in self.choices:
            parent = found.get(choice[:-1])
            if parent in self.after and len(choice) < room:
                found[choice] = self.after[parent][choice[-1]]
                place[choice] = len(drafts)
                drafts.append((found[choice], place[choice[:-1]]))
        return drafts

    def observe(self, seen):
        if not seen.room and not self.warm_prompt:
            return
        tokens = seen.text[seen.start : seen.start + seen.trunk]
        tokens += [token for token, _ in seen.drafts]
        depth = list(range(seen.trunk))
        for _, parent in seen.drafts:
            above = seen.trunk + parent if parent >= 0 else seen.trunk - 1
            depth.append(depth[above] + 1)
        path = [*range(seen.trunk), *(seen.trunk + at for at in seen.path)]
        others = [at for at in range(len(tokens)) if at not in path]
        others.sort(key=lambda at: (depth[at], at))
        # Later writes win: others from the deepest up, then the path downwards.
        for at in [*reversed(others), *path]:
            self.after[tokens[at]] = seen.top_ids[at].tolist()


def test_the_tree_of_the_reference():
    """Eighty nodes on six levels of 8, 21, 25, 15, 8 and 3."""
    shape = recycling.likeliest(80)
    assert np.bincount(shape.depth)[1:].tolist() == [8, 21, 25, 15, 8, 3]
    assert shape.bounds == contracts.Bounds(nodes=80, depth=6, branching=8)
    level_6 = [choice for choice in shape.choices if len(choice) == 6]
    assert level_6 == [(0,) * 6, (0, 0, 0, 0, 0, 1), (0, 0, 0, 1, 0, 0)]


def test_a_smaller_tree_keeps_the_likeliest_nodes():
    """0.4, 0.16, 0.141, 0.077, 0.064 and twice 0.057, of which the shallower first."""
    shape = recycling.likeliest(6)
    expected = ((0,), (1,), (2,), (0, 0), (0, 1), (0, 0, 0))
    assert shape.choices == expected


def test_the_prior_is_what_was_measured():
    """Shares of 3327 answered tokens, by the rank in the last list of the token before.

    SmolLM2 on 40 prompts of training splits; only tokens that were scored before.
    """
    measured = [0.388, 0.102, 0.056, 0.035, 0.026, 0.021, 0.017, 0.017]
    stated = recycling.confidence_of(np.arange(recycling.RANKS))
    np.testing.assert_allclose(stated, measured, atol=0.015)


def test_siblings_are_worth_less_than_certainty():
    assert recycling.confidence_of(np.arange(recycling.RANKS)).sum() < 1


def test_the_worked_example():
    """Below 5 lie 6 and 7, below 6 lie 1 and 2, below 7 lies 3, below 1 lies 9."""
    known = {5: [6, 7], 6: [1, 2], 7: [3, 4], 1: [9, 8]}
    nodes = drafted(token_recycling(**SMALL), known, [5])[0]
    assert [token for token, *_ in nodes] == [6, 7, 1, 2, 3, 9]
    assert [parent for _, parent, _ in nodes] == [-1, -1, 0, 0, 1, 2]


def test_what_was_never_seen_is_left_out_with_all_below_it():
    """6 has no successors, so nodes 2, 3 and 5 of the template are missing."""
    known = {5: [6, 7], 7: [3, 4], 1: [9, 8]}
    rows = drafted(token_recycling(**SMALL), known, [5, 8, 7])
    assert rows == [[(6, -1, 0), (7, -1, 1), (3, 1, 4)], [], [(3, -1, 0), (4, -1, 1)]]


def test_no_deeper_than_there_is_room():
    known = {5: [6, 7], 6: [1, 2], 7: [3, 4], 1: [9, 8]}
    drafter = token_recycling(**SMALL)
    counts = [len(drafted(drafter, known, [5], room)[0]) for room in range(5)]
    assert counts == [0, 0, 2, 5, 6]


def test_a_spoilt_state_drafts_nothing_but_tokens():
    known = {5: [VOCAB + 3, 7], 7: [-9, 4]}
    nodes = drafted(token_recycling(**SMALL), known, [5])[0]
    assert [token for token, *_ in nodes] == [7]


def test_continues_the_spine_of_a_tree():
    """Under the draft 6 it hangs what follows 6, and has one token less of room."""
    root = tree_lib.append_chain(
        trunks([5], 8),
        token=jnp.asarray([[6]], jnp.int32),
        count=jnp.asarray([1], jnp.int32),
        confidence=jnp.ones((1, 1), jnp.float32),
        anchor=jnp.zeros((1,), jnp.int32),
    )
    drafter = token_recycling(**SMALL)
    state = state_of({6: [1, 2], 1: [9, 8]})
    tree, _ = jax.jit(drafter.propose)({}, state, view_of(1, room=3), root)
    assert tree.token[0, : int(tree.num_nodes[0])].tolist() == [5, 6, 1, 2]
    assert tree.parent[0, 2:4].tolist() == [1, 1]


def learnt(tree, path, top_ids, *, decoding=True, **options):
    """{token: successors} after one round of a fresh state."""
    drafter = token_recycling(**{**SMALL, **options})
    outcome = outcome_lib.Outcome(
        path_slot=jnp.asarray([path], jnp.int32),
        num_path=jnp.asarray([len(path)], jnp.int32),
        token=jnp.zeros((1, len(path)), jnp.int32),
        num_new=jnp.asarray([1], jnp.int32),
        log_prob=jnp.zeros((1, len(path)), jnp.float32),
        top_ids=jnp.asarray([top_ids], jnp.int32),
    )
    run = _OBSERVE.setdefault(drafter, jax.jit(drafter.observe))
    state = run({}, state_of({}), view_of(1, decoding=decoding), tree, outcome)
    table = np.asarray(state.successor)[0]
    return {at: row.tolist() for at, row in enumerate(table) if row[0] >= 0}


def grown(*nodes):
    """A trunk of 5 and nodes (token, parent), in eight slots."""
    spare = [(0, -1)] * (7 - len(nodes))
    token, parent = zip(*nodes, *spare, strict=True)
    return tree_lib.append(
        trunks([5], 8),
        token=jnp.asarray([token], jnp.int32),
        parent=jnp.asarray(parent, jnp.int32),
        count=jnp.asarray([len(nodes)], jnp.int32),
        tag=jnp.arange(7, dtype=jnp.int32),
        confidence=jnp.ones((1, 7), jnp.float32),
        anchor=jnp.zeros((1,), jnp.int32),
    )


TOP_IDS = [[at, at + 1] for at in range(8)]  # successors name the slot they came by


def test_learns_from_rejected_nodes_and_not_from_empty_slots():
    tree = grown((6, -1), (7, -1), (1, 0))
    expected = {5: [0, 1], 6: [1, 2], 7: [2, 3], 1: [3, 4]}
    assert learnt(tree, [0, 1], TOP_IDS) == expected


def test_of_equal_tokens_the_accepted_one_counts():
    """7 stands in slot 1, rejected, and deeper in slot 3, accepted."""
    tree = grown((7, -1), (6, -1), (7, 1))
    assert learnt(tree, [0, 2, 3], TOP_IDS)[7] == [3, 4]


def test_of_equal_accepted_tokens_the_last_counts():
    """The trunk's 5 comes again in slot 2, and a third time in slot 3, rejected."""
    tree = grown((6, -1), (5, 0), (5, -1))
    assert learnt(tree, [0, 1, 2], TOP_IDS)[5] == [2, 3]


def test_of_equal_rejected_tokens_the_shallowest_counts_then_the_first():
    """9 in slots 2 (depth 2), 3 and 4 (depth 1)."""
    tree = grown((6, -1), (9, 0), (9, -1), (9, -1))
    assert learnt(tree, [0], TOP_IDS)[9] == [3, 4]


def test_learns_from_prompts_if_it_is_told_to():
    tree = grown((6, -1))
    assert learnt(tree, [0], TOP_IDS, decoding=False) == {5: [0, 1], 6: [1, 2]}
    cold = learnt(tree, [0], TOP_IDS, decoding=False, warm_prompt=False)
    assert cold == {}


def test_a_state_is_kept_where_nothing_was_ranked():
    drafter, state = token_recycling(**SMALL), state_of({5: [1, 2]})
    outcome: Any = collections.namedtuple("Bare", "top_ids")(None)
    assert drafter.observe({}, state, view_of(1), grown((6, -1)), outcome) is state


def test_asks_for_rankings():
    assert token_recycling(vocab_size=9).needs.top_k == 8
    assert token_recycling(vocab_size=3).needs.top_k == 3
    assert token_recycling(vocab_size=9).needs.prompt_top_k
    assert not token_recycling(vocab_size=9, warm_prompt=False).needs.prompt_top_k


@pytest.mark.parametrize(
    ("temperature", "options"),
    [
        (0.0, {"nodes": 80, "top_k": 8}),
        (0.8, {"nodes": 12, "top_k": 3, "warm_prompt": False}),
    ],
)
def test_rounds_agree_with_the_oracle(temperature, options):
    options = {"vocab_size": 7, **options}
    runs = replay.check(
        token_recycling(**options),
        lambda: Oracle(**options),
        [[1, 2, 3, 1, 2], [5], [4, 4, 1, 6, 4, 4, 2, 6, 4, 4, 1, 0]],
        rounds=12,
        temperature=temperature,
    )
    seen = [one for run in runs for one in run]
    assert any(len(one.path) > 1 for one in seen)
    assert len({len(one.drafts) for one in seen if one.room}) > 2


@pytest.mark.parametrize(
    "options",
    [{"vocab_size": 0}, {"nodes": 0}, {"nodes": 81}, {"top_k": 0}, {"top_k": 9}],
)
def test_bad_options(options):
    with pytest.raises(ValueError, match=f"token_recycling: {next(iter(options))}"):
        token_recycling(**{"vocab_size": 9, **options})
