"""The op by Pallas, on GPU: weights stay whole numbers until they are multiplied.

A program of the grid takes a tile of outputs and a share of the inputs, 32 of them at a
time: those of a block, so that sums of whole numbers are scaled and not the weights.
XLA adds the shares. Checked by value in interpret mode and lowered for CUDA, not run.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from pallas_kernels import triton
from pallas_kernels.linear import tiled, tuning_gpu

_LEAST_ROWS = 16  # of a product by the matrix units
_MOST_ROWS = 64  # whose sums fit the registers
_HALF = 8  # what q4_0 has in place of zero


def serves(rows: int) -> bool:
    """Whether it can be lowered, for so many rows."""
    return triton.available() and rows <= _MOST_ROWS


def linear(
    x: jax.Array,
    weight: tiled.Tiled,
    *,
    tiles: tuning_gpu.Tiles | None = None,
    interpret: bool = False,
) -> jax.Array:
    """y = x W.

    Args:
      x: f[n, K], bfloat16 or float32, of at most 64 rows.
      weight: of K inputs and M outputs; its whole numbers are not rounded.
      tiles: how to cut the work, chosen for the shape if None.
      interpret: runs the kernel anywhere.

    Returns:
      f32[n, M].
    """
    count, weight = x.shape[0], tiled.of_layer(weight)
    inputs, width = weight.whole.shape  # of a part
    if tiles is None:
        tiles = tuning_gpu.choose(inputs, width)
    numbers = [weight.scale] if weight.least is None else [weight.scale, weight.least]
    made = triton.call(
        functools.partial(_kernel, kind=weight.kind, tiles=tiles),
        grid=(width // tiles.outputs, tiles.shares),
        out_shape=jax.ShapeDtypeStruct((tiles.shares, count, width), jnp.float32),
        warps=4,
        stages=4,
        interpret=interpret,
        name=f"linear_{weight.kind}",
    )(x, weight.whole, *numbers)
    return jnp.sum(made, axis=0)[:, : weight.outputs]


def _kernel(x: Any, whole: Any, scale: Any, *refs: Any, kind, tiles):
    """The product of a share of the inputs with a tile of the outputs.

    Args:
      x: f[n, P * K].
      whole: [K, M'], whole numbers of P parts.
      scale: f32[P, K / 32, M'] or f32[1, 1, M'].
      refs: least as ``scale`` if there is one, sums f32[shares, n, M'].
    """
    *least, out = refs
    count, inputs = x.shape[0], whole.shape[0]
    tile = max(_LEAST_ROWS, pl.next_power_of_2(count))
    row = jnp.arange(tile, dtype=jnp.int32)[:, None]
    column = pl.program_id(0) * tiles.outputs
    column = column + jnp.arange(tiles.outputs, dtype=jnp.int32)
    steps = pl.cdiv(inputs, tiled.BLOCK)
    share = pl.cdiv(steps, tiles.shares)
    begin = pl.program_id(1) * share

    def number(of, part, step):
        return of.at[part, step, column][...][None]

    def add(step, sums):
        at = step * tiled.BLOCK + jnp.arange(tiled.BLOCK, dtype=jnp.int32)
        there = jnp.broadcast_to((at < inputs)[:, None], (tiled.BLOCK, tiles.outputs))
        stored = triton.load(whole.at[at[:, None], column[None]], there)
        for part, numbers in enumerate(tiled.parts(stored, kind)):
            if kind == "q4_0":
                numbers = numbers - _HALF
            mine = part * inputs + at[None]
            given = triton.load(x.at[row, mine], (row < count) & (at < inputs)[None])
            made = triton.dot(given, numbers.astype(jnp.float32).astype(x.dtype))
            if kind != "int8":
                made = made * number(scale, part, step)
            if least:
                total = jnp.sum(given.astype(jnp.float32), axis=1)[:, None]
                made = made + total * number(least[0], part, step)
            sums = sums + made
        return sums

    sums = jnp.zeros((tile, tiles.outputs), jnp.float32)
    sums = jax.lax.fori_loop(begin, jnp.minimum(begin + share, steps), add, sums)
    if kind == "int8":
        sums = sums * number(scale, 0, 0)
    there = jnp.broadcast_to(row < count, sums.shape)
    triton.store(out.at[pl.program_id(1), row, column[None]], sums, there)
