"""The public functions: check arguments and choose an implementation."""

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.linear import cpu, formats, xla


def linear(x: jax.Array, weight: jax.Array | formats.Packed) -> jax.Array:
    """y = x W.

    On CPU packed weights are multiplied by native code, which reads them once however
    many rows x has; there a row's result does not depend, bit for bit, on which or how
    many rows are computed with it. Without a compiler, on other devices and for other
    dtypes XLA decodes and multiplies them.

    Args:
      x: f[..., K].
      weight: f[K, ...], or the packed weights of K inputs and M outputs.

    Returns:
      f[..., M] in the dtype of x, M the product of the other axes of an array.

    Raises:
      ValueError: the numbers of inputs differ.
    """
    inputs = weight.shape[0]
    if x.shape[-1] != inputs:
        raise ValueError(
            f"linear: x must have {inputs} inputs as the weights have, got shape "
            f"{x.shape}"
        )
    if not isinstance(weight, formats.Packed):
        return x @ weight.reshape(inputs, -1)
    rows = x.reshape(-1, inputs)
    if x.dtype == jnp.float32 and cpu.available():
        made = jax.lax.platform_dependent(
            rows, weight, cpu=cpu.linear, default=xla.linear
        )
    else:
        made = xla.linear(rows, weight)
    return made.reshape(*x.shape[:-1], weight.shape[1])


def pack(rows: np.ndarray, kind: str) -> formats.Packed:
    """Stored rows as this process multiplies them fastest, on the default device.

    Args:
      rows: [M, K / weights * size] of the format's dtype, as a file holds them.
      kind: name of the format.
    """
    return formats.interleave(rows, kind, cpu.lanes() if cpu.available() else 1)


def take_rows(weight: jax.Array | formats.Packed, index: jax.Array) -> jax.Array:
    """Rows f[..., K] of outputs i32[...]: an embedding that is also a head.

    Args:
      weight: f[M, K], or packed.
      index: i32[...] in [0, M).
    """
    if not isinstance(weight, formats.Packed):
        return weight[index]
    taken = formats.take_rows(weight, index.reshape(-1))
    return formats.decode(taken).reshape(*index.shape, -1)
