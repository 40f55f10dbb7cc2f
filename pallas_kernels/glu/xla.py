"""The op in plain jnp: runs anywhere."""

import jax


def glu(gate_up: jax.Array, *, activation: str) -> jax.Array:
    """See ``api.glu``."""
    gate, up = gate_up[..., 0, :], gate_up[..., 1, :]
    if activation == "silu":
        return jax.nn.silu(gate) * up
    return jax.nn.gelu(gate, approximate=True) * up
