"""A whole drafter as an example: remember what followed each token."""

import functools

import jax
import jax.numpy as jnp

from specjax.core import contracts
from specjax.core import tree as tree_lib


@functools.cache
def bigram(*, vocab_size: int, max_draft: int = 3) -> contracts.Drafter:
    """Drafts a chain by a table i32[B, V] of each token's last successor."""

    def init(params, rows, capacity):
        return jnp.full((rows, vocab_size), -1, jnp.int32)

    def propose(params, table, view, tree):
        lookup = jax.vmap(lambda row, at: row[at])
        anchor = tree_lib.spine_end(tree)
        levels = tree_lib.room_below(tree, anchor, view.room)
        token, chain = lookup(tree.token, anchor), []
        known = levels > 0
        count = jnp.zeros_like(token)
        for depth in range(max_draft):
            token = lookup(table, jnp.maximum(token, 0))
            known &= (token >= 0) & (levels > depth)
            count += known.astype(jnp.int32)
            chain.append(token)
        token = jnp.maximum(jnp.stack(chain, axis=1), 0)
        confidence = jnp.full(token.shape, 0.5, jnp.float32)
        tree = tree_lib.append_chain(
            tree, token=token, count=count, confidence=confidence, anchor=anchor
        )
        return tree, table

    def observe(params, table, view, tree, outcome):
        path = jnp.take_along_axis(tree.token, outcome.path_slot, axis=1)
        inside = jnp.arange(path.shape[1])[None] < outcome.num_path[:, None]
        at = jnp.where(inside, path, vocab_size)  # out of range is dropped
        put = jax.vmap(lambda row, at, new: row.at[at].set(new, mode="drop"))
        return put(table, at, outcome.token)

    bounds = contracts.Bounds(nodes=max_draft, depth=max_draft, branching=1)
    source = contracts.Source("bigram", max_draft)
    return contracts.Drafter(
        init, propose, observe, bounds, contracts.Needs(), (source,)
    )
