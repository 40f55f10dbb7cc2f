"""The op by Pallas, on TPU.

The queries of a kv head, R heads of N nodes, are packed into rows of one matrix. The
grid walks batch rows, kv heads, tiles of queries and, innermost, blocks of the cache:
as many as the longest row needs. Block numbers come from lengths and window, which are
known before a step starts; a row that needs fewer blocks repeats its last one, which is
neither copied nor computed again. The layer of a stacked cache is one more coordinate
of a block, so nothing of the cache's size is ever cut out. Nor is it turned: XLA lays
heads that do not fill the lanes out with slots innermost, and the kernel takes them so.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import layout
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels.tree_attention import tuning

_NEGATIVE = float(jnp.finfo(jnp.float32).min)
_LANES = 128
_WORD = 32  # nodes whose bits lie in one number, 2^5


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
    tiles: tuning.Tiles | None = None,
    interpret: Any = False,
) -> Any:
    """See ``api.tree_attention``, with ``log_sum_exp`` ``api.part``: a pair then.

    Args:
      tiles: how to cut the work, chosen for the shapes if None.
      interpret: True or ``pltpu.InterpretParams`` runs the kernel on CPU.
    """
    if layer is None:
        k_cache, v_cache, layer = k_cache[:, None], v_cache[:, None], 0
    rows, groups, heads, nodes, size = q.shape
    slots = k_cache.shape[3]
    if tiles is None:
        tiles = tuning.choose(slots, groups, size, heads * nodes, k_cache.dtype)
    turned = tuning.turned(slots, size)
    if turned:
        k_cache, v_cache = k_cache.swapaxes(3, 4), v_cache.swapaxes(3, 4)
    if not interpret:  # XLA may want to move a small cache to VMEM, all of it
        k_cache, v_cache = (
            pltpu.with_memory_space_constraint(cache, pltpu.HBM)
            for cache in (k_cache, v_cache)
        )
    packed = _pad(q.reshape(rows, groups, heads * nodes, size), 2, tiles.rows)
    k, v = _pad(k, 2, _sublanes(k)), _pad(v, 2, _sublanes(v))
    window = jnp.asarray(window, jnp.int32)
    fixed = jnp.stack([jnp.asarray(layer, jnp.int32), window])
    seen = _pad(_seen(depth, mask, window, heads), 1, tiles.rows)

    out, *logs = _call(
        (rows, groups, packed.shape[2], size),
        (fixed, length, packed, seen, k, v, k_cache, v_cache),
        steps=_steps(length, window, tiles.block),
        tiles=tiles,
        turned=turned,
        scale=scale,
        cap=cap,
        log_sum_exp=log_sum_exp,
        interpret=interpret,
    )

    def unpack(made):
        made = made[:, :, : heads * nodes]
        made = made.reshape(rows, groups, heads, nodes, -1)
        return made.transpose(0, 3, 1, 2, 4)  # f[B, N, G, R, D or 1]

    return (unpack(out), unpack(logs[0])[..., 0]) if log_sum_exp else unpack(out)


def as_read(cache: jax.Array) -> jax.Array:
    """A cache f[B, layers, G, S, D] held in the layout that the kernel reads.

    For what writes it in a loop: XLA would choose a layout for the writing, and copy
    the cache at every turn. Values are unchanged; for a program on TPU only.
    """
    order = (0, 1, 2, 4, 3) if tuning.turned(*cache.shape[3:]) else (0, 1, 2, 3, 4)
    return layout.with_layout_constraint(cache, layout.Layout(order))


def _call(shape, arguments, *, steps, tiles, interpret, **static):
    """The kernel over its grid: out f[B, G, M, D], then log-sum-exp f32[B, G, M, 1]."""
    rows, groups, queries, size = shape
    *_, packed, seen, k, _, k_cache, _ = arguments
    block, heads, tile = tiles.block, tiles.heads, tiles.rows
    turned, log_sum_exp = static["turned"], static["log_sum_exp"]

    def cached(row, head, _, step, fixed, length):
        first, last = _span(length[row], fixed[1], block)
        at = jnp.minimum(first + step, jnp.maximum(last - 1, 0))
        return (row, fixed[0], head, *((0, at) if turned else (at, 0)))

    def of_queries(width):
        return pl.BlockSpec(
            (None, heads, tile, width), lambda row, head, part, *_: (row, head, part, 0)
        )

    own = pl.BlockSpec(
        (None, heads, *k.shape[2:]), lambda row, head, *_: (row, head, 0, 0)
    )
    sides = (size, block) if turned else (block, size)
    read = pl.BlockSpec((None, None, heads, *sides), cached)
    bits = pl.BlockSpec(
        (None, tile, seen.shape[2]), lambda row, _, part, *rest: (row, part, 0)
    )
    widths = (size, 1) if log_sum_exp else (size,)
    kinds = (packed.dtype, jnp.float32)
    return pl.pallas_call(
        functools.partial(_kernel, block=block, **static),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=2,
            grid=(rows, groups // heads, queries // tile, steps),
            in_specs=[of_queries(size), bits, own, own, read, read],
            out_specs=[of_queries(width) for width in widths],
            scratch_shapes=[
                pltpu.VMEM((heads, tile, _LANES), jnp.float32),
                pltpu.VMEM((heads, tile, _LANES), jnp.float32),
                pltpu.VMEM((heads, tile, size), jnp.float32),
            ],
        ),
        out_shape=[
            jax.ShapeDtypeStruct((rows, groups, queries, width), kind)
            for width, kind in zip(widths, kinds, strict=False)
        ],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "parallel", "arbitrary")
        ),
        cost_estimate=_cost(shape, k_cache),
        interpret=interpret,
        name="tree_attention",
    )(*arguments)


def _cost(shape, k_cache):
    """What the call costs with a full cache."""
    rows, groups, queries, size = shape
    slots = k_cache.shape[3] * k_cache.shape[4] // size
    scores = rows * groups * queries * slots
    cached = 2 * rows * groups * slots * size * k_cache.dtype.itemsize
    return pl.CostEstimate(
        flops=4 * scores * size, bytes_accessed=cached, transcendentals=scores
    )


def _kernel(
    fixed,
    length,
    q,
    seen,
    k,
    v,
    k_cache,
    v_cache,
    *refs,
    block,
    turned,
    log_sum_exp,
    **static,
):
    """One block of the cache for a tile of queries of some kv heads of a batch row.

    Args:
      fixed: i32[2], layer and window, in SMEM.
      length: i32[B], in SMEM.
      q: f[heads, M, D].
      seen: i32[M, 1 + words], see ``_seen``.
      k, v: f[heads, N, D], the tree's own rows.
      k_cache, v_cache: f[heads, block, D], or ``turned`` f[heads, D, block].
      refs: out f[heads, M, D], if wanted log-sum-exp f32[heads, M, 1], and what is
        kept between steps: tops and totals f32[heads, M, lanes], sums f32[heads, M, D].
    """
    out, *logs, top, total, mixed = refs
    step = pl.program_id(3)
    window = fixed[1]
    cached = length[pl.program_id(0)]
    first, last = _span(cached, window, block)
    heads, tile, _ = q.shape

    def attend(head, keys, values, shown, kept, turned=False):
        scores = _scores(_dot(q[head], keys, 0 if turned else 1), shown, **static)
        weights, kept_top, kept_total, shrink = _weigh(scores, kept)
        new = _dot(weights.astype(values.dtype), values, 1 if turned else 0)
        mixed[head] = new if shrink is None else mixed[head] * shrink + new
        top[head] = jnp.broadcast_to(kept_top, (tile, _LANES))
        total[head] = jnp.broadcast_to(kept_total, (tile, _LANES))

    @pl.when(step == 0)
    def _own_rows():
        shown = _bits(seen, k.shape[1])
        for head in range(heads):
            attend(head, k[head], v[head], shown, None)

    @pl.when(first + step < last)
    def _cached_rows():
        start = (first + step) * block
        at = start + jax.lax.broadcasted_iota(jnp.int32, (tile, block), 1)
        position = cached + seen[:, :1]
        near = (window == 0) | (at > position - window)
        shown = (at < cached) & near
        for head in range(heads):
            kept = top[head][:, :1], total[head][:, :1]
            attend(head, k_cache[head], v_cache[head], shown, kept, turned)

    @pl.when(step == pl.num_programs(3) - 1)
    def _write():
        for head in range(heads):
            kept_top, kept_total = top[head][:, :1], total[head][:, :1]
            nothing = kept_top == _NEGATIVE
            made = mixed[head] / kept_total
            out[head] = jnp.where(nothing, 0.0, made).astype(out.dtype)
            if log_sum_exp:
                made = kept_top + jnp.log(kept_total)
                logs[0][head] = jnp.where(nothing, -jnp.inf, made)


def _scores(raw, shown, *, scale, cap):
    """Scores f32[M, keys], the least number where a key is not seen."""
    raw = raw * scale
    if cap:
        raw = cap * jnp.tanh(raw / cap)
    return jnp.where(shown, raw, _NEGATIVE)


def _weigh(scores, kept):
    """Weights f32[M, keys] of new scores against those seen before.

    Args:
      scores: f32[M, keys].
      kept: greatest score and sum of weights f32[M, 1] so far, None at first.

    Returns:
      weights, both of ``kept`` anew, and by how much earlier weights shrink.
    """
    top = jnp.max(scores, axis=1, keepdims=True)
    if kept is None:
        weights = jnp.exp(scores - top)
        return weights, top, jnp.sum(weights, axis=1, keepdims=True), None
    top = jnp.maximum(kept[0], top)
    shrink = jnp.exp(kept[0] - top)
    weights = jnp.exp(scores - top)
    total = kept[1] * shrink + jnp.sum(weights, axis=1, keepdims=True)
    return weights, top, total, shrink


def _dot(left, right, axis):
    """f32 sums over the last axis of ``left`` and an axis of ``right``.

    The matrix unit would cut float32 factors to bfloat16 unless told not to.
    """
    exact = left.dtype == jnp.float32
    return jax.lax.dot_general(
        left,
        right,
        (((1,), (axis,)), ((), ())),
        precision=jax.lax.Precision.HIGHEST if exact else None,
        preferred_element_type=jnp.float32,
    )


def _bits(seen, keys):
    """Which of the tree's rows a query sees, bool[M, keys]."""
    node = jax.lax.broadcasted_iota(jnp.int32, (seen.shape[0], keys), 1)
    word = jnp.zeros_like(node)
    for index in range(seen.shape[1] - 1):
        mine = seen[:, index + 1 : index + 2]
        word = jnp.where(node >> 5 == index, mine, word)
    return (jax.lax.shift_right_logical(word, node & 31) & 1) == 1


