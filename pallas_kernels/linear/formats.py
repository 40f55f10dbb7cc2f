"""How weights may be stored: as numbers, or in blocks that share a scale.

A format's bytes are those of GGUF, so that a file's weights need no repacking. Blocks
run along a row; a row is all weights of one output. For machines that multiply many
outputs at once the blocks of some can be interleaved: the same bytes in another order.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np


@dataclasses.dataclass(frozen=True)
class Format:
    """One way to store a row of weights.

    Attributes:
      name: as GGUF calls it, in lower case.
      dtype: of the stored array.
      weights: in a block.
      size: entries of the stored array that a block takes.
      num_halves: float16 numbers of a block: scale, least value.
      halves_at: where in a block they begin.
      decode: dtype[..., blocks, size] to f32[..., blocks, weights].
    """

    name: str
    dtype: np.dtype
    weights: int
    size: int
    num_halves: int
    decode: Callable[[jax.Array], jax.Array]
    halves_at: int = 0


def _halves(raw: jax.Array) -> jax.Array:
    """Numbers f32[..., n] that u8[..., 2 n] hold as float16."""
    pairs = raw.reshape(*raw.shape[:-1], -1, 2)
    return jax.lax.bitcast_convert_type(pairs, jnp.float16).astype(jnp.float32)


def _nibbles(packed: jax.Array) -> jax.Array:
    """Values 0 to 15, u8[..., 2 n], of u8[..., n]: low halves, then high ones."""
    return jnp.concatenate([packed & 15, packed >> 4], axis=-1)


def _wide(blocks: jax.Array) -> jax.Array:
    return blocks.astype(jnp.float32)


def _q8_0(blocks: jax.Array) -> jax.Array:
    whole = jax.lax.bitcast_convert_type(blocks[..., 2:], jnp.int8)
    return _halves(blocks[..., :2]) * _wide(whole)


def _q4_0(blocks: jax.Array) -> jax.Array:
    return _halves(blocks[..., :2]) * (_wide(_nibbles(blocks[..., 2:])) - 8.0)


def _q4_1(blocks: jax.Array) -> jax.Array:
    halves = _halves(blocks[..., :4])
    return halves[..., :1] * _wide(_nibbles(blocks[..., 4:])) + halves[..., 1:]


def _q4_k(blocks: jax.Array) -> jax.Array:
    """Eight groups of 32: see decoders.h for what lies where."""
    lead = blocks.shape[:-1]
    halves = _halves(blocks[..., :4])
    scale, least, rest = jnp.split(blocks[..., 4:16], 3, axis=-1)  # four bytes each
    low, high = rest & 15, rest >> 4
    scales = jnp.concatenate([scale & 63, low | ((scale >> 2) & 48)], axis=-1)
    leasts = jnp.concatenate([least & 63, high | ((least >> 2) & 48)], axis=-1)
    whole = _nibbles(blocks[..., 16:].reshape(*lead, 4, 32)).reshape(*lead, 8, 32)
    steps = (halves[..., :1] * _wide(scales))[..., None]
    lowest = (halves[..., 1:] * _wide(leasts))[..., None]
    return (steps * _wide(whole) - lowest).reshape(*lead, 256)


def _q6_k(blocks: jax.Array) -> jax.Array:
    """Sixteen groups of 16: see decoders.h for what lies where."""
    lead = blocks.shape[:-1]
    low = _nibbles(blocks[..., :128].reshape(*lead, 2, 64))
    quarters = blocks[..., 128:192].reshape(*lead, 2, 32)
    high = jnp.concatenate([(quarters >> i) & 3 for i in (0, 2, 4, 6)], axis=-1)
    whole = _wide(low | (high << 4)).reshape(*lead, 16, 16) - 32.0
    factors = jax.lax.bitcast_convert_type(blocks[..., 192:208], jnp.int8)
    steps = _halves(blocks[..., 208:]) * _wide(factors)
    return (steps[..., None] * whole).reshape(*lead, 256)


_BYTE = np.dtype(np.uint8)
FORMATS = {
    made.name: made
    for made in (
        Format("f32", np.dtype(np.float32), 1, 1, 0, _wide),
        Format("f16", np.dtype(np.float16), 1, 1, 0, _wide),
        Format("bf16", np.dtype(jnp.bfloat16), 1, 1, 0, _wide),
        Format("q8_0", _BYTE, 32, 34, 1, _q8_0),
        Format("q4_0", _BYTE, 32, 18, 1, _q4_0),
        Format("q4_1", _BYTE, 32, 20, 2, _q4_1),
        Format("q4_k", _BYTE, 256, 144, 2, _q4_k),
        Format("q6_k", _BYTE, 256, 210, 1, _q6_k, halves_at=208),
    )
}


INTERLEAVED = ("q8_0", "q4_0", "q4_1")  # formats that can be
_WORD = 4  # bytes of an output that lie together in interleaved blocks


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Packed:
    """Weights of M outputs and K inputs as they were stored, or interleaved.

    Attributes:
      rows: [M, K / weights * size] of the format's dtype, row m holding output m; or,
        interleaved, [M / lanes, K / weights, lanes * size].
      kind: name of the format, static.
      lanes: outputs whose blocks lie beside each other, static; 1 is none.
    """

    rows: jax.Array
    kind: str = dataclasses.field(metadata={"static": True})
    lanes: int = dataclasses.field(default=1, metadata={"static": True})

    @property
    def format(self) -> Format:
        return FORMATS[self.kind]

    @property
    def shape(self) -> tuple[int, int]:
        """(K, M): the matrix that a row x f[K] is multiplied by."""
        if self.lanes > 1:
            groups, blocks, _ = self.rows.shape
            return blocks * self.format.weights, groups * self.lanes
        outputs, stored = self.rows.shape
        return stored // self.format.size * self.format.weights, outputs


def interleave(rows: np.ndarray, kind: str, lanes: int) -> Packed:
    """Stored rows with blocks of so many outputs beside each other, if they can be.

    Then a vector holds the same part of a block of each output, and one load gets it.
    Of a block of all outputs first come their scales, then their least values, then
    words of four bytes: the first one of each output, the second of each, and so on.

    Args:
      rows: [M, K / weights * size].
      kind: their format. One that is not in ``INTERLEAVED`` stays as it is, and so do
        rows whose number is not a multiple of ``lanes``.
      lanes: 1 leaves all as it is.
    """
    form, outputs = FORMATS[kind], rows.shape[0]
    if lanes == 1 or kind not in INTERLEAVED or outputs % lanes:
        return Packed(jax.device_put(rows), kind)
    grouped = rows.reshape(outputs // lanes, lanes, -1, form.size).swapaxes(1, 2)
    split = 2 * form.num_halves
    parts = [
        grouped[..., part].reshape(*grouped.shape[:3], -1, width)
        for part, width in ((slice(0, split), 2), (slice(split, None), _WORD))
    ]
    flat = [np.swapaxes(part, 2, 3).reshape(*grouped.shape[:2], -1) for part in parts]
    return Packed(jax.device_put(np.concatenate(flat, axis=-1)), kind, lanes)


def take_rows(weight: Packed, index: jax.Array) -> Packed:
    """The weights of outputs i32[n], not interleaved."""
    if weight.lanes == 1:
        return Packed(weight.rows[index], weight.kind)
    groups = weight.rows[index // weight.lanes]  # [n, blocks, lanes * size]
    lane = index % weight.lanes
    parts = [
        jax.vmap(lambda words, at: words[:, :, at])(part, lane)
        for part in _words(groups, weight)
    ]
    return Packed(_joined(parts).reshape(len(index), -1), weight.kind)


def blocks(weight: Packed) -> jax.Array:
    """The stored blocks [M, K / weights, size], each whole."""
    if weight.lanes == 1:
        return weight.rows.reshape(weight.shape[1], -1, weight.format.size)
    # By axes: an index of all outputs would read each group once an output.
    parts = _words(weight.rows, weight)
    return _joined([jnp.moveaxis(part, 3, 1) for part in parts])


def decode(weight: Packed) -> jax.Array:
    """The weights as f32[M, K]."""
    inputs, outputs = weight.shape
    return weight.format.decode(blocks(weight)).reshape(outputs, inputs)


def _words(groups: jax.Array, weight: Packed) -> list[jax.Array]:
    """Interleaved bytes [..., lanes * size] as [..., words, lanes, bytes of a word].

    Twice: of the float16 numbers, then of what follows them.
    """
    split = 2 * weight.format.num_halves * weight.lanes
    return [
        part.reshape(*part.shape[:-1], -1, weight.lanes, width)
        for part, width in ((groups[..., :split], 2), (groups[..., split:], _WORD))
    ]


def _joined(parts: list[jax.Array]) -> jax.Array:
    """Blocks [n, blocks, size] of words [..., blocks, words, bytes of a word]."""
    *_, blocks, _, _ = parts[0].shape
    flat = [part.reshape(-1, blocks, part.shape[-2] * part.shape[-1]) for part in parts]
    return jnp.concatenate(flat, axis=-1)


def finite(rows: np.ndarray, kind: str) -> bool:
    """Whether stored rows [..., K / weights * size] hold finite numbers only."""
    form = FORMATS[kind]
    if not form.num_halves:
        return bool(np.isfinite(rows.astype(np.float32, copy=False)).all())
    stop = form.halves_at + 2 * form.num_halves
    blocks = rows.reshape(-1, form.size)[:, form.halves_at : stop]
    return bool(np.isfinite(np.ascontiguousarray(blocks).view(np.float16)).all())
