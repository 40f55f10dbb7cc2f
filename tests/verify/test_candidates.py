"""The acceptance cores on given uniforms."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specjax.core import noise
from specjax.core import tree as tree_lib
from specjax.verify import candidates, law, walk

P = np.array([1 / 2, 3 / 10, 1 / 5])
Q = np.array([1 / 5, 1 / 2, 3 / 10])
ALMOST_ONE = 1 - 2.0**-24


def f32(rows):
    return jnp.asarray(np.asarray(rows), jnp.float32)


def siblings(tokens, rows_of_law, laws):
    """A tree for each row: children of one root, drawn from rows of ``laws``."""
    tokens, laws = np.asarray(tokens, np.int32), np.asarray(laws, np.float32)
    rows, count = tokens.shape

    def slots(root, child):
        field = np.concatenate([[root], np.broadcast_to(child, (count,))])
        return jnp.asarray(np.broadcast_to(field, (rows, 1 + count)), jnp.int32)

    return tree_lib.TokenTree(
        token=jnp.asarray(np.pad(tokens, ((0, 0), (1, 0)))),
        parent=slots(tree_lib.NO_PARENT, 0),
        depth=slots(0, 1),
        tag=slots(tree_lib.NO_TAG, 0),
        confidence=jnp.asarray(np.ones((rows, 1 + count), np.float32)),
        num_trunk=jnp.asarray(np.ones(rows, np.int32)),
        num_nodes=jnp.asarray(np.full(rows, 1 + count, np.int32)),
        law=slots(tree_lib.NO_LAW, rows_of_law),
        laws=jnp.asarray(np.broadcast_to(laws, (rows, *laws.shape))),
    )


sibling_law = jax.jit(candidates.sibling_law, static_argnames="vocab_size")
accept = jax.jit(candidates.accept)
try_in_order = jax.jit(candidates.try_in_order)
draw_two = jax.jit(functools.partial(candidates.draw_without_replacement, count=2))


def test_accept_one():
    rows = 3
    token = jnp.arange(3)
    p, q = (jnp.broadcast_to(f32(x)[None], (rows, 3)) for x in (P, Q))
    for uniform, expected in ((0.59, [1, 1, 1]), (0.61, [1, 0, 1]), (0.67, [1, 0, 0])):
        kept, rest = accept(p, q, token, jnp.full((rows,), uniform))
        np.testing.assert_array_equal(kept, np.array(expected, bool))
        np.testing.assert_allclose(rest, [[1, 0, 0]] * 3)


def test_accept_needs_more_than_zero():
    p, q = f32([[1.0, 0.0]]), f32([[0.0, 1.0]])
    for token in ([0], [1]):
        kept, _ = accept(p, q, jnp.asarray(token), jnp.zeros((1,)))
        assert bool(kept[0]) == (token == [0])


def test_equal_laws_are_accepted_and_leave_the_law():
    p = f32([P])
    kept, rest = accept(p, p, jnp.asarray([1]), f32([ALMOST_ONE]))
    assert bool(kept[0])
    np.testing.assert_array_equal(rest, p)


def test_law_at_temperature_zero_is_the_first_best():
    logits = f32([[1.0, 3.0, 3.0], [1.0, 3.0, -np.inf]])
    found = candidates.target_law(logits, f32([0.0, 2.0]))
    np.testing.assert_array_equal(found[0], [0, 1, 0])
    expected = np.exp([0.5, 1.5, -np.inf])
    np.testing.assert_allclose(found[1], expected / expected.sum(), rtol=1e-6)


@pytest.mark.parametrize("temperature", [1e-6, 1e-30, 1e-38, 1e-45])
def test_law_at_a_tiny_temperature_is_all_on_the_best(temperature):
    logits = f32([[60.0, 61.0, -np.inf], [-1e30, -60.0, -61.0]])
    found = candidates.target_law(logits, f32([temperature] * 2))
    np.testing.assert_array_equal(found, [[0, 1, 0]] * 2)


@pytest.mark.parametrize("q", [[0.1, 0.2, 0.3, 0.4], [0, 1, 0, 0], [0.5, 0, 0.3, 0.2]])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_law_of_every_drawing_is_the_target(q, count):
    """Each accept probability and residual, over all drawings: the output is p."""
    p, q = np.array([0.4, 0.3, 0.2, 0.1]), np.array(q)
    drawings = list(law.drawings([law.Drawn(q, count)], 4))
    tokens = [[c.token for c in drawn] for _, drawn in drawings]
    tree = siblings(tokens, np.zeros(count), [q])
    rest = jnp.broadcast_to(f32(p)[None], (len(tokens), 4))
    rejected = jnp.zeros((len(tokens), 1 + count), jnp.bool_)
    left = np.array([weight for weight, _ in drawings])
    output, accepted = np.zeros(4), 0.0
    for at in range(count):
        slot = jnp.full((len(tokens),), 1 + at)
        token = np.array(tokens)[:, at]
        own = sibling_law(tree, slot, rejected, vocab_size=4)
        rows = np.arange(len(tokens))
        chance = np.minimum(1, np.asarray(rest)[rows, token] / own[rows, token])
        np.add.at(output, token, left * chance)
        accepted += (left * chance).sum()
        left = left * (1 - chance)
        _, rest = accept(rest, own, jnp.asarray(token), f32(rows * 0))
        rejected = rejected.at[:, 1 + at].set(True)
    output += (left[:, None] * rest).sum(axis=0)
    np.testing.assert_allclose(output, p, atol=1e-6)
    expected = law.without_replacement(p, q, count).acceptance
    assert accepted == pytest.approx(expected, abs=1e-6)


weights = st.lists(st.integers(0, 9), min_size=5, max_size=5).filter(any)


@given(
    weights,
    weights,
    weights,
    st.permutations(range(5)),
    st.lists(st.floats(0, ALMOST_ONE, width=32), min_size=5, max_size=5),
)
def test_trying_in_order_replays_the_reference(p, q, r, order, uniforms):
    """Mixed siblings: two of one law, a point mass, one of another law."""
    p, q, r = (np.array(x, np.float64) / sum(x) for x in (p, q, r))
    groups = [law.Drawn(q, 2), law.Fixed([order[0]]), law.Drawn(r, 1)]
    drawings = list(law.drawings(groups, 5))
    drawn = drawings[order[1] % len(drawings)][1]
    tree = siblings([[c.token for c in drawn]], [0, 0, -1, 1], [q, r])
    children = jnp.asarray([[False, True, True, True, True]])
    tried = try_in_order(f32([p]), tree, children, f32([uniforms]))
    kept, rest = law.replay(p, drawn, uniforms)
    if _near_a_tie(p, drawn, uniforms):
        return
    assert int(tried.slot[0]) == (5 if kept is None else 1 + kept)
    np.testing.assert_allclose(tried.law[0], rest, atol=1e-6)


def _near_a_tie(p, drawn, uniforms):
    for candidate, uniform in zip(drawn, uniforms, strict=False):
        gap = uniform * candidate.law[candidate.token] - p[candidate.token]
        rest = np.maximum(p - candidate.law, 0)
        if abs(gap) < 1e-6 or 0 < rest.sum() < 1e-6:
            return True
        p = law.residual(p, candidate.law)
    return False


def test_relabelling_the_vocabulary_relabels_the_result():
    order = np.array([2, 0, 1])  # new id of each old id
    inverse = np.argsort(order)
    uniforms = jnp.asarray(np.random.default_rng(0).random((64, 3)), jnp.float32)
    children = jnp.broadcast_to(jnp.asarray([[False, True, True]]), (64, 3))
    found = []
    for p, q, tokens in ((P, Q, [1, 2]), (P[inverse], Q[inverse], order[[1, 2]])):
        tree = siblings([tokens] * 64, [0, 0], [q])
        rows = jnp.broadcast_to(f32(p)[None], (64, 3))
        found.append(try_in_order(rows, tree, children, uniforms))
    np.testing.assert_array_equal(found[0].slot, found[1].slot)
    np.testing.assert_allclose(found[0].law, found[1].law[:, order], atol=1e-7)


def test_disjoint_laws_reject_everything_and_leave_the_target():
    p, q = np.array([0.25, 0.75, 0, 0]), np.array([0, 0, 0.5, 0.5])
    tree = siblings([[3, 2]], [0, 0], [q])
    children = jnp.asarray([[False, True, True]])
    tried = try_in_order(f32([p]), tree, children, jnp.zeros((1, 3)))
    assert int(tried.slot[0]) == tree.slots
    np.testing.assert_allclose(tried.law[0], p)


@pytest.mark.parametrize("first_only", [True, False])
def test_masked_tokens_are_never_emitted(first_only, make_sampling, monkeypatch):
    """A million draws, then with every uniform forced to 0."""
    rows, law_row = 2**20, np.array([0.1, 0.5, 0.1, 0.3])
    logits = jnp.log(f32([[0.6, 0.0, 0.4, 0.0]]))
    laws = jnp.broadcast_to(f32(law_row)[None], (rows, 4))
    zeros = jnp.zeros((rows,), jnp.int32)
    sampling = make_sampling(rows, temperature=1.0)
    draft_key = noise.lane(sampling.key, noise.LANE_DRAFT, zeros)
    tokens = draw_two(laws, draft_key, zeros)
    place = walk.Place(
        logits=jnp.broadcast_to(logits, (rows, 4)),
        tree=siblings(tokens, [0, 0], [law_row]),
        alive=jnp.broadcast_to(jnp.arange(3)[None] == 0, (rows, 3)),
        position=zeros,
        round_index=zeros,
        sampling=sampling,
    )

    def emitted():
        rule = functools.partial(candidates.decide, first_only=first_only)
        return set(np.unique(jax.jit(rule)(place).token))

    assert emitted() == {0, 2}
    monkeypatch.setattr(noise, "uniform", lambda *_: jnp.zeros((rows, 3)))
    assert emitted() == {0, 2}


def test_drawing_without_replacement_has_the_sequential_law(make_sampling):
    rows = 200_000
    q = np.array([0.5, 0.3, 0.0, 0.2])
    key = make_sampling(rows).key
    laws = jnp.broadcast_to(f32(q)[None], (rows, 4))
    zeros = jnp.zeros((rows,), jnp.int32)
    draw = functools.partial(candidates.draw_without_replacement, count=3)
    drawn = np.asarray(jax.jit(draw)(laws, key, zeros))
    counts = np.zeros((4, 4, 4))
    np.add.at(counts, tuple(drawn.T), 1 / rows)
    expected = np.zeros((4, 4, 4))
    for weight, found in law.drawings([law.Drawn(q, 3)], 4):
        expected[tuple(c.token for c in found)] = weight
    assert np.abs(counts - expected).sum() / 2 < 4 * np.sqrt(6 / rows)


def test_drawing_more_than_the_law_holds_ends_with_the_lowest_ids(make_sampling):
    key, zero = make_sampling(1).key, jnp.zeros((1,), jnp.int32)
    laws = f32([[0.0, 0.0, 0.0, 1.0]])
    drawn = candidates.draw_without_replacement(laws, key, zero, 3)
    np.testing.assert_array_equal(drawn, [[3, 0, 1]])


@pytest.mark.parametrize("count", [0, 4])
def test_drawing_an_impossible_number_is_refused(count, make_sampling):
    key, zero = make_sampling(1).key, jnp.zeros((1,), jnp.int32)
    with pytest.raises(ValueError, match="count must be 1 to V=3"):
        candidates.draw_without_replacement(f32([P]), key, zero, count)
