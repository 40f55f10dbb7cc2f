"""Logits where a verifier asks for them, single and some at once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.core import reading
from specjax.core import tree as tree_lib

WEIGHT = np.random.default_rng(0).normal(size=(3, 7)).astype(np.float32)
HIDDEN = np.random.default_rng(1).normal(size=(1, 6, 3)).astype(np.float32)
# Trunk 0, 1; under 1 the drafts 2 and 3; 4 under 3; 5 under 2: the spine is 1, 2, 5.
PARENT = [-1, 0, 1, 1, 3, 2]


def forked(num_nodes: int = 6, confidence: float = 1.0) -> tree_lib.TokenTree:
    blank = jnp.zeros((1, 6), jnp.int32)
    return tree_lib.TokenTree(
        token=blank,
        parent=jnp.asarray([PARENT], jnp.int32),
        depth=jnp.asarray([[0, 1, 2, 2, 3, 3]], jnp.int32),
        tag=blank,
        confidence=jnp.full((1, 6), confidence, jnp.float32),
        law=jnp.full((1, 6), -1, jnp.int32),
        laws=jnp.zeros((1, 0, 7), jnp.float32),
        num_trunk=jnp.asarray([2], jnp.int32),
        num_nodes=jnp.asarray([num_nodes], jnp.int32),
    )


class Head:
    """A head that counts, as a program would, the rows that it was run over."""

    def __init__(self):
        self.rows = 0

    def __call__(self, hidden):
        jax.debug.callback(self._count, hidden)
        return hidden @ jnp.asarray(WEIGHT)

    def _count(self, hidden):
        self.rows += hidden.shape[0]


def read(head, slots, *, ahead, **kind):
    """Logits after each of the slots, asked for one after the other in a program."""

    @jax.jit
    def run(hidden, tree):
        logits_at = reading.logits_at(head, hidden, tree, ahead)
        return [logits_at(jnp.asarray([slot], jnp.int32))[0] for slot in slots]

    made = jax.block_until_ready(run(jnp.asarray(HIDDEN), forked(**kind)))
    jax.effects_barrier()
    return np.stack(made)


@pytest.mark.parametrize("ahead", [1, 2, 3, 4, 99])
def test_every_slot_has_its_own_logits(ahead):
    found = read(Head(), range(6), ahead=ahead)
    np.testing.assert_allclose(found, HIDDEN[0] @ WEIGHT, atol=1e-5)


def test_the_spine_costs_one_product():
    head = Head()
    read(head, [1, 2, 5], ahead=3)
    assert head.rows == 3


def test_a_slot_off_the_spine_costs_a_row_more():
    head = Head()
    read(head, [1, 3], ahead=3)
    assert head.rows == 3 + 1


@pytest.mark.parametrize("confidence", [0.0, 0.39])
def test_an_unlikely_draft_costs_a_row_only_if_it_is_kept(confidence):
    for slots in ([1], [1, 2, 5]):
        head = Head()
        found = read(head, slots, ahead=3, confidence=confidence)
        np.testing.assert_allclose(found, HIDDEN[0, slots] @ WEIGHT, atol=1e-5)
        assert head.rows == len(slots)


def test_without_drafts_one_row_is_computed():
    head = Head()
    read(head, [1], ahead=3, num_nodes=2)
    assert head.rows == 1


def test_rows_at_once_are_those_of_the_whole_batch():
    hidden = jnp.zeros((3, 6, 3), jnp.float32)
    shapes = []

    def head(hidden):
        shapes.append(hidden.shape)
        return hidden @ jnp.asarray(WEIGHT)

    tree = jax.tree.map(lambda x: jnp.repeat(x, 3, axis=0), forked())
    logits_at = reading.logits_at(head, hidden, tree, 5)
    logits_at(jnp.zeros((3,), jnp.int32))
    assert shapes == [(3, 3)]  # five rows hold no second slot of all three


def test_the_spine_is_first_children_and_then_nothing():
    assert tree_lib.spine(forked(), 5).tolist() == [[1, 2, 5, -1, -1]]
