"""Trees united, folded into a trie and cut to a budget, against plain Python."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specjax.core import history as history_lib
from specjax.core import tree as tree_lib
from specjax.core import union as union_lib

SLOTS, TRUNK = 9, 2
NO = tree_lib.NO_PARENT

append = jax.jit(tree_lib.append)
fold = jax.jit(union_lib.fold)
graft = jax.jit(tree_lib.graft)
widen = jax.jit(tree_lib.widen, static_argnums=1)
twins = jax.jit(union_lib.twins)
path_confidence = jax.jit(union_lib.path_confidence)
keep_likeliest = jax.jit(union_lib.keep_likeliest)


def i32(values):
    return jnp.asarray(np.array(values, np.int32))


def grow(nodes, slots=SLOTS):
    """A one-row tree: a trunk of two, then (token, parent, confidence) nodes."""
    history = history_lib.create(i32([[8, 9]]), i32([2]), 2)
    tree = tree_lib.trunk(history, i32([0]), i32([TRUNK]), slots)
    room = slots - TRUNK
    filled = list(nodes) + [(0, NO, 1.0)] * (room - len(nodes))
    return append(
        tree,
        token=i32([[token for token, _, _ in filled]]),
        parent=i32([[parent for _, parent, _ in filled]]),
        count=i32([len(nodes)]),
        tag=jnp.arange(room, dtype=jnp.int32),
        confidence=jnp.asarray(
            np.array([[chance for _, _, chance in filled]], np.float32)
        ),
        anchor=i32([TRUNK - 1]),
    )


def spelled(tree):
    """{path of tokens from the anchor: confidence} of the drafts, slots in order."""
    count, paths = int(tree.num_nodes[0]), {}
    by_slot = {TRUNK - 1: ()}
    for slot in range(TRUNK, count):
        path = (*by_slot[int(tree.parent[0, slot])], int(tree.token[0, slot]))
        by_slot[slot] = path
        paths.setdefault(path, []).append(float(tree.confidence[0, slot]))
        assert int(tree.depth[0, slot]) == TRUNK - 1 + len(path)
    return paths


@st.composite
def trees(draw, most=SLOTS - TRUNK):
    """Nodes of a random tree with many equal siblings."""
    nodes = []
    for at in range(draw(st.integers(0, most))):
        parent = draw(st.integers(-1, at - 1))
        chance = draw(st.sampled_from([0.25, 0.5, 0.75, 1.0]))
        nodes.append((draw(st.integers(0, 2)), parent, chance))
    return nodes


def test_twins_of_a_small_tree():
    # Under the anchor 5, 5, 6; a 7 under each: 5-7 twice and 6-7.
    tree = grow([(5, NO, 1), (5, NO, 1), (6, NO, 1), (7, 0, 1), (7, 1, 1), (7, 2, 1)])
    np.testing.assert_array_equal(twins(tree)[0, 2:8], [2, 2, 4, 5, 5, 7])


@given(trees())
def test_fold_makes_a_trie_of_the_same_paths(nodes):
    tree = grow(nodes)
    before, after = spelled(tree), spelled(fold(tree, tree.num_trunk))
    assert set(after) == set(before)
    for path, chances in after.items():
        assert chances == [max(before[path])]


def test_fold_leaves_what_was_there_before():
    # The two 5s are older; the new 5 folds into the first of them.
    tree = fold(grow([(5, NO, 0.5), (5, NO, 0.5), (5, NO, 1), (6, 2, 1)]), i32([4]))
    np.testing.assert_array_equal(tree.token[0, :5], [8, 9, 5, 5, 6])
    np.testing.assert_array_equal(tree.parent[0, :5], [NO, 0, 1, 1, 2])
    np.testing.assert_array_equal(tree.confidence[0, 2:5], [1, 0.5, 1])


@given(trees(most=3), trees(most=3))
def test_graft_has_the_paths_of_both(first, second):
    base = i32([TRUNK])
    both = graft(grow(first), grow(second), base)
    paths = {path: len(chances) for path, chances in spelled(both).items()}
    for nodes in (first, second):
        for path, chances in spelled(grow(nodes)).items():
            paths[path] -= len(chances)
    assert not any(paths.values())


def test_graft_leaves_out_what_does_not_fit():
    full = [(at, NO, 1.0) for at in range(SLOTS - TRUNK)]
    both = graft(grow(full), grow([(50, NO, 1.0)]), i32([TRUNK]))
    assert int(both.num_nodes[0]) == SLOTS
    assert 50 not in np.asarray(both.token)


def test_widen_adds_room_and_nothing_else():
    tree = grow([(5, NO, 0.5), (6, 0, 0.5)])
    wide = widen(tree, SLOTS + 4)
    assert wide.slots == SLOTS + 4
    assert spelled(wide) == spelled(tree)
    assert int(wide.num_nodes[0]) == int(tree.num_nodes[0])


@given(trees())
def test_path_confidence_is_the_product_along_the_path(nodes):
    expected = [1.0] * TRUNK
    for _, parent, chance in nodes:
        expected.append(chance * (expected[TRUNK + parent] if parent >= 0 else 1.0))
    expected += [1.0] * (SLOTS - len(expected))
    np.testing.assert_allclose(path_confidence(grow(nodes))[0], expected, rtol=1e-6)


@pytest.mark.parametrize("length", [*range(1, 10), 14, 15, 16, 17])
def test_path_confidence_of_a_chain_that_fills_the_tree(length):
    chain = [(1, at - 1, 0.5) for at in range(length)]
    found = path_confidence(grow(chain, slots=TRUNK + length))[0]
    wanted = [1.0] * TRUNK + [0.5 ** (1 + at) for at in range(length)]
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


@given(trees(), st.integers(0, SLOTS))
def test_the_likeliest_are_kept(nodes, budget):
    tree = grow(nodes)
    kept = keep_likeliest(tree, i32(budget), tree.num_trunk)
    chances = np.asarray(path_confidence(tree))[0, TRUNK : TRUNK + len(nodes)]
    left = np.asarray(path_confidence(kept))[0, TRUNK : int(kept.num_nodes[0])]
    np.testing.assert_allclose(
        sorted(left, reverse=True), sorted(chances, reverse=True)[:budget], rtol=1e-6
    )


def test_older_drafts_do_not_compete():
    tree = grow([(5, NO, 0.1), (6, NO, 0.9), (7, NO, 0.8)])
    kept = keep_likeliest(tree, 1, i32([3]))
    np.testing.assert_array_equal(kept.token[0, 2:4], [5, 6])
    assert int(kept.num_nodes[0]) == 4


@pytest.mark.parametrize("parents", [[-1, 0, 1, 2], [-1, -1, 0, 0], [-1, 0, -1, 2]])
def test_edges_from_the_anchor(parents):
    expected = []
    for parent in parents:
        expected.append(1 if parent < 0 else expected[parent] + 1)
    np.testing.assert_array_equal(
        tree_lib.edges_from_anchor(i32([parents])), [expected]
    )
