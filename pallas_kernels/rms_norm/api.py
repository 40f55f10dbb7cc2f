"""The public function: checks arguments and chooses an implementation."""

import functools

import jax
import jax.numpy as jnp

from pallas_kernels.rms_norm import cpu, xla


def rms_norm(x: jax.Array, weight: jax.Array, *, eps: float) -> jax.Array:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis, computed in float32.

    On CPU in float32 native code serves, with a compiler there: a row's result then
    does not depend, bit for bit, on how many rows are computed with it.

    Args:
      x: f[..., E].
      weight: f[E].
      eps: static.

    Returns:
      f[..., E] in the dtype of x.

    Raises:
      ValueError: weight does not have the size of a row.
    """
    if weight.shape != x.shape[-1:]:
        raise ValueError(
            f"rms_norm: weight must have shape {x.shape[-1:]} (x is {x.shape}), got "
            f"{weight.shape}"
        )
    by_xla = functools.partial(xla.rms_norm, eps=eps)
    single = x.dtype == weight.dtype == jnp.float32
    if not single or not cpu.available():
        return by_xla(x, weight)
    native = functools.partial(cpu.rms_norm, eps=eps)
    return jax.lax.platform_dependent(x, weight, cpu=native, default=by_xla)
