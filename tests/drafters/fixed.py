"""A drafter that always drafts the same small tree, for tests of combinators."""

import functools

import jax.numpy as jnp
import numpy as np

from specjax.core import contracts
from specjax.core import tree as tree_lib


@functools.cache
def fixed(*nodes, name="fixed", branching=None, top_k=0, features=()):
    """Drafts ``nodes``, tuples (token, parent, confidence), wherever they fit.

    Its state counts the drafts i32[B] that it was shown as its own, and notes the
    widths of the features and top ids that it got.
    """
    token = np.array([n[0] for n in nodes], np.int32)
    parent = np.array([n[1] for n in nodes], np.int32)
    chance = np.array([n[2] for n in nodes], np.float32)
    depth = []
    for at in parent:
        depth.append(1 if at < 0 else depth[at] + 1)
    depth = np.array(depth, np.int32)
    assert list(depth) == sorted(depth)  # so that a cut by depth is a prefix

    def init(params, rows, capacity):
        return jnp.zeros((rows,), jnp.int32)

    def propose(params, state, view, tree):
        fits = jnp.asarray(depth)[None] < view.room[:, None]
        rows = fits.shape[0]
        tree = tree_lib.append(
            tree,
            token=jnp.broadcast_to(jnp.asarray(token), (rows, len(nodes))),
            parent=jnp.asarray(parent),
            count=jnp.sum(fits, axis=1, dtype=jnp.int32),
            tag=jnp.arange(len(nodes), dtype=jnp.int32),
            confidence=jnp.broadcast_to(jnp.asarray(chance), (rows, len(nodes))),
            anchor=tree_lib.spine_end(tree),
        )
        return tree, state

    def observe(params, state, view, tree, outcome):
        if outcome.top_ids is not None:
            assert outcome.top_ids.shape[2] == top_k
        assert (outcome.features is None) == (not features)
        mine = (tree.tag >= 0) & tree_lib.draft_mask(tree)
        return state + jnp.sum(mine, axis=1, dtype=jnp.int32)

    _, children = np.unique(parent, return_counts=True)
    return contracts.Drafter(
        init=init,
        propose=propose,
        observe=observe,
        bounds=contracts.Bounds(
            nodes=len(nodes),
            depth=int(depth.max()),
            branching=branching or int(children.max()),
        ),
        needs=contracts.Needs(top_k=top_k, features=features),
        sources=(contracts.Source(name, len(nodes)),),
    )
