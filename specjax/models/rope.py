"""Rotary position tables, with the stretches that published models use."""

import math

import jax
import jax.numpy as jnp
import numpy as np

from specjax.models import config as config_lib


def frequencies(
    size: int, theta: float, scaling: config_lib.RopeScaling
) -> tuple[np.ndarray, float]:
    """Inverse frequencies f32[D / 2] and the factor on cos and sin.

    Args:
      size: D.
      theta: base.
      scaling: how frequencies are stretched.

    Source: Llama 3 and YaRN (Peng et al. 2023) as published with the models.
    """
    # In float64, rounded once: at position 300 an error in the last bit of a float32
    # power moves logits by more than 1e-4.
    base = (theta ** (-np.arange(0, size, 2) / size)).astype(np.float32)
    if scaling.kind == "default":
        return base, 1.0
    if scaling.kind == "linear":
        return base / np.float32(scaling.factor), 1.0
    if scaling.kind == "llama3":
        return _llama3(base, scaling), 1.0
    return _yarn(base, size, theta, scaling)


def _llama3(base: np.ndarray, scaling: config_lib.RopeScaling) -> np.ndarray:
    wavelength = 2 * math.pi / base
    low = scaling.original_context / scaling.low_freq_factor
    high = scaling.original_context / scaling.high_freq_factor
    ramp = (scaling.original_context / wavelength - scaling.low_freq_factor) / (
        scaling.high_freq_factor - scaling.low_freq_factor
    )
    blended = (1 - ramp) * base / scaling.factor + ramp * base
    slow = np.where(wavelength > low, base / scaling.factor, blended)
    return np.where(wavelength < high, base, slow).astype(np.float32)


def _yarn(base, size, theta, scaling) -> tuple[np.ndarray, float]:
    def boundary(rotations: float) -> float:
        """Dimension whose wave turns that many times in the trained context."""
        turns = scaling.original_context / (rotations * 2 * math.pi)
        return size * math.log(turns) / (2 * math.log(theta))

    low = max(math.floor(boundary(scaling.beta_fast)), 0)
    high = min(math.ceil(boundary(scaling.beta_slow)), size - 1)
    ramp = (np.arange(size // 2) - low) / max(high - low, 0.001)
    keep = 1 - np.clip(ramp, 0, 1)
    mixed = base / scaling.factor * (1 - keep) + base * keep
    factor = scaling.attention_factor
    if factor is None:
        factor = 0.1 * math.log(scaling.factor) + 1.0 if scaling.factor > 1 else 1.0
    return mixed.astype(np.float32), factor


def tables(
    config: config_lib.ModelConfig, position: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """cos and sin f32[T, B, N, D / 2] at positions i32[B, N].

    T is 1, or 2 when windowed layers rotate with a base of their own; then table 1
    is theirs.
    """
    kinds = [(config.rope_theta, config.rope_scaling)]
    if config.local_rope_theta is not None:
        kinds.append((config.local_rope_theta, config_lib.RopeScaling()))
    cos, sin = [], []
    for theta, scaling in kinds:
        inverse, factor = frequencies(config.head_size, theta, scaling)
        angle = position.astype(jnp.float32)[..., None] * inverse[None, None]
        cos.append(jnp.cos(angle) * factor)
        sin.append(jnp.sin(angle) * factor)
    return jnp.stack(cos), jnp.stack(sin)


def table_of_layer(config: config_lib.ModelConfig, layer: int) -> int:
    """Which table a layer uses."""
    return int(config.local_rope_theta is not None and config.window(layer) > 0)
