"""Counters of one round."""

import jax.numpy as jnp
import numpy as np

from specjax.core import contracts, outcome, stats
from specjax.core import tree as tree_lib


def i32(values):
    return jnp.asarray(np.array(values, np.int32))


def test_one_round():
    """Row 0 keeps slots 1 and 3, row 1 none, row 2 sits out."""
    sources = (contracts.Source("first", 2), contracts.Source("second", 2))
    drafter = contracts.Drafter(
        None, None, None, contracts.Bounds(4, 3, 2), contracts.Needs(), sources
    )
    tree = tree_lib.TokenTree(
        token=i32([[0, 1, 2, 3, 4]] * 3),
        parent=i32([[-1, 0, 0, 1, 1]] * 3),
        depth=i32([[0, 1, 1, 2, 2]] * 3),
        tag=i32([[-1, 0, 2, 1, 3]] * 3),
        confidence=jnp.ones((3, 5)),
        num_trunk=i32([1, 1, 1]),
        num_nodes=i32([5, 3, 5]),
    )
    verdict = outcome.Outcome(
        path_slot=i32([[0, 1, 3], [0, 0, 0], [0, 0, 0]]),
        num_path=i32([3, 1, 1]),
        token=i32([[1, 3, 9], [7, 0, 0], [0, 0, 0]]),
        num_new=i32([3, 1, 0]),
        log_prob=jnp.zeros((3, 3)),
    )
    found = stats.record(
        stats.zeros(3, drafter, 2), tree, verdict, drafter, jnp.int32(1)
    )
    np.testing.assert_array_equal(found.target_calls, [1, 1, 0])
    np.testing.assert_array_equal(found.drafted, [4, 2, 0])
    np.testing.assert_array_equal(found.accepted, [2, 0, 0])
    np.testing.assert_array_equal(found.accepted_at, [[1, 1, 0], [0] * 3, [0] * 3])
    np.testing.assert_array_equal(found.drafted_by, [[2, 2], [1, 1], [0, 0]])
    np.testing.assert_array_equal(found.accepted_by, [[2, 0], [0, 0], [0, 0]])
    np.testing.assert_array_equal(found.rung, [[0, 1], [0, 1], [0, 0]])
