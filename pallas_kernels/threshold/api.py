"""The public functions: choose an implementation."""

import jax
import jax.numpy as jnp

from pallas_kernels.threshold import cpu, xla


def top_k(values: jax.Array, count: jax.Array) -> jax.Array:
    """The k-th largest value f32[B] of each row; -inf where k is 0.

    On CPU native code serves, with a compiler there, which selects; elsewhere the
    threshold is found by bisection on the bit patterns of floats, without a sort.

    Args:
      values: f[B, V]; a NaN counts as larger than all numbers, one with a sign as
        smaller.
      count: i32[B], k; more than V acts as V.

    Raises:
      ValueError: the shapes do not fit.
    """
    return _chosen(values, count, "top_k")


def top_p(weights: jax.Array, share: jax.Array) -> jax.Array:
    """The smallest weight f32[B] that the nucleus keeps; 0 where the share is 1.

    A token stays iff the tokens of larger weight hold at most that share of the mass,
    so the first one always does and equal ones stay together. Native code on CPU
    selects among the heaviest weights, and sorts nothing.

    Args:
      weights: f[B, V], unnormalised probabilities, finite and 0 or more; in a row with
        a NaN all numbers stay.
      share: f32[B], p.

    Raises:
      ValueError: the shapes do not fit.
    """
    return _chosen(weights, share, "top_p")


def _chosen(numbers: jax.Array, limit: jax.Array, name: str) -> jax.Array:
    if numbers.ndim != 2 or limit.shape != numbers.shape[:1]:
        raise ValueError(
            f"{name}: expected shapes [B, V] and [B], got {numbers.shape} and "
            f"{limit.shape}"
        )
    numbers = numbers.astype(jnp.float32)  # whose bits are compared; exact
    by_xla = getattr(xla, name)
    if not cpu.available():
        return by_xla(numbers, limit)
    native = getattr(cpu, name)
    return jax.lax.platform_dependent(numbers, limit, cpu=native, default=by_xla)
