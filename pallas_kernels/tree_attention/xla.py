"""The op in plain jnp: runs anywhere.

The tree's own rows come first, then blocks of the cache are merged into a running
log-sum-exp; the trip count follows the longest row.
"""

from typing import Any

import jax
import jax.numpy as jnp

BLOCK = 512
_NEGATIVE = float(jnp.finfo(jnp.float32).min)


def tree_attention(
    q,
    k,
    v,
    k_cache,
    v_cache,
    *,
    length,
    depth,
    mask,
    scale,
    window,
    cap,
    layer,
    log_sum_exp=False,
) -> Any:
    """See ``api.tree_attention``, with ``log_sum_exp`` ``api.part``: a pair then."""
    rows, groups, heads, nodes, size = q.shape
    packed = q.reshape(rows, groups, heads * nodes, size)
    slots = k_cache.shape[-2]
    block = min(BLOCK, slots)
    windowed = not (isinstance(window, int) and window == 0)

    def scores(keys, visible):
        """Masked scores f32[B, G, R*N, keys] for visible bool[B, N, keys]."""
        raw = jnp.einsum(
            "bgmd,bgsd->bgms", packed, keys, preferred_element_type=jnp.float32
        )
        raw = raw * scale
        if cap:
            raw = cap * jnp.tanh(raw / cap)
        shown = jnp.tile(visible, (1, heads, 1))[:, None]  # bool[B, 1, R*N, keys]
        return jnp.where(shown, raw, _NEGATIVE)

    def mix(weights, values):
        return jnp.einsum(
            "bgms,bgsd->bgmd",
            weights.astype(values.dtype),
            values,
            preferred_element_type=jnp.float32,
        )

    def in_window(distance):
        return (distance < window) | (window == 0) if windowed else True

    def read(cache, start):
        if layer is None:
            return jax.lax.dynamic_slice_in_dim(cache, start, block, axis=2)
        sizes = (rows, 1, groups, block, size)
        at = (0, layer, 0, start, 0)
        return jax.lax.dynamic_slice(cache, at, sizes)[:, 0]

    own = mask & in_window(depth[:, :, None] - depth[:, None, :])
    first = scores(k, own)
    top = jnp.max(first, axis=-1, keepdims=True)  # f32[B, G, R*N, 1]
    weights = jnp.exp(first - top)
    total = jnp.sum(weights, axis=-1, keepdims=True)
    mixed = mix(weights, v)  # f32[B, G, R*N, D]

    position = length[:, None] + depth  # i32[B, N]
    offset = jnp.arange(block, dtype=jnp.int32)

    def merge(index, carry):
        top, total, mixed = carry
        start = index * block
        at = (start + offset)[None, None]  # i32[1, 1, block]
        visible = at < length[:, None, None]
        visible = visible & in_window(position[:, :, None] - at)
        visible = jnp.broadcast_to(visible, (rows, nodes, block))
        new = scores(read(k_cache, start), visible)
        new_top = jnp.maximum(top, jnp.max(new, axis=-1, keepdims=True))
        shrink = jnp.exp(top - new_top)
        weights = jnp.exp(new - new_top)
        total = total * shrink + jnp.sum(weights, axis=-1, keepdims=True)
        mixed = mixed * shrink + mix(weights, read(v_cache, start))
        return new_top, total, mixed

    last = (jnp.max(length) + block - 1) // block
    if windowed:
        oldest = jnp.maximum(jnp.min(length) - window, 0) // block
        begin = jnp.where(jnp.asarray(window) == 0, 0, oldest).astype(jnp.int32)
    else:
        begin = jnp.int32(0)
    carry = jax.lax.fori_loop(begin, last, merge, (top, total, mixed))
    top, total, mixed = carry
    out = mixed / total
    if log_sum_exp:  # a part may see nothing
        nothing = top == _NEGATIVE
        out = jnp.where(nothing, 0.0, out)
        logs = jnp.where(nothing, -jnp.inf, top + jnp.log(total))
        logs = logs.reshape(rows, groups, heads, nodes).transpose(0, 3, 1, 2)
    out = out.reshape(rows, groups, heads, nodes, size).transpose(0, 3, 1, 2, 4)
    out = out.astype(q.dtype)
    return (out, logs) if log_sum_exp else out
