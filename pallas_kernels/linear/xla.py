"""The op in plain jnp: runs anywhere, and decodes all weights at every call."""

import jax
import jax.numpy as jnp

from pallas_kernels.linear import formats, tiled


def linear(x: jax.Array, weight: formats.Packed | tiled.Tiled) -> jax.Array:
    """Sums f32[N, M] of ``api.linear``; x is f[N, K]."""
    if isinstance(weight, formats.Packed):
        return _dot(x, formats.decode(weight), 1)
    weight = tiled.of_layer(weight)
    if weight.kind != "int8":
        return _dot(x, tiled.decode(weight), 0)
    # Scaled after the product, so that the weights are read as they lie.
    made = _dot(x, weight.whole, 0) * weight.scale[0]
    return made[:, : weight.outputs]


def _dot(x, weights, inputs):
    return jax.lax.dot_general(
        x,
        weights.astype(x.dtype),
        (((1,), (inputs,)), ((), ())),
        preferred_element_type=jnp.float32,
    )
