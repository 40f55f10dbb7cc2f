"""How the work of the GPU kernel is cut into programs."""

import dataclasses

import jax.numpy as jnp

_LEAST = 16  # sides of a product by the matrix units
_BLOCK_BYTES = 16 << 10  # of a block of keys; four such lie in shared memory
_ROWS = 64  # queries of a program at most
_EXACT_ROWS = 16  # of float32, whose products need registers of their own
_SUMS = 8192  # numbers of a tile of queries that four warps hold well
_PROGRAMS = 256  # that keep all of a large GPU busy
_BLOCKS = 4  # of a full cache, that a share has at least


@dataclasses.dataclass(frozen=True)
class Tiles:
    """The work of one program.

    Attributes:
      block: keys at a time, a power of two from 16.
      rows: packed queries, a power of two from 16.
      shares: programs among which the cached blocks of a row are dealt out.
      warps: threads of the program, in 32s.
    """

    block: int
    rows: int
    shares: int
    warps: int = 4

    def __post_init__(self):
        for name in ("block", "rows"):
            side = getattr(self, name)
            if side < _LEAST or side & (side - 1):
                raise ValueError(f"{name} must be a power of two from 16, got {side}")
        if self.shares < 1:
            raise ValueError(f"shares must be 1 or more, got {self.shares}")


def padded(side: int) -> int:
    """A side of a product as the kernel has it: a power of two from 16."""
    return max(_LEAST, 1 << (side - 1).bit_length())


def choose(heads: int, slots: int, size: int, queries: int, dtype: jnp.dtype) -> Tiles:
    """Tiles that fit shared memory, and programs enough for a large GPU.

    Args:
      heads: kv heads of all batch rows, B * G.
      slots: S of the cache.
      size: D, head size.
      queries: R * N, packed queries of a kv head.
      dtype: of the cache.
    """
    width = padded(size)
    block = max(_LEAST, _BLOCK_BYTES // (width * jnp.dtype(dtype).itemsize))
    block = min(block, padded(slots))
    rows = _EXACT_ROWS if jnp.dtype(dtype).itemsize > 2 else _ROWS
    rows = min(padded(queries), rows)
    programs = heads * -(-queries // rows)
    most = max(1, -(-slots // block) // _BLOCKS)
    return Tiles(
        block=block,
        rows=rows,
        shares=max(1, min(_PROGRAMS // programs, most)),
        warps=8 if rows * width > _SUMS else 4,
    )
