"""The public functions: check arguments and choose an implementation."""

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels import backends
from pallas_kernels.linear import cpu, formats, gpu, tiled, tpu, xla

Weight = jax.Array | formats.Packed | tiled.Tiled


def linear(
    x: jax.Array,
    weight: Weight,
    *,
    dtype: jnp.dtype | None = None,
    backend: str | None = None,
) -> jax.Array:
    """y = x W.

    On CPU packed weights are multiplied by native code, which reads them once however
    many rows x has; there a row's result does not depend, bit for bit, on which or how
    many rows are computed with it. Without a compiler, on other devices, for other
    dtypes and for weights interleaved for another machine XLA decodes and multiplies
    them.

    Interleaved weights are multiplied by the processor's matrix unit, in whole numbers:
    of every 32 inputs in turn, x is rounded to multiples of about 2^-23 of the greatest
    of them (to 24 bits with the sign), and to zeros where that is below 1e-30. All else
    is float32.

    Tiled weights are multiplied by a Pallas kernel: on TPU for at most 256 rows, of
    inputs in whole blocks of 32; on GPU for at most 64 and only where it is asked for;
    in bfloat16 and float32, and not where a mesh splits the program. Else XLA decodes
    and multiplies them.

    Args:
      x: f[..., K].
      weight: f[K, ...], or the packed or tiled weights of K inputs and M outputs.
      dtype: of the result, static; that of x if None.
      backend: "native" for packed weights, "tpu" or "gpu" for tiled ones, or "xla",
        static; None takes the first that serves.

    Returns:
      f[..., M], M the product of the other axes of an array.

    Raises:
      ValueError: the numbers of inputs differ, or the backend asked for is not there.
    """
    inputs = weight.shape[0]
    if x.shape[-1] != inputs:
        raise ValueError(
            f"linear: x must have {inputs} inputs as the weights have, got shape "
            f"{x.shape}"
        )
    rows = x.reshape(-1, inputs)
    chosen = backends.choose("linear", backend, _there(rows, weight))
    dtype = x.dtype if dtype is None else jnp.dtype(dtype)
    if not isinstance(weight, formats.Packed | tiled.Tiled):
        whole = weight.reshape(inputs, -1)
        return jnp.matmul(x, whole, preferred_element_type=dtype)
    kernels = {
        "native": {"cpu": cpu.linear},
        "tpu": {"tpu": tpu.linear},
        "gpu": {"cuda": gpu.linear},
    }
    if chosen == "xla":
        made = xla.linear(rows, weight)
    else:
        made = jax.lax.platform_dependent(
            rows, weight, **kernels[chosen], default=xla.linear
        )
    return made.astype(dtype).reshape(*x.shape[:-1], weight.shape[1])


def _there(rows: jax.Array, weight: Weight) -> dict[str, bool]:
    """By name, which backends multiply rows f[n, K] with such weights; best first."""
    platform = backends.platform()
    if isinstance(weight, formats.Packed):
        wanted = platform == "cpu" and rows.dtype == jnp.float32
        return {"native": wanted and cpu.serves(weight), "xla": True}
    if not isinstance(weight, tiled.Tiled):
        return {"xla": True}
    count = rows.shape[0]
    wanted = rows.dtype in (jnp.float32, jnp.bfloat16) and not backends.partitioned()
    return {
        "tpu": wanted and platform == "tpu" and tpu.serves(count, weight),
        "xla": True,
        # Last, so only where it is asked for, until it has been timed on one.
        "gpu": wanted and platform == "gpu" and gpu.serves(count),
    }


def pack(rows: np.ndarray, kind: str) -> formats.Packed:
    """Stored rows as this process multiplies them fastest, on the default device.

    Where the processor has a matrix unit that may mean interleaved, so that ``linear``
    rounds its rows to 24 bits for every 32 inputs, as it says. Packed weights are for
    the machine that packed them: elsewhere they may be slow.

    Args:
      rows: [M, K / weights * size] of the format's dtype, as a file holds them.
      kind: name of the format.

    Returns:
      The weights of K inputs and M outputs.

    Raises:
      ValueError: there is no such format, or rows are not in it.
    """
    form = formats.FORMATS.get(kind)
    if form is None:
        raise ValueError(
            f"pack: kind must be one of {', '.join(formats.FORMATS)}, got {kind!r}"
        )
    if rows.ndim != 2 or rows.dtype != form.dtype or rows.shape[1] % form.size:
        raise ValueError(
            f"pack: rows must be {form.dtype.name}[M, n * {form.size}] for {kind}, got "
            f"{rows.dtype.name}{list(rows.shape)}"
        )
    return formats.interleave(rows, kind, cpu.lanes() if cpu.available() else 1)


def pick(weight: formats.Packed, index: np.ndarray) -> formats.Packed:
    """Packed weights of some outputs i32[n] alone, as ``pack`` would lay them out."""
    chosen = formats.take_rows(weight, jnp.asarray(index, jnp.int32))
    return pack(np.asarray(chosen.rows), chosen.kind)


def take_rows(weight: Weight, index: jax.Array) -> jax.Array:
    """Rows f[..., K] of outputs i32[...]: an embedding that is also a head.

    Args:
      weight: f[M, K], or packed or tiled.
      index: i32[...] in [0, M).
    """
    if not isinstance(weight, formats.Packed | tiled.Tiled):
        return weight[index]
    flat = index.reshape(-1)
    if isinstance(weight, tiled.Tiled):
        rows = tiled.decode(tiled.take_outputs(weight, flat)).T
    else:
        rows = formats.decode(formats.take_rows(weight, flat))
    return rows.reshape(*index.shape, -1)
