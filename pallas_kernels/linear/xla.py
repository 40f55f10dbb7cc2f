"""The op in plain jnp: runs anywhere, and decodes all weights at every call."""

import jax
import jax.numpy as jnp

from pallas_kernels.linear import formats, tiled


def linear(x: jax.Array, weight: formats.Packed | tiled.Tiled) -> jax.Array:
    """See ``api.linear``; x is f[N, K]."""
    if isinstance(weight, tiled.Tiled):
        weights, inputs = tiled.decode(weight), 0
    else:
        weights, inputs = formats.decode(weight), 1
    return jax.lax.dot_general(
        x,
        weights.astype(x.dtype),
        (((1,), (inputs,)), ((), ())),
        preferred_element_type=jnp.float32,
    ).astype(x.dtype)
