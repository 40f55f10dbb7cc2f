"""How weights may be stored: as numbers, or in blocks that share a scale.

A format's bytes are those of GGUF, so that a file's weights need no repacking. Blocks
run along a row; a row is all weights of one output.
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
      num_halves: float16 numbers that a block begins with: scale, least value.
      decode: dtype[..., blocks, size] to f32[..., blocks, weights].
    """

    name: str
    dtype: np.dtype
    weights: int
    size: int
    num_halves: int
    decode: Callable[[jax.Array], jax.Array]


def _halves(blocks: jax.Array, count: int) -> jax.Array:
    """The first numbers f32[..., count] of blocks u8[..., size]."""
    pairs = blocks[..., : 2 * count].reshape(*blocks.shape[:-1], count, 2)
    return jax.lax.bitcast_convert_type(pairs, jnp.float16).astype(jnp.float32)


def _nibbles(packed: jax.Array) -> jax.Array:
    """Values 0 to 15, f32[..., 32], of u8[..., 16]: low halves, then high ones."""
    both = jnp.concatenate([packed & 15, packed >> 4], axis=-1)
    return both.astype(jnp.float32)


def _wide(blocks: jax.Array) -> jax.Array:
    return blocks.astype(jnp.float32)


def _q8_0(blocks: jax.Array) -> jax.Array:
    whole = jax.lax.bitcast_convert_type(blocks[..., 2:], jnp.int8)
    return _halves(blocks, 1) * whole.astype(jnp.float32)


def _q4_0(blocks: jax.Array) -> jax.Array:
    return _halves(blocks, 1) * (_nibbles(blocks[..., 2:]) - 8.0)


def _q4_1(blocks: jax.Array) -> jax.Array:
    halves = _halves(blocks, 2)
    return halves[..., :1] * _nibbles(blocks[..., 4:]) + halves[..., 1:]


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
    )
}


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Packed:
    """Weights of M outputs and K inputs as they were stored.

    Attributes:
      rows: [M, K / weights * size] of the format's dtype; row m holds output m.
      kind: name of the format, static.
    """

    rows: jax.Array
    kind: str = dataclasses.field(metadata={"static": True})

    @property
    def format(self) -> Format:
        return FORMATS[self.kind]

    @property
    def shape(self) -> tuple[int, int]:
        """(K, M): the matrix that a row x f[K] is multiplied by."""
        outputs, stored = self.rows.shape
        return stored // self.format.size * self.format.weights, outputs


def decode(weight: Packed) -> jax.Array:
    """The weights as f32[M, K]."""
    form = weight.format
    blocks = weight.rows.reshape(*weight.rows.shape[:-1], -1, form.size)
    return form.decode(blocks).reshape(*weight.rows.shape[:-1], -1)


def finite(rows: np.ndarray, kind: str) -> bool:
    """Whether stored rows [..., K / weights * size] hold finite numbers only."""
    form = FORMATS[kind]
    if not form.num_halves:
        return bool(np.isfinite(rows.astype(np.float32)).all())
    blocks = rows.reshape(-1, form.size)[:, : 2 * form.num_halves]
    return bool(np.isfinite(np.ascontiguousarray(blocks).view(np.float16)).all())
