"""The op by native code, on CPU: see cpu.cc."""

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.native import build


def available() -> bool:
    """Whether the native code is there; the first call compiles it."""
    return build.load("tree_attention", ["tree_attention_f32"])


def tree_attention(
    q, k, v, k_cache, v_cache, *, length, depth, mask, scale, window, cap, layer
) -> jax.Array:
    """See ``api.tree_attention``; all f32."""
    if layer is None:
        k_cache, v_cache, layer = k_cache[:, None], v_cache[:, None], 0
    rows, groups, heads, nodes, size = q.shape
    result = jax.ShapeDtypeStruct((rows, nodes, groups, heads, size), jnp.float32)
    call = jax.ffi.ffi_call("tree_attention_f32", result, vmap_method="sequential")
    return call(
        q,
        k,
        v,
        k_cache,
        v_cache,
        length,
        depth,
        mask,
        jnp.asarray(window, jnp.int32),
        jnp.asarray(layer, jnp.int32),
        scale=np.float32(scale),
        cap=np.float32(cap),
    )
