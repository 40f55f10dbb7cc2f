"""Weights as accelerators read them: whole numbers apart from their scales.

A file's blocks lie along an output's row, their scale among them; vectors of a TPU and
threads of a GPU hold the same weight of many outputs. So the weights are laid out anew
at load, with the same values: whole numbers [K, M], and scales apart, one for 32 rows
of a column. Of four bits the first half of the inputs are the low halves of the bytes,
the second half the high ones: both are then decoded and multiplied in place.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.linear import formats

BLOCK = 32  # weights that share a scale
KINDS = ("q8_0", "q4_0", "q4_1")  # of ``Packed`` that can be tiled
_LANES = 128
_LEAST = {"q8_0": 0.0, "q4_0": -8.0}  # in scales, where blocks do not say


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Tiled:
    """Weights of K inputs and M outputs as accelerators read them.

    P is 1, or 2 where a byte holds weights of two halves of the inputs.

    Attributes:
      whole: i8[K, M'], or u8[K / 2, M'], M' the M padded to whole vectors: XLA turns
        an array around whose last axis wastes lanes of a TPU.
      scale: f32[P, K / P / 32, M'], or f32[1, 1, M'], one for each output.
      least: f32 as ``scale``: of every block, what a zero stands for; or None.
      kind: "int8" (per output), "q8_0", "q4_0" or "q4_1", static.
      outputs: M, static.
      layer: i32[], where the arrays have an axis of layers in front: which one this
        is. XLA would cut a kernel's operand out, so the kernel finds its layer itself.
    """

    whole: jax.Array
    scale: jax.Array
    least: jax.Array | None
    kind: str = dataclasses.field(metadata={"static": True})
    outputs: int = dataclasses.field(metadata={"static": True})
    layer: jax.Array | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """(K, M)."""
        return self.scale.shape[-3] * self.whole.shape[-2], self.outputs


def tiled_shapes(inputs: int, outputs: int, kind: str, *, padded: bool = True) -> Tiled:
    """What ``tile`` or ``quantise`` makes, without values."""
    parts = 2 if kind.startswith("q4") else 1
    rows, width = inputs // parts, outputs + -outputs % _pad_to(padded)
    blocks = 1 if kind == "int8" else rows // BLOCK
    number = jnp.dtype(jnp.int8 if parts == 1 else jnp.uint8)
    whole: Any = jax.ShapeDtypeStruct((rows, width), number)
    scale: Any = jax.ShapeDtypeStruct((parts, blocks, width), jnp.float32)
    return Tiled(whole, scale, scale if kind == "q4_1" else None, kind, outputs)


def quantise(weights: np.ndarray, *, padded: bool = True) -> Tiled:
    """Weights f[K, M] as int8 with one scale for each output, on the host.

    Args:
      weights: finite.
      padded: whether outputs are padded to whole vectors; not where a mesh is to
        split them.
    """
    weights = weights.astype(np.float32, copy=False)
    scale = np.abs(weights).max(axis=0, keepdims=True) / np.float32(127)
    whole = np.rint(weights / np.where(scale == 0, 1, scale)).astype(np.int8)
    return _padded(whole, scale[None], None, "int8", padded)


def tileable(inputs: int, kind: str) -> bool:
    """Whether ``tile`` takes rows of so many inputs."""
    return kind in KINDS and inputs % (BLOCK if kind == "q8_0" else 2 * BLOCK) == 0


def tile(rows: np.ndarray, kind: str) -> Tiled:
    """Stored rows in the layout of this file, with the same values, on the host.

    Args:
      rows: u8[M, K / 32 * size], blocks as a GGUF file holds them.
      kind: "q8_0", "q4_0" or "q4_1"; 4-bit ones need a K that 64 divides.

    Raises:
      ValueError: there is no such kind here, or K does not do.
    """
    if kind not in KINDS:
        raise ValueError(f"tile: kind must be one of {', '.join(KINDS)}, got {kind!r}")
    form, outputs = formats.FORMATS[kind], rows.shape[0]
    blocks = rows.reshape(outputs, -1, form.size)
    split = 2 * form.num_halves
    halves = np.ascontiguousarray(blocks[..., :split]).view(np.float16)
    halves = halves.astype(np.float32).transpose(2, 1, 0)  # [numbers, K / 32, M]
    body = blocks[..., split:]
    if kind == "q8_0":
        whole = body.view(np.int8).reshape(outputs, -1).T
        return _padded(whole, halves, None, kind)
    nibbles = np.concatenate([body & 15, body >> 4], axis=-1).reshape(outputs, -1).T
    inputs = nibbles.shape[0]
    if inputs % (2 * BLOCK):
        raise ValueError(f"tile: {kind} needs inputs in 64s, got {inputs}")
    whole = nibbles[: inputs // 2] | (nibbles[inputs // 2 :] << 4)
    scale, *least = (part.reshape(2, -1, outputs) for part in halves)
    return _padded(whole, scale, least[0] if least else None, kind)


def _is_tiled(node: Any) -> bool:
    return isinstance(node, Tiled)


def without_tiled(layers: Any) -> Any:
    """A tree of stacked weights with None for those that are tiled."""
    return jax.tree.map(
        lambda one: None if _is_tiled(one) else one, layers, is_leaf=_is_tiled
    )


def at_layer(layers: Any, sliced: Any, layer: jax.Array) -> Any:
    """The weights of one layer, those that are tiled whole.

    Args:
      layers: tree of stacked weights.
      sliced: the layer's part of ``without_tiled(layers)``.
      layer: i32[].
    """
    return jax.tree.map(
        lambda whole, part: (
            dataclasses.replace(whole, layer=layer) if _is_tiled(whole) else part
        ),
        layers,
        sliced,
        is_leaf=_is_tiled,
    )


def of_layer(weight: Tiled) -> Tiled:
    """The same weights without an axis of layers."""
    if weight.layer is None:
        return weight
    alone = dataclasses.replace(weight, layer=None)
    return jax.tree.map(
        lambda all_: jax.lax.dynamic_index_in_dim(all_, weight.layer, keepdims=False),
        alone,
    )


def take_outputs(weight: Tiled, index: jax.Array) -> Tiled:
    """The weights of outputs i32[n] only."""
    least = None if weight.least is None else weight.least[..., index]
    whole, scale = weight.whole[:, index], weight.scale[..., index]
    return Tiled(whole, scale, least, weight.kind, index.shape[0])


def decode(weight: Tiled) -> jax.Array:
    """The weights f32[K, M]."""
    split = parts(weight.whole, weight.kind)
    least = [None] * len(split) if weight.least is None else weight.least
    blocks = zip(split, weight.scale, least, strict=True)
    decoded = jnp.concatenate([scaled(*part, weight.kind) for part in blocks])
    return decoded[:, : weight.outputs]


def parts(whole, kind):
    """Whole numbers i32[inputs, outputs] of each part."""
    wide = whole.astype(jnp.int32)
    return [wide & 15, wide >> 4] if kind.startswith("q4") else [wide]


def scaled(whole, scale, least, kind):
    """Weights f32[inputs, outputs] of whole numbers and of their blocks' numbers."""
    inputs, outputs = whole.shape
    blocks = scale.shape[0]
    values = whole.astype(jnp.float32).reshape(blocks, inputs // blocks, outputs)
    if least is None:
        values = (values + _LEAST.get(kind, 0.0)) * scale[:, None]
    else:
        values = values * scale[:, None] + least[:, None]
    return values.reshape(inputs, outputs)


def _pad_to(padded: bool) -> int:
    """What the outputs are padded to a multiple of."""
    return _LANES if padded else 1


def _padded(whole, scale, least, kind, padded=True) -> Tiled:
    """Arrays of M outputs, padded where that is wanted."""
    outputs = whole.shape[-1]

    def pad(array) -> Any:
        spare = [(0, 0)] * (array.ndim - 1) + [(0, -outputs % _pad_to(padded))]
        return np.pad(array, spare)

    return Tiled(
        pad(whole), pad(scale), None if least is None else pad(least), kind, outputs
    )
