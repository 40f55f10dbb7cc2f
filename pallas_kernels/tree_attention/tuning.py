"""How the work of the TPU kernel is cut into tiles."""

import dataclasses

import jax.numpy as jnp

BLOCK = 512  # cached slots a step, at most
_LANES = 128
_CACHE_BYTES = 4 << 20  # of the cache's tiles in VMEM: keys, values, two of each
_QUERY_BYTES = 4 << 20  # of what a tile of queries needs for all heads of a step
_SCORE_BYTES = 1 << 20  # of one tile of scores


@dataclasses.dataclass(frozen=True)
class Tiles:
    """The tile of one grid step.

    Attributes:
      block: cached slots; divides their number.
      heads: kv heads; divides their number.
      rows: packed queries, a multiple of 16 (what a tile of bfloat16 holds).
    """

    block: int
    heads: int
    rows: int

    def __post_init__(self):
        if self.rows % 16:
            raise ValueError(f"rows must be a multiple of 16, got {self.rows}")


def turned(slots: int, size: int) -> bool:
    """Whether XLA lays a cache out with slots innermost: that wastes no lanes."""
    return size % _LANES != 0 and slots % _LANES == 0


def choose(slots: int, groups: int, size: int, queries: int, dtype: jnp.dtype) -> Tiles:
    """Tiles that fill the memory bandwidth and fit the smallest VMEM, 16 MiB.

    A step moves as many kv heads as fit, since a step of one head is shorter than
    what it costs to start it.

    Args:
      slots: S of the cache.
      groups: G, kv heads.
      size: D, head size.
      queries: R * N, packed queries of a kv head.
      dtype: of the cache.
    """
    block = BLOCK if slots % BLOCK == 0 else slots
    width = -(-size // _LANES) * _LANES  # as lanes hold it
    stored = size if turned(slots, size) else width
    rows = min(-(-queries // 16) * 16, _SCORE_BYTES // (4 * block) // 16 * 16)
    cached = 4 * block * stored * jnp.dtype(dtype).itemsize
    query = rows * (4 * 4 * width + 2 * 4 * _LANES)  # in, out, sums, tops and totals
    most = max(1, min(_CACHE_BYTES // cached, _QUERY_BYTES // query))
    heads = max(h for h in range(1, groups + 1) if groups % h == 0 and h <= most)
    return Tiles(block=block, heads=heads, rows=rows)
