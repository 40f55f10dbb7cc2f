"""The public function: checks arguments and chooses an implementation."""

import functools

import jax
import jax.numpy as jnp

from pallas_kernels.glu import cpu, xla

ACTIVATIONS = ("silu", "gelu_tanh")


def glu(gate_up: jax.Array, *, activation: str) -> jax.Array:
    """activation(gate) * up.

    On CPU in float32 native code serves, with a compiler there: XLA computes the few
    thousand exponentials of a round in one thread.

    Args:
      gate_up: f[..., 2, M], the gate first.
      activation: "silu", or "gelu_tanh" for the tanh form of GELU; static.

    Returns:
      f[..., M] in the dtype of gate_up.

    Raises:
      ValueError: the activation is not known, or there are not two parts.
    """
    if activation not in ACTIVATIONS:
        raise ValueError(
            f"glu: activation must be one of {', '.join(ACTIVATIONS)}, got {activation}"
        )
    if gate_up.ndim < 2 or gate_up.shape[-2] != 2:
        raise ValueError(f"glu: gate_up must be [..., 2, M], got {gate_up.shape}")
    by_xla = functools.partial(xla.glu, activation=activation)
    if gate_up.dtype != jnp.float32 or not cpu.available():
        return by_xla(gate_up)
    native = functools.partial(cpu.glu, activation=activation)
    return jax.lax.platform_dependent(gate_up, cpu=native, default=by_xla)
