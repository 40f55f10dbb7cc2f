"""The op by native code, on CPU: see cpu.cc."""

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.native import build


def available() -> bool:
    """Whether the native code is there; the first call compiles it."""
    return build.load("rms_norm", ["rms_norm_f32"])


def rms_norm(x: jax.Array, weight: jax.Array, *, eps: float) -> jax.Array:
    """See ``api.rms_norm``; all f32."""
    result = jax.ShapeDtypeStruct(x.shape, jnp.float32)
    call = jax.ffi.ffi_call("rms_norm_f32", result, vmap_method="sequential")
    return call(x, weight, eps=np.float32(eps))
