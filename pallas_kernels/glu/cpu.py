"""The op by native code, on CPU: see cpu.cc."""

import jax
import jax.numpy as jnp

from pallas_kernels.native import build


def available() -> bool:
    """Whether the native code is there; the first call compiles it."""
    return build.load("glu", ["glu_silu_f32", "glu_gelu_tanh_f32"])


def glu(gate_up: jax.Array, *, activation: str) -> jax.Array:
    """See ``api.glu``; gate_up is f32."""
    shape = (*gate_up.shape[:-2], gate_up.shape[-1])
    result = jax.ShapeDtypeStruct(shape, jnp.float32)
    call = jax.ffi.ffi_call(f"glu_{activation}_f32", result, vmap_method="sequential")
    return call(gate_up)
