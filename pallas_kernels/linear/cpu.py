"""The op by native code, on CPU: see cpu.cc."""

import jax
import jax.numpy as jnp

from pallas_kernels.linear import formats
from pallas_kernels.native import build


def available() -> bool:
    """Whether the native code is there; the first call compiles it."""
    return build.load("linear", [f"linear_{kind}" for kind in formats.FORMATS])


def linear(x: jax.Array, weight: formats.Packed) -> jax.Array:
    """See ``api.linear``; x is f32[N, K]."""
    result = jax.ShapeDtypeStruct((x.shape[0], weight.shape[1]), jnp.float32)
    call = jax.ffi.ffi_call(f"linear_{weight.kind}", result, vmap_method="sequential")
    return call(x, weight.rows)
