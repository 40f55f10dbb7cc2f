"""How rotary frequencies are stretched, read from the metadata of checkpoints."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from specjax.models import config as config_lib
from specjax.models import metadata, rope


def from_hf(
    raw: Mapping[str, Any], usual_theta: float
) -> tuple[float, config_lib.RopeScaling, float | None]:
    """The bases and the scaling of a `config.json`, of old formats and new.

    Args:
      raw: the parsed file.
      usual_theta: the family's base, where the file has none.

    Returns:
      theta, its scaling, and the theta of sliding layers or None for the same.

    Raises:
      ValueError: the scaling is not supported, or a number is missing.
    """
    local_theta = None
    new = raw.get("rope_parameters")
    if new is None:
        theta = float(raw.get("rope_theta", usual_theta))
        scaling = raw.get("rope_scaling") or {}
        if raw["model_type"] == "gemma3_text":
            local_theta = float(raw.get("rope_local_base_freq", 10000.0))
    elif "full_attention" in new or "sliding_attention" in new:
        scaling = new.get("full_attention") or {}
        local = new.get("sliding_attention") or {}
        theta = float(scaling.get("rope_theta", usual_theta))
        local_theta = float(local.get("rope_theta", 10000.0))
        if _hf_scaling(local, raw) != config_lib.RopeScaling():
            raise ValueError(
                f"config: rope_parameters of sliding_attention must be unscaled, got "
                f"{local}"
            )
    else:
        scaling = new
        theta = float(new.get("rope_theta", raw.get("rope_theta", usual_theta)))
    return theta, _hf_scaling(scaling, raw), local_theta


def _hf_scaling(scaling: Mapping[str, Any], raw) -> config_lib.RopeScaling:
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind not in config_lib.ROPE_KINDS:
        raise ValueError(
            f"config: rope_scaling type must be one of "
            f"{', '.join(config_lib.ROPE_KINDS)}, got {kind!r}"
        )
    if scaling.get("partial_rotary_factor", 1.0) != 1.0:
        raise ValueError(
            "config: partial_rotary_factor must be 1 (whole heads rotate), got "
            f"{scaling['partial_rotary_factor']}"
        )
    if kind == "default":
        return config_lib.RopeScaling()
    factor = metadata.positive(scaling, "factor")
    if kind == "linear":
        return config_lib.RopeScaling(kind=kind, factor=factor)
    original = int(
        scaling.get("original_max_position_embeddings")
        or raw.get("original_max_position_embeddings")
        or metadata.integer(raw, "max_position_embeddings")
    )
    if kind == "llama3":
        return config_lib.RopeScaling(
            kind=kind,
            factor=factor,
            low_freq_factor=metadata.positive(scaling, "low_freq_factor"),
            high_freq_factor=metadata.positive(scaling, "high_freq_factor"),
            original_context=original,
        )
    if scaling.get("truncate", True) is not True:
        raise ValueError("config: yarn with truncate = false is not supported")
    return config_lib.RopeScaling(
        kind=kind,
        factor=factor,
        beta_fast=float(scaling.get("beta_fast") or 32.0),
        beta_slow=float(scaling.get("beta_slow") or 1.0),
        original_context=original,
        attention_factor=_hf_attention_factor(scaling, factor),
    )


def _hf_attention_factor(scaling: Mapping[str, Any], factor: float) -> float | None:
    given = scaling.get("attention_factor")
    if given is not None:
        return float(given)
    over, under = scaling.get("mscale"), scaling.get("mscale_all_dim")
    if not (over and under):
        return None

    def scale(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    return scale(over) / scale(under)


def from_gguf(
    raw: Mapping[str, Any],
    head_size: int,
    theta: float,
    rope_factors: np.ndarray | None,
) -> config_lib.RopeScaling:
    """The scaling of a GGUF file.

    Args:
      raw: metadata, the keys without their architecture.
      head_size: D.
      theta: base of the frequencies.
      rope_factors: f32[D / 2], the file's ``rope_freqs.weight``, or None.

    Raises:
      ValueError: the scaling is not supported, or a number is missing.
    """
    kind = raw.get("rope.scaling.type", "none")
    if rope_factors is not None:
        if kind not in ("none", "llama3"):
            raise ValueError(
                f"GGUF: rope_freqs.weight beside rope.scaling.type {kind!r} is not "
                "supported"
            )
        return _llama3_from_factors(raw, head_size, theta, np.asarray(rope_factors))
    if kind == "none":
        old = raw.get("rope.scale_linear", 1.0)
        if old == 1.0:
            return config_lib.RopeScaling()
        return config_lib.RopeScaling(kind="linear", factor=float(old))
    factor = metadata.positive(raw, "rope.scaling.factor")
    if kind == "linear":
        return config_lib.RopeScaling(kind="linear", factor=factor)
    if kind != "yarn":
        raise ValueError(
            f"GGUF: rope.scaling.type must be none, linear or yarn, got {kind!r}"
        )
    base = float(raw.get("rope.scaling.attn_factor", 1.0))
    stretch = 0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0
    return config_lib.RopeScaling(
        kind="yarn",
        factor=factor,
        beta_fast=float(raw.get("rope.scaling.yarn_beta_fast", 32.0)),
        beta_slow=float(raw.get("rope.scaling.yarn_beta_slow", 1.0)),
        original_context=metadata.integer(raw, "rope.scaling.original_context_length"),
        attention_factor=base * stretch,
    )


def _llama3_from_factors(raw, head_size: int, theta: float, factors: np.ndarray):
    """Finds the llama3 ramp that a table of factors came from, or refuses it."""
    original = raw.get("rope.scaling.original_context_length", 8192)
    if factors.shape == (head_size // 2,):
        scaling = config_lib.RopeScaling(
            kind="llama3",
            factor=float(factors.max()),
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_context=int(original),
        )
        plain, _ = rope.frequencies(head_size, theta, config_lib.RopeScaling())
        scaled, _ = rope.frequencies(head_size, theta, scaling)
        if np.allclose(plain / scaled, factors, rtol=1e-4):
            return scaling
    raise ValueError(
        "GGUF: rope_freqs.weight is not a Llama 3 ramp (low 1, high 4, original "
        f"context {original}) for head size {head_size} and base {theta}; such "
        "tables are not supported"
    )
