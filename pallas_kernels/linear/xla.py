"""The op in plain jnp: runs anywhere, and decodes all weights at every call."""

import jax
import jax.numpy as jnp

from pallas_kernels.linear import formats


def linear(x: jax.Array, weight: formats.Packed) -> jax.Array:
    """See ``api.linear``; x is f[N, K]."""
    weights = formats.decode(weight).astype(x.dtype)
    return jax.lax.dot_general(
        x, weights, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32
    ).astype(x.dtype)