def _seen(depth, mask, window, heads):
    """What a query sees, in few numbers: i32[B, R * N, 1 + words].

    The first is its node's depth; the bits of the others say which of the tree's rows
    it sees, 32 in each.
    """
    distance = depth[:, :, None] - depth[:, None, :]
    mask = mask & ((window == 0) | (distance < window))
    rows, nodes, _ = mask.shape
    words = _pad(mask, 2, _WORD).reshape(rows, nodes, -1, _WORD).astype(jnp.int32)
    place = jax.lax.broadcasted_iota(jnp.int32, words.shape, 3)
    bits = jnp.sum(words << place, axis=-1, dtype=jnp.int32)
    return jnp.tile(jnp.concatenate([depth[..., None], bits], axis=-1), (1, heads, 1))


def _span(length, window, block):
    """The first block that a row's nodes see, and the one after the last."""
    oldest = jnp.where(window > 0, jnp.maximum(length - window + 1, 0), 0)
    size = jnp.int32(block)
    return jax.lax.div(oldest, size), jax.lax.div(length + block - 1, size)


def _steps(length, window, block):
    """Blocks of the row that needs most, at least 1: i32[]."""
    first, last = _span(length, window, block)
    return jnp.maximum(jnp.max(last - first), 1)


def _sublanes(array):
    """How many rows of an array's dtype fill a tile."""
    return 32 // array.dtype.itemsize


def _pad(array, axis, multiple):
    """Zeros after an axis up to a multiple."""
    spare = -array.shape[axis] % multiple
    width = [(0, 0)] * array.ndim
    width[axis] = (0, spare)
    return jnp.pad(array, width) if spare else array
