"""Static tree shapes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.core import history as history_lib
from specjax.core import template as template_lib
from specjax.core import tree as tree_lib

PICTURE = [(1,), (0, 0), (0, 0, 0), (0,), (1, 0), (0, 1)]
append_template = jax.jit(template_lib.append_template, static_argnames="template")


def i32(values):
    return jnp.asarray(np.array(values, np.int32))


def trunk(rows, slots):
    history = history_lib.create(i32([[5, 6]] * rows), i32([2] * rows), 2)
    return tree_lib.trunk(history, i32([0] * rows), i32([2] * rows), slots)


def test_picture():
    template = template_lib.from_choices(PICTURE)
    expected = ((0,), (1,), (0, 0), (0, 1), (1, 0), (0, 0, 0))
    assert template.choices == expected
    np.testing.assert_array_equal(template.parent, [-1, -1, 0, 0, 1, 2])
    np.testing.assert_array_equal(template.depth, [1, 1, 2, 2, 2, 3])
    np.testing.assert_array_equal(template.rank, [0, 1, 0, 1, 0, 0])
    assert template.bounds == (6, 3, 2)


def test_branching_counts_children_not_ranks():
    template = template_lib.from_choices([(0,), (3,), (3, 9)])
    assert template.bounds == (3, 2, 2)


def test_count_within_a_depth():
    template = template_lib.from_choices(PICTURE)
    found = template.count_within(i32([-1, 0, 1, 2, 3, 9]))
    np.testing.assert_array_equal(found, [0, 0, 2, 5, 6, 6])


def test_append():
    template = template_lib.from_choices(PICTURE)
    tree = append_template(
        trunk(2, 8),
        template=template,
        token=i32([[10, 11, 12, 13, 14, 15]] * 2),
        count=i32([6, 2]),
        confidence=jnp.full((2, 6), 0.5),
        anchor=i32([1, 1]),
    )
    np.testing.assert_array_equal(tree.token[0], [5, 6, 10, 11, 12, 13, 14, 15])
    np.testing.assert_array_equal(tree.parent[0], [-1, 0, 1, 1, 2, 2, 3, 4])
    np.testing.assert_array_equal(tree.depth[0, 2:], 1 + template.depth)
    np.testing.assert_array_equal(tree.tag[0, 2:], np.arange(6))
    np.testing.assert_array_equal(tree.num_nodes, [8, 4])


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ([], "at least one path"),
        ([(0,), ()], "one or more ranks"),
        ([(0,), (-1,)], "one or more ranks"),
        ([(0,), (1, 0)], r"choice \(1, 0\) needs its parent \(1,\)"),
        ([(0,), (1,), [0]], r"choice \(0,\) stands more than once"),
    ],
)
def test_bad_choices(choices, message):
    with pytest.raises(ValueError, match=message):
        template_lib.from_choices(choices)


def test_the_tree_that_catches_most_of_what_was_seen():
    ranks = np.array([[0, 1, -1], [0, 1, 0], [2, 0, 0], [2, -1, 0], [0, 0, 3]])
    # (0,) 3 times, (0, 1) and (2,) twice, the rest once; the shorter first.
    made = template_lib.from_ranks(ranks, 4)
    assert set(made.choices) == {(0,), (2,), (0, 1), (0, 0)}
    assert len(template_lib.from_ranks(ranks, 99).choices) == 8


@pytest.mark.parametrize(
    ("ranks", "nodes", "message"),
    [([[0]], 0, "nodes must be at least 1"), ([[-1, 0]], 3, "at least one path")],
)
def test_bad_ranks(ranks, nodes, message):
    with pytest.raises(ValueError, match=message):
        template_lib.from_ranks(np.array(ranks), nodes)
