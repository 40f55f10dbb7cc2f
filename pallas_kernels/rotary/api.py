"""The public function: checks arguments and chooses an implementation."""

import jax
import jax.numpy as jnp

from pallas_kernels.rotary import cpu, xla


def split_heads(
    qkv: jax.Array, cos: jax.Array, sin: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Queries and keys turned by their positions, and values, heads before nodes.

    Halves (a, b) of a head become (a cos - b sin, b cos + a sin).

    Args:
      qkv: f[B, N, G, R + 2, D], for each of G kv heads its R query heads, then key,
        then value; D is even.
      cos, sin: f32[B, N, D / 2].

    Returns:
      q f[B, G, R, N, D], k f[B, G, N, D] and v f[B, G, N, D] in the dtype of qkv.

    Raises:
      ValueError: a shape does not fit.
    """
    rows, nodes, _, parts, size = qkv.shape
    if parts < 3 or size % 2:
        raise ValueError(
            "rotary: qkv must be f[B, N, G, R + 2, D] with at least one query head and "
            f"an even head size, got {qkv.shape}"
        )
    for name, table in (("cos", cos), ("sin", sin)):
        if table.shape != (rows, nodes, size // 2):
            raise ValueError(
                f"rotary: {name} must have shape {(rows, nodes, size // 2)} (qkv is "
                f"{qkv.shape}), got {table.shape}"
            )
    single = all(x.dtype == jnp.float32 for x in (qkv, cos, sin))
    if not single or not cpu.available():
        return xla.split_heads(qkv, cos, sin)
    q, k, v = jax.lax.platform_dependent(
        qkv, cos, sin, cpu=cpu.split_heads, default=xla.split_heads
    )
    return q, k, v
