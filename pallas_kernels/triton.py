"""Pallas's way to GPUs by Triton, where the installed jax has it.

Later versions of jax give it up for another; then the ops' XLA forms serve.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

try:
    from jax.experimental.pallas import triton
except ImportError:
    triton = None


def available() -> bool:
    """Whether kernels can be lowered so."""
    return triton is not None


def load(ref: Any, mask: jax.Array) -> jax.Array:
    """What lies at ``ref.at[...]``, zeros where the mask is False."""
    assert triton is not None
    return triton.load(ref, mask=mask, other=ref.dtype.type(0))


def store(ref: Any, value: jax.Array, mask: jax.Array) -> None:
    """Writes to ``ref.at[...]`` where the mask is True."""
    assert triton is not None
    triton.store(ref, value.astype(ref.dtype), mask=mask)


def dot(left: jax.Array, right: jax.Array, *, turned: bool = False) -> jax.Array:
    """f32[M, N] of f[M, K] and f[K, N], or ``turned`` f[N, K]; float32 stays whole."""
    return jax.lax.dot_general(
        left,
        right,
        (((1,), (1 if turned else 0,)), ((), ())),
        precision=jax.lax.Precision.HIGHEST,
        preferred_element_type=jnp.float32,
    )


def call(kernel: Any, *, warps: int, stages: int, interpret: bool, **options) -> Any:
    """``pl.pallas_call`` of a kernel for Triton; ``interpret`` runs it anywhere."""
    assert triton is not None
    return pl.pallas_call(
        kernel,
        compiler_params=triton.CompilerParams(num_warps=warps, num_stages=stages),
        interpret=interpret,
        **options,
    )
