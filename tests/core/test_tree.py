"""Token trees against plain Python walks."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specjax.core import history as history_lib
from specjax.core import tree as tree_lib

SLOTS = 6
NO = tree_lib.NO_PARENT
THE, CAT, SAT, RAN, ON = 1, 2, 3, 4, 5

append = jax.jit(tree_lib.append)
append_chain = jax.jit(tree_lib.append_chain)
ancestor_mask = jax.jit(tree_lib.ancestor_mask)
pack = jax.jit(tree_lib.pack)
spine_end = jax.jit(tree_lib.spine_end)
spine_tokens = jax.jit(tree_lib.spine_tokens)


def i32(values):
    return jnp.asarray(np.array(values, np.int32))


def f32(values):
    return jnp.asarray(np.array(values, np.float32))


def trunk(count, slots=SLOTS):
    """Rows whose histories end in "the cat", ``count`` of them in the trunk."""
    rows = len(count)
    history = history_lib.create(i32([[9, THE, CAT]] * rows), i32([3] * rows), 3)
    return tree_lib.trunk(history, i32([3 - n for n in count]), i32(count), slots)


def picture(rows=1):
    """The tree of the module's docstring, in ``rows`` rows."""
    return append(
        trunk([2] * rows),
        token=i32([[SAT, RAN, ON]] * rows),
        parent=i32([NO, NO, 0]),
        count=i32([3] * rows),
        tag=i32([7, 8, 9]),
        confidence=f32([[0.5, 0.25, 0.75]] * rows),
        anchor=i32([1] * rows),
    )


def test_trunk():
    tree = trunk([2, 1, 0])
    np.testing.assert_array_equal(tree.token[:, :2], [[THE, CAT], [CAT, 0], [0, 0]])
    np.testing.assert_array_equal(tree.parent[:, :2], [[NO, 0], [NO, NO], [NO, NO]])
    np.testing.assert_array_equal(tree.num_nodes, [2, 1, 0])
    assert not np.any(tree_lib.draft_mask(tree))
    np.testing.assert_array_equal(tree_lib.node_mask(tree).sum(axis=1), [2, 1, 0])


def test_picture():
    tree = picture()
    np.testing.assert_array_equal(tree.token, [[THE, CAT, SAT, RAN, ON, 0]])
    np.testing.assert_array_equal(tree.parent, [[NO, 0, 1, 1, 2, NO]])
    np.testing.assert_array_equal(tree.depth, [[0, 1, 2, 2, 3, 0]])
    np.testing.assert_array_equal(tree.tag, [[-1, -1, 7, 8, 9, -1]])
    np.testing.assert_array_equal(tree.confidence, [[1, 1, 0.5, 0.25, 0.75, 1]])
    np.testing.assert_array_equal(tree.num_trunk, [2])
    np.testing.assert_array_equal(tree.num_nodes, [5])
    np.testing.assert_array_equal(
        tree_lib.draft_mask(tree), np.array([[0, 0, 1, 1, 1, 0]], bool)
    )


def test_picture_of_the_mask():
    expected = [
        [1, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0],
        [1, 1, 0, 1, 0, 0],
        [1, 1, 1, 0, 1, 0],
        [0, 0, 0, 0, 0, 1],
    ]
    np.testing.assert_array_equal(ancestor_mask(picture())[0], np.array(expected, bool))


@st.composite
def parents(draw, slots):
    count = draw(st.integers(0, slots))
    return [draw(st.integers(0, slot - 1)) if slot else NO for slot in range(count)]


def planted(rows, slots):
    """Trees with these parents; token, tag and confidence name the slot."""
    padded = np.full((len(rows), slots), NO, np.int32)
    depth = np.zeros((len(rows), slots), np.int32)
    for at, row in enumerate(rows):
        padded[at, : len(row)] = row
        for slot, parent in enumerate(row[1:], 1):
            depth[at, slot] = depth[at, parent] + 1
    counts = np.array([len(row) for row in rows])
    used = np.arange(slots) < counts[:, None]
    names = np.where(used, np.arange(slots), 0)
    return dataclasses.replace(
        trunk([min(n, 1) for n in counts], slots),
        token=i32(names),
        parent=i32(padded),
        depth=i32(depth),
        tag=i32(np.where(used, names, -1)),
        confidence=f32(np.where(used, 1 / (1 + names), 1)),
        num_nodes=i32(counts),
    )


@pytest.mark.parametrize("slots", [1, 7, 33])
def test_mask_is_ancestry(slots):
    chain = [NO, *range(slots - 1)]

    @given(parents(slots), parents(slots))
    def check(first, second):
        rows = [chain, first, second]
        mask = np.asarray(ancestor_mask(planted(rows, slots)))
        for at, row in enumerate(rows):
            expected = np.eye(slots, dtype=bool)
            for slot, parent in enumerate(row):
                if parent >= 0:
                    expected[slot] |= expected[parent]
            np.testing.assert_array_equal(mask[at], expected)

    check()


def test_append_leaves_out_what_does_not_fit():
    tree = append_chain(
        picture(2),
        token=i32([[6, 7, 8]] * 2),
        count=i32([3, 0]),
        confidence=f32([[0.5] * 3] * 2),
        anchor=i32([3, 3]),
    )
    np.testing.assert_array_equal(tree.token[0], [THE, CAT, SAT, RAN, ON, 6])
    np.testing.assert_array_equal(tree.parent[0], [NO, 0, 1, 1, 2, 3])
    np.testing.assert_array_equal(tree.depth[0], [0, 1, 2, 2, 3, 3])
    np.testing.assert_array_equal(tree.num_nodes, [6, 5])
    for one, two in zip(
        jax.tree.leaves(tree), jax.tree.leaves(picture(2)), strict=True
    ):
        np.testing.assert_array_equal(one[1], two[1])


