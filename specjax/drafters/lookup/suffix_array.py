"""Suffix arrays: where a phrase occurs in a large text, in a few dozen steps.

A suffix array lists the starts of all suffixes in alphabetical order, so the suffixes
that begin with a phrase lie together, and binary search finds both ends of them::

    text    1 2 1 3        suffixes   order   those that begin with "1"
                           1 2 1 3    0       [0, 2): starts 0 and 2
                           1 3        2
                           2 1 3      1
                           3          3

Documents are joined by a token that no phrase has, so no phrase spans two of them.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

SEPARATOR = -1
_PAST_END = -2  # a suffix that ends goes before those that go on


def join(documents: Sequence[Sequence[int] | np.ndarray]) -> np.ndarray:
    """All documents as one text, NumPy i32[M], a separator after each."""
    parts = [np.append(np.asarray(ids, np.int32), SEPARATOR) for ids in documents]
    return np.concatenate(parts).astype(np.int32) if parts else np.zeros(0, np.int32)


def build(tokens: np.ndarray) -> np.ndarray:
    """The suffix array of a text, on the host.

    Every suffix has a rank by its first token, then by its first 2, 4, 8, ... tokens:
    a suffix of twice the length is a pair of ranks. O(M log M) a doubling, and as many
    doublings as the longest repeat needs.

    Args:
      tokens: NumPy i32[M], ids and separators.

    Returns:
      NumPy i32[M], starts of suffixes in order.

    Raises:
      ValueError: the text is not one row of integers, or too long for int32.
    """
    tokens = np.asarray(tokens)
    if tokens.ndim != 1 or not np.issubdtype(tokens.dtype, np.integer):
        raise ValueError(
            f"tokens must be i32[M], got {tokens.dtype}{list(tokens.shape)}"
        )
    size = tokens.shape[0]
    if size >= 2**31 - 1:
        raise ValueError(f"tokens must be fewer than 2^31 - 1, got {size}")
    if size == 0:
        return np.zeros(0, np.int32)
    order, rank = _ranked(tokens.astype(np.int64))
    span = 1
    while rank[order[-1]] < size - 1:  # some suffixes still share a rank
        second = np.zeros(size, np.int64)  # 0 where the suffix has ended
        second[:-span] = rank[span:] + 1
        order, rank = _ranked(rank * (size + 1) + second)
        span *= 2
    return order.astype(np.int32)


def _ranked(key: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(order of the keys, rank of each): equal keys share a rank, counted from 0."""
    order = np.argsort(key)
    ordered = key[order]
    rank = np.empty(key.shape[0], np.int64)
    rank[order] = np.concatenate([[0], np.cumsum(ordered[1:] != ordered[:-1])])
    return order, rank


def find(
    text: jax.Array, order: jax.Array, pattern: jax.Array, length: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """The suffixes that begin with a phrase; unbatched.

    Args:
      text: i32[M].
      order: i32[M], its suffix array.
      pattern: i32[P], the phrase at its end.
      length: i32[], how many of the last tokens of ``pattern`` are meant, 0 to P; with
        0 all suffixes are found.

    Returns:
      (low i32[], high i32[]): ``order[low:high]`` are the starts; empty if equal.
    """
    size, width = text.shape[0], pattern.shape[0]
    zero = jnp.int32(0)
    if size == 0:
        return zero, zero
    step = jnp.arange(width, dtype=jnp.int32)
    inside = step < length
    wanted = pattern[jnp.clip(width - length + step, 0, width - 1)]  # i32[P], in front

    def compare(rank: jax.Array) -> jax.Array:
        """-1, 0 or 1: the suffix goes before the phrase, begins with it, or after."""
        at = order[jnp.minimum(rank, size - 1)] + step
        found = jnp.where(at < size, text[jnp.minimum(at, size - 1)], _PAST_END)
        side = jnp.where(inside, jnp.sign(found - wanted), 0)
        return side[jnp.argmax(side != 0)]

    def halve(bounds: jax.Array, take_equal: bool) -> jax.Array:
        low, high = bounds
        middle = low + (high - low) // 2
        side = compare(middle)
        before = (side <= 0) if take_equal else (side < 0)
        before = before & (low < high)
        return jnp.stack(
            [jnp.where(before, middle + 1, low), jnp.where(before, high, middle)]
        )

    def trip(_, both):
        return halve(both[0], False), halve(both[1], True)

    start = jnp.stack([zero, jnp.int32(size)])
    first, last = jax.lax.fori_loop(0, size.bit_length(), trip, (start, start))
    return first[0], last[0]
