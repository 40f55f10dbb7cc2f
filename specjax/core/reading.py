"""Logits of a tree's nodes, computed where a verifier asks for them."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from specjax.core import tree as tree_lib

LogitsAt = Callable[[jax.Array], jax.Array]

# Chance of the first draft from which four rows at once, which cost 1.4 to 1.5 of one
# (SmolLM2's head on a CPU), are cheaper than one and then another where it is kept.
_LIKELY = 0.4


def logits_at(
    head: Callable[[jax.Array], jax.Array],
    hidden: jax.Array,
    tree: tree_lib.TokenTree,
    ahead: int = 1,
) -> LogitsAt:
    """Slots i32[B] -> logits f32[B, V] after them.

    Where some rows of the head cost hardly more than one, because its weights are
    read once for all, those of the spine's first slots are computed together before
    they are asked for, if the first draft is likely to be kept.

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
    first = jnp.maximum(spine[:, 1:2], 0)
    chance = jnp.take_along_axis(tree.confidence, first, axis=1)[:, 0]
    likely = jnp.any((spine[:, 1] >= 0) & (chance >= _LIKELY))

    def together(hidden: jax.Array) -> jax.Array:  # f32[B, count, V]
        at = jnp.maximum(spine, 0)[:, :, None]
        taken = jnp.take_along_axis(hidden, at, axis=1)
        return head(taken.reshape(rows * count, -1)).reshape(rows, count, -1)

    shape = jax.eval_shape(together, hidden)
    known = jax.lax.cond(
        likely, together, lambda hidden: jnp.zeros(shape.shape, shape.dtype), hidden
    )

    def read(slot: jax.Array) -> jax.Array:
        found = spine == slot[:, None]
        at = jnp.argmax(found, axis=1)
        return jax.lax.cond(
            likely & jnp.all(jnp.any(found, axis=1)),
            lambda: jnp.take_along_axis(known, at[:, None, None], axis=1)[:, 0],
            lambda: single(slot),
        )

    return read
