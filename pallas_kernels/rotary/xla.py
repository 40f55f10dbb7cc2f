"""The op in plain jnp: runs anywhere."""

import jax
import jax.numpy as jnp


def split_heads(qkv: jax.Array, cos: jax.Array, sin: jax.Array):
    """See ``api.split_heads``."""
    heads = qkv.shape[3] - 2
    q, k, v = jnp.split(qkv, [heads, heads + 1], axis=3)
    q = q.transpose(0, 2, 3, 1, 4)  # f[B, G, R, N, D]
    k = k[:, :, :, 0].transpose(0, 2, 1, 3)  # f[B, G, N, D]
    v = v[:, :, :, 0].transpose(0, 2, 1, 3)
    q = rotate(q, cos[:, None, None], sin[:, None, None])
    return q, rotate(k, cos[:, None], sin[:, None]), v


def rotate(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    """Rotates halves of the last axis.

    Args:
      x: f[B, ..., N, D].
      cos, sin: f32[B, ..., N, D / 2], broadcastable against halves of x.
    """
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    turned = jnp.concatenate(
        [first * cos - second * sin, second * cos + first * sin], axis=-1
    )
    return turned.astype(x.dtype)
