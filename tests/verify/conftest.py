"""Small trees and table targets, shared by the tests of the rules."""

import jax.numpy as jnp
import numpy as np
import pytest

from specjax.core import tree as tree_lib


@pytest.fixture(scope="session")
def plant():
    """(rows of (token, parent slot) pairs, slots) -> TokenTree, trunk first."""
    return _plant


@pytest.fixture(scope="session")
def contexts():
    """A row of pairs -> for each node the tokens from slot 0 to it."""
    return _contexts


@pytest.fixture(scope="session")
def table():
    """(rows of pairs, slots, V) -> hidden f32[B, N, V]: the logits of each context."""
    return _table


@pytest.fixture(scope="session")
def logits_of():
    """(context, V) -> f32[V], a fixed random function."""
    return _logits_of


def _plant(rows, slots, num_trunk=1):
    fields = {
        name: np.zeros((len(rows), slots), np.int32) for name in ("token", "depth")
    }
    parents = np.full((len(rows), slots), tree_lib.NO_PARENT, np.int32)
    tags = np.full((len(rows), slots), tree_lib.NO_TAG, np.int32)
    for at, row in enumerate(rows):
        for slot, (token, parent) in enumerate(row):
            fields["token"][at, slot] = token
            parents[at, slot] = parent
            if parent >= 0:
                fields["depth"][at, slot] = fields["depth"][at, parent] + 1
            if slot >= num_trunk:
                tags[at, slot] = slot - num_trunk
    return tree_lib.TokenTree(
        token=jnp.asarray(fields["token"]),
        parent=jnp.asarray(parents),
        depth=jnp.asarray(fields["depth"]),
        tag=jnp.asarray(tags),
        confidence=jnp.asarray(np.ones((len(rows), slots), np.float32)),
        num_trunk=jnp.asarray(np.full(len(rows), num_trunk, np.int32)),
        num_nodes=jnp.asarray(np.array([len(row) for row in rows], np.int32)),
    )


def _contexts(row):
    found = []
    for token, parent in row:
        found.append((*(found[parent] if parent >= 0 else ()), token))
    return found


def _logits_of(context, vocab_size):
    seed = [vocab_size, *context]
    return np.random.default_rng(seed).normal(0, 1.5, vocab_size).astype(np.float32)


def _table(rows, slots, vocab_size):
    hidden = np.zeros((len(rows), slots, vocab_size), np.float32)
    for at, row in enumerate(rows):
        for slot, context in enumerate(_contexts(row)):
            hidden[at, slot] = _logits_of(context, vocab_size)
    return jnp.asarray(hidden)
