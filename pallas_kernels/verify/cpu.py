"""The op by native code, on CPU: see cpu.cc."""

import jax
import jax.numpy as jnp

from pallas_kernels.native import build


def available() -> bool:
    """Whether the native code is there; the first call compiles it."""
    return build.load("verify", ["argmax_f32", "log_sum_exp_f32"])


def argmax(scores: jax.Array) -> jax.Array:
    """See ``api.argmax``; scores are f32."""
    result = jax.ShapeDtypeStruct(scores.shape[:1], jnp.int32)
    return jax.ffi.ffi_call("argmax_f32", result, vmap_method="sequential")(scores)


def log_sum_exp(logits: jax.Array) -> jax.Array:
    """See ``api.log_sum_exp``; logits are f32."""
    result = jax.ShapeDtypeStruct(logits.shape[:1], jnp.float32)
    return jax.ffi.ffi_call("log_sum_exp_f32", result, vmap_method="sequential")(logits)
