"""The heads of Medusa: each guesses a token further on from one hidden state.

Params are a plain dict::

    blocks  {"w": f[K, L, E, E], "b": f[K, L, E]}, of K heads with L blocks each
    head    f[K, E, Vd], the heads' own matrices; None where they use the target's
    rows    the target's head rows of the draft vocabulary, packed, where picking them
            out in every round would cost more than the product; None elsewhere
    ids     i32[Vd], ascending, the draft vocabulary; None where it is the target's
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from pallas_kernels import linear
from specjax.models import config as config_lib
from specjax.models import decoder

Params = Any


class ResBlocks(nn.Module):
    """The blocks of all heads side by side: ``z + SiLU(z W + b)``, L times.

    Weights and biases begin at zero, where every head is the target's own.

    Attributes:
      heads: K.
      layers: L, each with weights of its own.
    """

    heads: int
    layers: int

    @nn.compact
    def __call__(self, feature: jax.Array) -> jax.Array:
        """What each head makes of a hidden state: f[..., K, E] of f[..., E].

        Source: Medusa (Cai et al. 2024), section 2.1.1. The reference begins with a
        random bias, and its blocks of a head share their weights by mistake.
        """
        size, zeros = feature.shape[-1], nn.initializers.zeros
        blocks = (self.heads, self.layers, size)
        w = self.param("w", zeros, (*blocks, size), feature.dtype)
        b = self.param("b", zeros, blocks, feature.dtype)
        z = jnp.repeat(feature[..., None, :], self.heads, axis=-2)
        for layer in range(self.layers):
            moved = jnp.einsum("...ke,kef->...kf", z, w[:, layer])
            bias = b[:, layer].reshape((1,) * (z.ndim - 2) + b[:, layer].shape)
            z = z + nn.silu(moved + bias)
        return z


def init_blocks(
    key: jax.Array, heads: int, layers: int, size: int, dtype: Any = jnp.float32
) -> Params:
    """Fresh blocks of K heads over hidden states of ``size`` E."""
    module = ResBlocks(heads=heads, layers=layers)
    return module.init(key, jnp.zeros((1, size), dtype))["params"]


def hidden(params: Params, feature: jax.Array) -> jax.Array:
    """What each head reads its tokens from: f[..., K, E] of hidden states f[..., E]."""
    blocks = params["blocks"]
    heads, layers, _ = blocks["b"].shape
    made = ResBlocks(heads=heads, layers=layers).apply({"params": blocks}, feature)
    assert isinstance(made, jax.Array)
    return made


def logits(
    config: config_lib.ModelConfig,
    params: Params,
    target: decoder.Params,
    z: jax.Array,
) -> jax.Array:
    """Logits f32[B, K, Vd] of ``hidden``'s f[B, K, E].

    Args:
      config: of the target.
      params: of the heads.
      target: the target's params; read where heads have no matrices of their own.
      z: see above.
    """
    if params.get("head") is not None:
        made = jnp.einsum(
            "bke,kev->bkv", z, params["head"], preferred_element_type=jnp.float32
        )
        return capped(config, made)
    flat = z.reshape(-1, z.shape[-1])
    ids = params.get("ids")
    if params.get("rows") is not None:
        made = capped(config, linear.linear(flat, params["rows"], dtype=jnp.float32))
    elif ids is None:
        made = decoder.head(config, target, flat)
    else:
        made = row_logits(config, flat, target_rows(config, target, ids))
    return made.reshape(*z.shape[:-1], -1)


def row_logits(
    config: config_lib.ModelConfig, z: jax.Array, rows: jax.Array
) -> jax.Array:
    """Logits f32[..., Vd] of z f[..., E] by rows f[Vd, E] of the target's head."""
    made = jnp.einsum(
        "...e,ve->...v", z, rows.astype(z.dtype), preferred_element_type=jnp.float32
    )
    return capped(config, made)


def target_rows(
    config: config_lib.ModelConfig, target: decoder.Params, ids: jax.Array
) -> jax.Array:
    """Rows f[Vd, E] of the target's head for some ids i32[Vd]."""
    weight = head_weight(config, target)
    if config.tied_head or isinstance(weight, linear.Packed | linear.Tiled):
        return linear.take_rows(weight, ids)
    return weight[:, ids].T


def head_weight(config: config_lib.ModelConfig, target: decoder.Params) -> Any:
    """The matrix of the target's head, in whichever form it is kept."""
    return target["embed" if config.tied_head else "head"]


def capped(config: config_lib.ModelConfig, made: jax.Array) -> jax.Array:
    """Logits with the soft cap that the target has on its own."""
    if not config.final_cap:
        return made
    return config.final_cap * jnp.tanh(made / config.final_cap)
