"""Noise that belongs to a token of a text, not to a slot of a batch.

The default verifier draws the token at history position t as
``argmax(logits + temperature * noise)``. The noise is threefry-2x32 of
(position, token id) under the key of (seed, sample index): nothing else enters,
so speculation, batch mates, padding and schedule cannot change a draw.

Rules that test drafts against their laws draw in *lanes* of their own, keyed by
(lane, round): see ``lane``.
"""

import jax
import jax.numpy as jnp

# Lanes of the rules that draw anew in each round. The exact rule uses the plain key.
LANE_DRAFT = 1
LANE_ACCEPT = 2
LANE_RESIDUAL = 3
LANE_LENIENT = 4

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA
_LANE_TOP = 0xFFFFFFFF


def threefry(
    key: jax.Array, high: jax.Array, low: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Threefry-2x32, 20 rounds, of the counter (high, low).

    Args:
      key: u32[..., 2], broadcast against the counters without its last axis.
      high: u32[...], first counter word.
      low: u32[...], second counter word.

    Returns:
      Two u32 arrays of random bits, of the broadcast shape.

    Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3".
    """
    k0, k1 = key[..., 0], key[..., 1]
    schedule = (k0, k1, k0 ^ k1 ^ jnp.uint32(_PARITY))
    x0, x1 = high + k0, low + k1
    for group in range(5):
        for rotation in _ROTATIONS[group % 2]:
            x0 = x0 + x1
            x1 = (x1 << rotation) | (x1 >> (32 - rotation))
            x1 = x1 ^ x0
        x0 = x0 + schedule[(group + 1) % 3]
        x1 = x1 + schedule[(group + 2) % 3] + jnp.uint32(group + 1)
    return x0, x1


def row_keys(seed: jax.Array, sample: jax.Array) -> jax.Array:
    """The key of each row: its seed and its index within a request's samples.

    Args:
      seed: u32[B].
      sample: u32[B].

    Returns:
      u32[B, 2].
    """
    return jnp.stack([seed.astype(jnp.uint32), sample.astype(jnp.uint32)], axis=-1)


def lane(key: jax.Array, number: int, round_index: jax.Array) -> jax.Array:
    """An independent key for one use of noise in one round.

    Args:
      key: u32[B, 2].
      number: one of the LANE_ constants, static.
      round_index: i32[B], rounds that the row has gone through.

    Returns:
      u32[B, 2].
    """
    bits = threefry(key, jnp.uint32(_LANE_TOP - number), round_index.astype(jnp.uint32))
    return jnp.stack(bits, axis=-1)


def bits(key: jax.Array, position: jax.Array, ids: jax.Array) -> jax.Array:
    """Random bits u32[B, V] of each row's position and each id.

    Args:
      key: u32[B, 2].
      position: i32[B], absolute index in the history.
      ids: i32[V], token ids (a shard or a subset of the vocabulary will do).
    """
    high = position.astype(jnp.uint32)[:, None]
    return threefry(key[:, None, :], high, ids.astype(jnp.uint32)[None, :])[0]


def _fraction(bits_: jax.Array) -> jax.Array:
    """Maps u32 bits to (0, 1), fine near 0 and never 1."""
    unit = (bits_.astype(jnp.float32) + 0.5) * jnp.float32(2.0**-32)
    return jnp.minimum(unit, jnp.float32(1.0 - 2.0**-24))


def gumbel(key: jax.Array, position: jax.Array, ids: jax.Array) -> jax.Array:
    """Standard Gumbel noise f32[B, V], finite everywhere.

    Equals ``-log(-log1p(-u))``: u is resolved finely near 0, where the largest
    values come from. Arguments as for ``bits``.
    """
    return -jnp.log(-jnp.log1p(-_fraction(bits(key, position, ids))))


def uniform(key: jax.Array, position: jax.Array, ids: jax.Array) -> jax.Array:
    """Uniform draws f32[B, M] in [0, 1). Arguments as for ``bits``."""
    top = bits(key, position, ids) >> 8
    return top.astype(jnp.float32) * jnp.float32(2.0**-24)
