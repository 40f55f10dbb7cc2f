"""Keys and values of what was decoded: a row of them for each position.

A forward only reads the cache; the rows of the nodes that were accepted are written
afterwards, in one piece for all layers.
"""

import functools
from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp

from pallas_kernels.tree_attention import as_read
from specjax.core import axes
from specjax.models import config as config_lib

NAMES: axes.Names = ("batch", "layers", "kv_heads", "slots", "size")
_AXES: Mapping[str, axes.Names] = {"k": NAMES, "v": NAMES}


class KVCache(NamedTuple):
    """Keys and values of committed positions, or of new rows, of all layers.

    One array a kind, so that a round writes it in one piece.
    """

    k: jax.Array  # f[B, layers, G, S, D]
    v: jax.Array

    AXES = _AXES


def init(
    config: config_lib.ModelConfig,
    rows: int,
    capacity: int,
    dtype: jnp.dtype,
) -> KVCache:
    """An empty cache.

    Args:
      config: of the model.
      rows: B.
      capacity: S, most positions.
      dtype: of keys and values.
    """
    layers, groups = config.num_layers, config.num_kv_heads
    shape = (rows, layers, groups, capacity, config.head_size)
    return KVCache(jnp.zeros(shape, dtype), jnp.zeros(shape, dtype))


def commit(
    cache: KVCache,
    rows: KVCache,
    path_slot: jax.Array | None,
    start: jax.Array,
    count: jax.Array,
) -> KVCache:
    """Writes the first ``count`` rows of a path at ``start``.

    What does not fit is dropped. On CPU a scatter is slower than a loop that copies
    one row after the other in place.

    Args:
      cache: f[B, layers, G, S, D].
      rows: f[B, layers, G, N, D], of a tree's slots.
      path_slot: i32[B, L], slots of the path; None where it is 0, 1, 2, ...
      start: i32[B].
      count: i32[B].
    """
    if path_slot is None:
        batch, slots = start.shape[0], rows.k.shape[3]
        path_slot = jnp.broadcast_to(jnp.arange(slots, dtype=jnp.int32), (batch, slots))
    write = functools.partial(
        jax.lax.platform_dependent,
        cpu=_copy_rows,
        tpu=_copy_rows_as_read,
        default=_scatter_rows,
    )
    by_row = ("batch",)
    names = (NAMES, NAMES, by_row, by_row, by_row)
    return axes.per_device(write, names, NAMES)(cache, rows, path_slot, start, count)


def _copy_rows_as_read(cache, rows, path_slot, start, count):
    """Keeps the layout that attention reads: by its own XLA copies the whole cache."""
    return _copy_rows(cache, rows, path_slot, start, count, held=as_read)


def _copy_rows(cache, rows, path_slot, start, count, held=lambda buffer: buffer):
    count = jnp.minimum(count, cache.k.shape[3] - start)
    most = jnp.maximum(jnp.max(count), 0)

    def copy(index, cache):
        return hold(copy_one(index, hold(cache)))

    def hold(cache):
        return jax.tree.map(held, cache)

    def copy_one(index, cache):
        row, step = index // most, index % most
        slot = path_slot[row, step]

        def put(buffer, new):
            size = (1, *buffer.shape[1:3], 1, buffer.shape[4])
            to = (row, 0, 0, start[row] + step, 0)
            made = jax.lax.dynamic_slice(new, (row, 0, 0, slot, 0), size)
            old = jax.lax.dynamic_slice(buffer, to, size)
            made = jnp.where(step < count[row], made, old)
            return jax.lax.dynamic_update_slice(buffer, made, to)

        return jax.tree.map(put, cache, rows)

    return hold(jax.lax.fori_loop(0, start.shape[0] * most, copy, hold(cache)))


def _scatter_rows(cache, rows, path_slot, start, count):
    slots = cache.k.shape[3]
    step = jnp.arange(path_slot.shape[1], dtype=jnp.int32)[None]
    at = jnp.where(step < count[:, None], start[:, None] + step, slots)  # i32[B, L]

    @jax.vmap
    def write(buffer, new, slot, at):  # f[layers, G, S, D], f[layers, G, N, D]
        return buffer.at[:, :, at].set(new[:, :, slot], mode="drop")

    return jax.tree.map(
        lambda buffer, new: write(buffer, new, path_slot, at), cache, rows
    )


def pad(rows: KVCache, slots: int) -> KVCache:
    """Rows f[B, layers, G, N, D] padded to ``slots`` nodes."""

    def widen(leaf):
        spare = ((0, 0),) * 3 + ((0, slots - leaf.shape[3]), (0, 0))
        return jnp.pad(leaf, spare)

    return jax.tree.map(widen, rows)
