"""The op by Pallas, on GPU.

The queries of a kv head, R heads of N nodes, are packed into rows of one matrix. A
program of the grid takes a tile of them and a share of what they see: the first share
begins with the tree's own rows, and the blocks of the cache that a batch row needs are
dealt out evenly, so that a few rows keep the whole device busy. XLA merges the shares
by their log-sum-exp. Every load is masked, so nothing is padded, and nothing of the
cache's size is ever copied. Checked by value in interpret mode and lowered for CUDA,
not run.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from pallas_kernels import triton
from pallas_kernels.tree_attention import tuning_gpu

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
    tiles: tuning_gpu.Tiles | None = None,
    interpret: bool = False,
) -> Any:
    """See ``api.tree_attention``, with ``log_sum_exp`` ``api.part``: a pair then.

    Args:
      tiles: how to cut the work, chosen for the shapes if None.
      interpret: runs the kernel anywhere.
    """
    if layer is None:
        k_cache, v_cache, layer = k_cache[:, None], v_cache[:, None], 0
    rows, groups, heads, nodes, size = q.shape
    queries = heads * nodes
    if tiles is None:
        tiles = tuning_gpu.choose(
            rows * groups, k_cache.shape[3], size, queries, k_cache.dtype
        )
    window = jnp.asarray(window, jnp.int32)
    fixed = jnp.stack([jnp.asarray(layer, jnp.int32), window])
    near = (window == 0) | (depth[:, :, None] - depth[:, None, :] < window)
    seen = (mask & near).astype(jnp.int8)  # i8[B, N, N]
    shape = (tiles.shares, rows, groups, queries)
    kind = q.dtype if tiles.shares == 1 else jnp.float32
    out, logs = triton.call(
        functools.partial(_kernel, tiles=tiles, scale=scale, cap=cap),
        grid=(pl.cdiv(queries, tiles.rows) * tiles.shares, groups, rows),
        out_shape=[
            jax.ShapeDtypeStruct((*shape, size), kind),
            jax.ShapeDtypeStruct(shape, jnp.float32),
        ],
        warps=tiles.warps,
        stages=2,
        interpret=interpret,
        name="tree_attention",
    )(
        fixed,
        length,
        depth,
        seen,
        q.reshape(rows, groups, queries, size),
        k,
        v,
        k_cache,
        v_cache,
    )
    out, logs = (out[0], logs[0]) if tiles.shares == 1 else _merged(out, logs)
    out = out.astype(q.dtype).reshape(rows, groups, heads, nodes, size)
    logs = logs.reshape(rows, groups, heads, nodes)
    out, logs = out.transpose(0, 3, 1, 2, 4), logs.transpose(0, 3, 1, 2)
    return (out, logs) if log_sum_exp else out


def _merged(out, logs):
    """Attention to all shares f32[shares, ...], which have no keys in common."""
    top = jnp.max(logs, axis=0)
    top = jnp.where(top == -jnp.inf, 0.0, top)  # none sees anything
    weights = jnp.exp(logs - top[None])
    total = jnp.sum(weights, axis=0)
    part = weights / jnp.where(total == 0, 1.0, total)[None]
    return jnp.sum(part[..., None] * out, axis=0), top + jnp.log(total)


class _Sums(NamedTuple):
    """What is kept of the keys seen so far, for a tile of M queries.

    Attributes:
      top: f32[M], greatest score, the least number where there is none.
      total: f32[M], sum of weights.
      mixed: f32[M, D], sum of weighted values.
    """

    top: jax.Array
    total: jax.Array
    mixed: jax.Array


def _kernel(
    fixed,
    length,
    depth,
    seen,
    q,
    k,
    v,
    k_cache,
    v_cache,
    out,
    logs,
    *,
    tiles,
    scale,
    cap,
):
    """A share of the keys for a tile of queries of one kv head of a batch row.

    Args:
      fixed: i32[2], layer and window.
      length: i32[B].
      depth: i32[B, N].
      seen: i8[B, N, N], whether a node sees another.
      q: f[B, G, R * N, D].
      k, v: f[B, G, N, D], the tree's own rows.
      k_cache, v_cache: f[B, layers, G, S, D].
      out: f[shares, B, G, R * N, D].
      logs: f32[shares, B, G, R * N], log-sum-exp.
    """
    row, group = pl.program_id(2), pl.program_id(1)
    tile = jax.lax.div(pl.program_id(0), jnp.int32(tiles.shares))
    share = jax.lax.rem(pl.program_id(0), jnp.int32(tiles.shares))
    queries, size = q.shape[2:]
    nodes = depth.shape[1]
    layer, window, cached = fixed[0], fixed[1], length[row]

    offset = jnp.arange(tiles.block, dtype=jnp.int32)
    column = jnp.arange(tuning_gpu.padded(size), dtype=jnp.int32)
    query = tile * tiles.rows + jnp.arange(tiles.rows, dtype=jnp.int32)
    node = jax.lax.rem(query, jnp.int32(nodes))

    def rows_of(ref, lead, at, count):
        """Rows f[len(at), D'] of an array, zeros past its end."""
        there = (at < count)[:, None] & (column < size)[None]
        return triton.load(ref.at[*lead, at[:, None], column[None]], there)

    asked = rows_of(q, (row, group), query, queries)
    position = cached + triton.load(depth.at[row, node], query < queries)

    def own(index, sums):
        at = index * tiles.block + offset
        there = jnp.broadcast_to((at < nodes)[None], (tiles.rows, tiles.block))
        shown = triton.load(seen.at[row, node[:, None], at[None]], there) != 0
        keys, values = (rows_of(ref, (row, group), at, nodes) for ref in (k, v))
        return attend(sums, keys, values, shown)

    def from_cache(index, sums):
        at = index * tiles.block + offset
        near = (window == 0) | (at[None] > position[:, None] - window)
        shown = (at < cached)[None] & near
        lead = (row, layer, group)
        keys, values = (rows_of(ref, lead, at, cached) for ref in (k_cache, v_cache))
        return attend(sums, keys, values, shown)

    def attend(sums, keys, values, shown):
        scores = triton.dot(asked, keys, turned=True) * scale
        if cap:
            scores = cap * jnp.tanh(scores / cap)
        return _add(sums, jnp.where(shown, scores, _NEGATIVE), values)

    sums = _Sums(
        jnp.full((tiles.rows,), _NEGATIVE, jnp.float32),
        jnp.zeros((tiles.rows,), jnp.float32),
        jnp.zeros((tiles.rows, column.shape[0]), jnp.float32),
    )
    blocks = jnp.where(share == 0, jnp.int32(pl.cdiv(nodes, tiles.block)), jnp.int32(0))
    sums = jax.lax.fori_loop(0, blocks, own, sums)
    sums = jax.lax.fori_loop(*_share(cached, window, share, tiles), from_cache, sums)

    nothing = sums.top == _NEGATIVE
    total = jnp.where(nothing, 1.0, sums.total)
    made = jnp.where(nothing[:, None], 0.0, sums.mixed / total[:, None])
    inside = query < queries
    there = inside[:, None] & (column < size)[None]
    at = (share, row, group)
    triton.store(out.at[*at, query[:, None], column[None]], made, there)
    log = jnp.where(nothing, -jnp.inf, sums.top + jnp.log(total))
    triton.store(logs.at[*at, query], log, inside)


def _add(sums: _Sums, scores, values) -> _Sums:
    """Sums with the keys of a block, of scores f32[M, keys] and values f[keys, D]."""
    top = jnp.maximum(sums.top, jnp.max(scores, axis=1))
    shrink = jnp.exp(sums.top - top)
    weights = jnp.exp(scores - top[:, None])
    mixed = triton.dot(weights.astype(values.dtype), values)
    return _Sums(
        top,
        sums.total * shrink + jnp.sum(weights, axis=1),
        sums.mixed * shrink[:, None] + mixed,
    )


def _share(length, window, share, tiles: tuning_gpu.Tiles):
    """The first block of a share of what a row's nodes see, and that after its last."""
    block = jnp.int32(tiles.block)
    oldest = jnp.where(window > 0, jnp.maximum(length - window + 1, 0), 0)
    first = jax.lax.div(oldest, block)
    last = jax.lax.div(length + block - 1, block)
    each = jax.lax.div(last - first + tiles.shares - 1, jnp.int32(tiles.shares))
    begin = first + share * each
    return begin, jnp.minimum(begin + each, last)
