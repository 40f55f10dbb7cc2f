"""Logits of a tree's nodes, computed where a verifier asks for them."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from specjax.core import tree as tree_lib

LogitsAt = Callable[[jax.Array], jax.Array]


def logits_at(
    head: Callable[[jax.Array], jax.Array],
    hidden: jax.Array,
    tree: tree_lib.TokenTree,
    ahead: int = 1,
) -> LogitsAt:
    """Slots i32[B] -> logits f32[B, V] after them.

    Where some rows of the head cost hardly more than one, because its weights are
    read once for all, those of the spine's first slots are computed together before
    they are asked for: a path mostly begins there.

    Args:
      head: hidden f[n, E] -> logits f32[n, V].
      hidden: f[B, N, E], of all nodes.
      tree: the nodes.
      ahead: rows of the head to compute at once over the whole batch, static; more
        than one only of a head whose rows do not depend on how many there are.
    """

    def single(slot: jax.Array) -> jax.Array:
        return head(jnp.take_along_axis(hidden, slot[:, None, None], axis=1)[:, 0])

    rows = hidden.shape[0]
    count = min(ahead // rows, tree.slots)
    if count < 2:
        return single
    spine = tree_lib.spine(tree, count)
    drafted = jnp.any(spine[:, 1] >= 0)

    def together(hidden: jax.Array) -> jax.Array:  # f32[B, count, V]
        at = jnp.maximum(spine, 0)[:, :, None]
        taken = jnp.take_along_axis(hidden, at, axis=1)
        return head(taken.reshape(rows * count, -1)).reshape(rows, count, -1)

    shape = jax.eval_shape(together, hidden)
    known = jax.lax.cond(
        drafted, together, lambda hidden: jnp.zeros(shape.shape, shape.dtype), hidden
    )

    def read(slot: jax.Array) -> jax.Array:
        found = spine == slot[:, None]
        at = jnp.argmax(found, axis=1)
        return jax.lax.cond(
            drafted & jnp.all(jnp.any(found, axis=1)),
            lambda: jnp.take_along_axis(known, at[:, None, None], axis=1)[:, 0],
            lambda: single(slot),
        )

    return read