def test_append_chain_hangs_under_the_anchor_of_each_row():
    tree = append_chain(
        trunk([2, 1], 5),
        token=i32([[6, 7, 8], [3, 4, 5]]),
        count=i32([2, 3]),
        confidence=f32([[0.5, 0.4, 0.3]] * 2),
        anchor=i32([1, 0]),
    )
    np.testing.assert_array_equal(tree.token, [[THE, CAT, 6, 7, 0], [CAT, 3, 4, 5, 0]])
    np.testing.assert_array_equal(tree.parent, [[NO, 0, 1, 2, NO], [NO, 0, 1, 2, NO]])
    np.testing.assert_array_equal(tree.tag, [[-1, -1, 0, 1, -1], [-1, 0, 1, 2, -1]])


def test_laws_of_several_drafters_go_behind_each_other():
    def more(tree, tokens, **laws):
        return append_chain(
            tree,
            token=i32([tokens]),
            count=i32([len(tokens)]),
            confidence=f32([[1.0] * len(tokens)]),
            anchor=spine_end(tree),
            **laws,
        )

    first, second = f32(np.eye(4)[None, :1]), f32(np.eye(4)[None, 1:3])
    tree = more(trunk([1], 7), [1])
    assert tree.law is None
    tree = more(tree, [2], law=i32([0]), laws=first)
    tree = more(tree, [3])
    tree = more(tree, [0, 1, 2], law=i32([1, -1, 0]), laws=second)
    np.testing.assert_array_equal(tree.law, [[-1, -1, 0, -1, 2, -1, 1]])
    np.testing.assert_array_equal(tree.laws, np.eye(4)[None, :3])
    kept = pack(tree, jnp.asarray(np.arange(7)[None] < 5))
    np.testing.assert_array_equal(kept.law, [[-1, -1, 0, -1, 2, -1, -1]])
    np.testing.assert_array_equal(tree_lib.cut(tree, 3).law, [[-1, -1, 0]])


def test_law_without_laws_is_refused():
    with pytest.raises(ValueError, match="law and laws belong together"):
        tree_lib.append_chain(
            trunk([1]),
            token=i32([[1]]),
            count=i32([1]),
            confidence=f32([[1]]),
            anchor=i32([0]),
            law=i32([0]),
        )


def test_cut():
    tree = tree_lib.cut(picture(), 4)
    np.testing.assert_array_equal(tree.token, [[THE, CAT, SAT, RAN]])
    np.testing.assert_array_equal(tree.num_nodes, [4])
    assert tree.slots == 4
    np.testing.assert_array_equal(tree_lib.cut(picture(), 1).num_trunk, [1])


def test_pack_drops_a_branch():
    keep = jnp.asarray(np.array([[False, False, False, True, False, False]]))
    tree = pack(picture(), keep)
    np.testing.assert_array_equal(tree.token, [[THE, CAT, RAN, 0, 0, 0]])
    np.testing.assert_array_equal(tree.parent, [[NO, 0, 1, NO, NO, NO]])
    np.testing.assert_array_equal(tree.tag, [[-1, -1, 8, -1, -1, -1]])
    np.testing.assert_array_equal(tree.confidence, [[1, 1, 0.25, 1, 1, 1]])


@given(parents(7), st.lists(st.booleans(), min_size=7, max_size=7))
def test_pack_keeps_ancestry(row, lucky):
    """Whoever was an ancestor of a kept node still is; the order stays."""
    kept = []
    for slot, parent in enumerate(row):
        if slot == 0 or (parent in kept and lucky[slot]):
            kept.append(slot)
    tree = planted([row], 7)
    wanted = np.isin(np.arange(7), kept)[None]
    packed = pack(tree, jnp.asarray(wanted))
    count = len(kept)
    np.testing.assert_array_equal(packed.num_nodes, [count])
    np.testing.assert_array_equal(packed.token[0, :count], kept)
    np.testing.assert_array_equal(packed.tag[0, :count], kept)
    before, after = (np.asarray(ancestor_mask(t))[0] for t in (tree, packed))
    np.testing.assert_array_equal(after[:count, :count], before[np.ix_(kept, kept)])
    np.testing.assert_array_equal(packed.depth[0, :count], after.sum(1)[:count] - 1)


@given(parents(7), parents(7))
def test_spine_runs_through_first_children(first, second):
    rows = (first, second)
    tree = planted(rows, 7)
    ends = spine_end(tree)
    tokens, counts = spine_tokens(tree)
    for at, row in enumerate(rows):
        spine = [0]
        while spine[-1] in row:
            spine.append(row.index(spine[-1]))
        assert ends[at] == spine[-1]
        assert counts[at] == len(spine) - 1
        np.testing.assert_array_equal(tokens[at, : len(spine) - 1], spine[1:])


def test_spine_of_a_trunk():
    np.testing.assert_array_equal(spine_end(trunk([2, 1, 0])), [1, 0, 0])
    np.testing.assert_array_equal(spine_end(picture()), [4])
    np.testing.assert_array_equal(spine_tokens(picture())[0][:, :2], [[SAT, ON]])


def test_room_below_a_node():
    # With room for 3 tokens drafts may lie 2 deep: two levels under the trunk's end,
    # one under "sat" and none under "on".
    tree = picture(3)
    levels = tree_lib.room_below(tree, i32([1, 2, 4]), i32([3, 3, 3]))
    np.testing.assert_array_equal(levels, [2, 1, 0])
