"""The op by native code, on CPU: see cpu.cc."""

import jax
import jax.numpy as jnp

from pallas_kernels.native import build


def available() -> bool:
    """Whether the native code is there; the first call compiles it."""
    return build.load("threshold", ["top_k_f32", "top_p_f32"])


def top_k(values: jax.Array, count: jax.Array) -> jax.Array:
    """See ``api.top_k``; values are f32."""
    return _call("top_k_f32", values, count.astype(jnp.int32))


def top_p(weights: jax.Array, share: jax.Array) -> jax.Array:
    """See ``api.top_p``; weights are f32."""
    return _call("top_p_f32", weights, share.astype(jnp.float32))


def _call(name: str, numbers: jax.Array, limit: jax.Array) -> jax.Array:
    result = jax.ShapeDtypeStruct(numbers.shape[:1], jnp.float32)
    return jax.ffi.ffi_call(name, result, vmap_method="sequential")(numbers, limit)
