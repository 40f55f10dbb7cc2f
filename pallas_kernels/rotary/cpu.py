"""The op by native code, on CPU: see cpu.cc."""

import jax
import jax.numpy as jnp

from pallas_kernels.native import build


def available() -> bool:
    """Whether the native code is there; the first call compiles it."""
    return build.load("rotary", ["split_heads_f32"])


def split_heads(qkv: jax.Array, cos: jax.Array, sin: jax.Array):
    """See ``api.split_heads``; all f32."""
    rows, nodes, groups, parts, size = qkv.shape
    key = jax.ShapeDtypeStruct((rows, groups, nodes, size), jnp.float32)
    query = jax.ShapeDtypeStruct((rows, groups, parts - 2, nodes, size), jnp.float32)
    call = jax.ffi.ffi_call(
        "split_heads_f32", (query, key, key), vmap_method="sequential"
    )
    return call(qkv, cos, sin)
