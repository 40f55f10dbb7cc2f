"""The op by Pallas, on TPU: weights stay whole numbers until they are in VMEM.

A file's blocks lie along an output's row, their scale among them; vectors of a TPU hold
the same weight of many outputs. So the weights are laid out anew at load: whole numbers
[K, M], scales apart, one for 32 rows of a column. Of four bits the first half of the
inputs are the low halves of the bytes, the second half the high ones: both are then
decoded and multiplied in place.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels.linear import tuning

_LANES = 128
_BLOCK = 32  # weights that share a scale
_ROWS = 16  # of x, padded to: what a tile of bfloat16 holds
_LEAST = {"q8_0": 0.0, "q4_0": -8.0}  # in scales, where blocks do not say


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Tiled:
    """Weights of K inputs and M outputs as a TPU reads them.

    P is 1, or 2 where a byte holds weights of two halves of the inputs.

    Attributes:
      whole: i8[K, M'], or u8[K / 2, M'], M' the M padded to whole vectors: XLA turns
        an array around whose last axis wastes lanes.
      scale: f32[P, K / P / 32, M'], or f32[1, 1, M'], one for each output.
      least: f32 as ``scale``: of every block, what a zero stands for; or None.
      kind: "int8" (per output), "q8_0", "q4_0" or "q4_1", static.
      outputs: M, static.
    """

    whole: jax.Array
    scale: jax.Array
    least: jax.Array | None
    kind: str = dataclasses.field(metadata={"static": True})
    outputs: int = dataclasses.field(metadata={"static": True})

    @property
    def shape(self) -> tuple[int, int]:
        """(K, M)."""
        return self.scale.shape[0] * self.whole.shape[0], self.outputs


def shapes(inputs: int, outputs: int, kind: str) -> Tiled:
    """What ``tile`` makes, without values."""
    parts = 2 if kind.startswith("q4") else 1
    rows, width = inputs // parts, outputs + -outputs % _LANES
    blocks = 1 if kind == "int8" else rows // _BLOCK
    number = jnp.dtype(jnp.int8 if parts == 1 else jnp.uint8)
    whole: Any = jax.ShapeDtypeStruct((rows, width), number)
    scale: Any = jax.ShapeDtypeStruct((parts, blocks, width), jnp.float32)
    return Tiled(whole, scale, scale if kind == "q4_1" else None, kind, outputs)


def _padded(whole, scale, least, kind) -> Tiled:
    """Arrays of M outputs, padded on the device that holds them."""
    outputs = whole.shape[-1]

    def pad(array):
        spare = [(0, 0)] * (array.ndim - 1) + [(0, -outputs % _LANES)]
        return jnp.asarray(np.pad(array, spare))

    return Tiled(
        pad(whole), pad(scale), None if least is None else pad(least), kind, outputs
    )


def quantise(weights: np.ndarray) -> Tiled:
    """Weights f[K, M] as int8 with one scale for each output."""
    scale = np.abs(weights).max(axis=0, keepdims=True).astype(np.float32) / 127.0
    whole = np.rint(weights / np.where(scale == 0, 1.0, scale)).astype(np.int8)
    return _padded(whole, scale[None], None, "int8")


def tile(rows: np.ndarray, kind: str) -> Tiled:
    """Stored rows in the layout of this file, with the same values.

    Args:
      rows: u8[M, K / 32 * size], blocks as a GGUF file holds them.
      kind: "q8_0", "q4_0" or "q4_1"; 4-bit ones need a K that 64 divides.

    Raises:
      ValueError: there is no such kind here, or K does not do.
    """
    size = {"q8_0": 34, "q4_0": 18, "q4_1": 20}.get(kind)
    if size is None:
        raise ValueError(f"tile: kind must be q8_0, q4_0 or q4_1, got {kind!r}")
    outputs = rows.shape[0]
    blocks = rows.reshape(outputs, -1, size)
    count = 2 if kind == "q4_1" else 1
    halves = np.ascontiguousarray(blocks[..., : 2 * count]).view(np.float16)
    halves = halves.astype(np.float32).transpose(2, 1, 0)  # [count, K / 32, M]
    body = blocks[..., 2 * count :]
    if kind == "q8_0":
        whole = body.view(np.int8).reshape(outputs, -1).T
        return _padded(whole, halves, None, kind)
    nibbles = np.concatenate([body & 15, body >> 4], axis=-1).reshape(outputs, -1).T
    inputs = nibbles.shape[0]
    if inputs % (2 * _BLOCK):
        raise ValueError(f"tile: {kind} needs inputs in 64s, got {inputs}")
    whole = nibbles[: inputs // 2] | (nibbles[inputs // 2 :] << 4)
    scale, *least = (part.reshape(2, -1, outputs) for part in halves)
    return _padded(whole, scale, least[0] if least else None, kind)


def decode(weight: Tiled) -> jax.Array:
    """The weights f32[K, M]."""
    parts = _parts(weight.whole, weight.kind)
    least = [None] * len(parts) if weight.least is None else weight.least
    blocks = zip(parts, weight.scale, least, strict=True)
    decoded = jnp.concatenate([_decoded(*part, weight.kind) for part in blocks])
    return decoded[:, : weight.outputs]


def linear(
    x: jax.Array, weight: Tiled, *, tiles: tuning.Tiles | None = None, interpret=False
) -> jax.Array:
    """y = x W.

    A row's sums do not depend on how many rows there are: each is a row of the matrix
    unit, and inputs are cut alike.

    Args:
      x: f[n, K], bfloat16 or float32; weights are rounded to its dtype.
      weight: of K inputs and M outputs.
      tiles: how to cut the work, chosen for the shape if None.
      interpret: True or ``pltpu.InterpretParams`` runs the kernel on CPU.

    Returns:
      f[n, M] in the dtype of x.
    """
    count = x.shape[0]
    parts, blocks, _ = weight.scale.shape
    inputs, outputs = weight.whole.shape
    if tiles is None:
        tiles = tuning.choose(inputs, outputs)
    x = jnp.pad(x, ((0, -count % _ROWS), (0, 0)))
    rows = x.shape[0]
    x = x.reshape(rows, parts, inputs).swapaxes(0, 1)  # f[P, n, K / P]

    scaled = blocks if blocks == 1 else tiles.inputs // _BLOCK
    scales = pl.BlockSpec(
        (parts, scaled, tiles.outputs),
        lambda out, step: (0, 0 if blocks == 1 else step, out),
    )
    whole = weight.whole
    if not interpret:  # XLA may want to move small weights to VMEM before
        whole = pltpu.with_memory_space_constraint(whole, pltpu.HBM)
    numbers = [weight.scale] if weight.least is None else [weight.scale, weight.least]
    made = pl.pallas_call(
        functools.partial(_kernel, kind=weight.kind),
        grid=(pl.cdiv(outputs, tiles.outputs), inputs // tiles.inputs),
        in_specs=[
            pl.BlockSpec((parts, rows, tiles.inputs), lambda _, step: (0, 0, step)),
            pl.BlockSpec((tiles.inputs, tiles.outputs), lambda out, step: (step, out)),
            *[scales] * len(numbers),
        ],
        out_specs=pl.BlockSpec((rows, tiles.outputs), lambda out, _: (0, out)),
        out_shape=jax.ShapeDtypeStruct((rows, outputs), x.dtype),
        scratch_shapes=[pltpu.VMEM((rows, tiles.outputs), jnp.float32)],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary")
        ),
        cost_estimate=pl.CostEstimate(
            flops=2 * rows * parts * inputs * outputs,
            bytes_accessed=sum(a.size * a.dtype.itemsize for a in (whole, *numbers)),
            transcendentals=0,
        ),
        interpret=interpret,
        name=f"linear_{weight.kind}",
    )(x, whole, *numbers)
    return made[:count, : weight.outputs]


def _kernel(x, whole, scale, *refs, kind):
    """Adds a tile of inputs to a tile of outputs.

    Args:
      x: f[P, n, inputs].
      whole: [inputs, outputs], whole numbers.
      scale: f32[P, blocks, outputs].
      refs: least as ``scale`` if there is one, out f[n, outputs], sums f32 as ``out``.
    """
    *least, out, sums = refs

    @pl.when(pl.program_id(1) == 0)
    def _start():
        sums[...] = jnp.zeros_like(sums)

    exact = x.dtype == jnp.float32
    for index, part in enumerate(_parts(whole[...], kind)):
        if kind == "int8":  # scaled at the end
            weights = part.astype(jnp.float32)
        else:
            lowest = least[0][index] if least else None
            weights = _decoded(part, scale[index], lowest, kind)
        sums[...] += jax.lax.dot(
            x[index],
            weights.astype(x.dtype),
            precision=jax.lax.Precision.HIGHEST if exact else None,
            preferred_element_type=jnp.float32,
        )

    @pl.when(pl.program_id(1) == pl.num_programs(1) - 1)
    def _write():
        made = sums[...]
        out[...] = (made * scale[0] if kind == "int8" else made).astype(out.dtype)


def _parts(whole, kind):
    """Whole numbers i32[inputs, outputs] of each part."""
    wide = whole.astype(jnp.int32)
    return [wide & 15, wide >> 4] if kind.startswith("q4") else [wide]


def _decoded(whole, scale, least, kind):
    """Weights f32[inputs, outputs] of whole numbers and of their blocks' numbers."""
    inputs, outputs = whole.shape
    blocks = scale.shape[0]
    values = whole.astype(jnp.float32).reshape(blocks, inputs // blocks, outputs)
    if least is None:
        values = (values + _LEAST.get(kind, 0.0)) * scale[:, None]
    else:
        values = values * scale[:, None] + least[:, None]
    return values.reshape(inputs, outputs)
