"""Drafters one behind the other."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

from specjax import drafters
from specjax.core import outcome as outcome_lib
from specjax.core import tree as tree_lib
from specjax.drafters.compose.horizontal import horizontal
from specjax.drafters.lookup.max_gram import max_gram
from tests.drafters import replay
from tests.drafters.fixed import fixed
from tests.drafters.max_gram_oracle import oracle
from tests.drafters.table_target import greedy, run, table, table_target

THREE = fixed((5, -1, 0.9), (6, 0, 0.8), (4, 1, 0.7), name="three")
TWO = fixed((1, -1, 0.5), (2, 0, 0.5), name="two")
BROAD = fixed((1, -1, 0.5), (2, -1, 0.5), (3, 0, 0.5), (4, 1, 0.5), name="broad")


def drafted(drafter, **options):
    """(token, parent) of the drafts of the first round, and their tags."""
    runs = replay.record(drafter, [[1, 2, 3]], rounds=1, **options)
    first = next(seen for seen in runs[0] if seen.room)
    return first.drafts, first.tags


def chain(*tokens):
    return [(token, at - 1) for at, token in enumerate(tokens)]


@pytest.mark.parametrize(
    ("tokens", "trim", "expected"),
    [
        # 5 6 and 4 are cut at 2; then 1 2, and of 1 2 again the 1.
        ((2, 3), True, chain(5, 6, 1, 2, 1)),
        # 5 6 4 is 3, then 1 2 makes 5.
        ((2, 3), False, chain(5, 6, 4, 1, 2)),
        # 3 are not 4, so 5 6 4 twice; that is the goal of both.
        ((4, 2), False, chain(5, 6, 4, 5, 6, 4)),
        ((4, 2), True, chain(5, 6, 4, 5, 1, 2)),
        # The last call goes beyond the goal of 4.
        ((3, 1), False, chain(5, 6, 4, 1, 2)),
    ],
)
def test_segments(tokens, trim, expected):
    made = horizontal(THREE, TWO, tokens=tokens, trim=trim)
    assert drafted(made)[0] == expected
    assert made.bounds.nodes >= len(expected)


def test_a_tag_for_each_call():
    # THREE has 3 tags for each of 2 calls, TWO 2 for each of 5.
    made = horizontal(THREE, TWO, tokens=(2, 3))
    assert made.sources == (("three", 6), ("two", 10))
    assert drafted(made)[1] == [0, 1, 6, 7, 8]


def test_the_tags_of_nested_ones():
    inner = horizontal(THREE, TWO, tokens=(2, 1))  # tags 0 to 11
    made = horizontal(inner, TWO, tokens=(4, 1))
    assert made.sources == (("three", 24), ("two", 24), ("two", 10))
    nodes, tags = drafted(made)
    assert nodes == chain(5, 6, 1, 5, 1)
    # 5 6 of the first call, 1 of it (24 + 0), 5 of the second call (6 + 0), TWO's 1.
    assert tags == [0, 1, 24, 6, 48]


@pytest.mark.parametrize("trim", [True, False])
@pytest.mark.parametrize(("room", "count"), [(2, 1), (3, 2), (5, 4), (9, 5)])
def test_room_bounds_all_of_it(trim, room, count):
    made = horizontal(THREE, TWO, tokens=(2, 3), trim=trim)
    # One of the tokens is emitted by the prompt's round.
    assert len(drafted(made, max_new_tokens=room + 1)[0]) == count


def test_a_chain_that_ends_in_a_stop_id_is_not_continued():
    made = horizontal(THREE, TWO, tokens=(2, 3))
    assert drafted(made, stop_token_ids=(6,))[0] == chain(5, 6)
    assert drafted(made, stop_token_ids=(2,))[0] == chain(5, 6, 1, 2)


def test_who_has_nothing_to_say_is_followed_by_the_next():
    silent = max_gram(max_draft=2)  # 1 2 3 and a token of the target's
    made = horizontal(drafters.none(), silent, TWO, tokens=(1, 1, 2))
    nodes, _ = drafted(made)
    assert nodes[-1][0] in (1, 2)
    assert len(nodes) == 4
    assert made.bounds == (4, 4, 1)


def test_the_last_may_branch():
    made = horizontal(TWO, BROAD, tokens=(1, 2))
    assert made.bounds == (1 + 4, 3, 2)
    assert drafted(made)[0] == [(1, -1), (1, 0), (2, 0), (3, 1), (4, 2)]
    short = horizontal(TWO, BROAD, tokens=(1, 1))
    assert drafted(short)[0] == [(1, -1), (1, 0), (2, 0)]


def proposal(drafter, make_view, *, law=False):
    """Tree and states of one row after one proposal."""
    view = make_view(1, 7)
    end = view.history.length - 1
    tree = tree_lib.trunk(view.history, end, jnp.ones_like(end), 12)
    if law:
        zero = jnp.zeros((1, 1), jnp.int32)
        tree = tree_lib.append_chain(
            tree,
            token=zero + 3,
            count=jnp.ones_like(end),
            confidence=jnp.ones((1, 1)),
            anchor=tree_lib.spine_end(tree),
            law=zero,
            laws=jnp.full((1, 1, 7), 1 / 7, jnp.float32),
        )
    state = drafter.init({"drafter": {}}, 1, 16)
    return *jax.jit(drafter.propose)({"drafter": {}}, state, view, tree), view


def test_children_are_shown_the_nodes_of_their_first_call(make_view):
    made = horizontal(THREE, TWO, tokens=(2, 3))
    tree, states, view = proposal(made, make_view)
    nothing = jnp.zeros((1, 12), jnp.int32)
    outcome = outcome_lib.Outcome(
        path_slot=nothing,
        num_path=jnp.ones((1,), jnp.int32),
        token=nothing,
        num_new=jnp.ones((1,), jnp.int32),
        log_prob=nothing.astype(jnp.float32),
    )
    seen = made.observe({"drafter": {}}, states, view, tree, outcome)
    assert [int(state[0]) for state in seen] == [2, 2]  # `fixed` counts its nodes


def test_laws_before_it_stay_and_none_is_added(make_view):
    made = horizontal(_lawful(TWO), THREE, tokens=(2, 1))
    assert not made.needs.laws
    tree, _, _ = proposal(made, make_view)
    assert tree.law is None
    tree, _, _ = proposal(made, make_view, law=True)
    assert tree.law[0, 1:5].tolist() == [0, -1, -1, -1]
    assert tree.laws.shape == (1, 1, 7)


def _lawful(child):
    """The child with a law for its nodes."""

    def propose(params, state, view, tree):
        grown, state = child.propose(params, state, view, tree)
        new = jnp.arange(tree.slots)[None] >= tree.num_nodes[:, None]
        law = jnp.where(new, 0, tree_lib.NO_LAW)
        laws = jnp.full((view.room.shape[0], 1, 7), 1 / 7, jnp.float32)
        return dataclasses.replace(grown, law=law, laws=laws), state

    return child._replace(propose=propose, needs=child.needs._replace(laws=True))


class Copies:
    """Two Max-Grams in plain Python, the first of single tokens."""

    def __init__(self, trim):
        self.trim = trim

    def propose(self, text, room):
        draft = []
        for goal, options in ((3, {"max_ngram": 1}), (5, {"recent": True})):
            while len(draft) < min(goal, room - 1):
                most = min(2, room - 1 - len(draft))
                if self.trim:
                    most = min(most, goal - len(draft))
                found = oracle(text + draft, most, **options)
                if not found:
                    break
                draft += found
        return chain(*draft)

    def observe(self, seen):
        pass


@pytest.mark.parametrize("trim", [True, False])
def test_in_real_rounds(trim):
    first = max_gram(max_draft=2, max_ngram=1)
    second = max_gram(max_draft=2, recent=True)
    made = horizontal(first, second, tokens=(3, 2), trim=trim)
    prompts = [[1, 2, 3, 1, 2], [4], [5, 6, 5, 6, 5], [0] * 20]
    runs = replay.check(made, lambda: Copies(trim), prompts, max_new_tokens=40)
    longest = max(len(seen.drafts) for run in runs for seen in run)
    assert longest == (5 if trim else 6)


def test_a_good_model_and_then_a_bad_one():
    """Two right tokens and two wrong ones in every round; 3 emitted."""
    model, logits = table_target(6), table(6, 0)
    good = drafters.speculate(model, max_draft=2, name="good")
    bad = drafters.speculate(model, max_draft=1, name="bad")
    made = horizontal(good, bad, tokens=(2, 2))
    params = ({"model": logits, "drafter": {}}, {"model": -logits, "drafter": {}})
    out = run(made, params, logits, (1, 4, 2), max_new_tokens=31)
    assert out.tokens[0].tolist() == greedy(logits, (1, 4, 2), 31)
    assert int(out.stats.target_calls[0]) == 10
    assert out.stats.accepted_by[0].tolist() == [20, 0]
    assert out.stats.drafted_by[0].tolist() == [20, 18]  # no room in the last round


@pytest.mark.parametrize(
    ("children", "tokens", "found"),
    [
        ((), (), "at least 1"),
        ((TWO,), (1, 2), "tokens"),
        ((TWO, THREE), (1, 0), "tokens"),
        ((BROAD, TWO), (1, 2), "broad has up to 2"),
    ],
)
def test_bad_families(children, tokens, found):
    with pytest.raises(ValueError, match=f"horizontal: .*{found}"):
        horizontal(*children, tokens=tokens)
