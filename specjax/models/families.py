"""What differs between the families of one decoder, read from their metadata.

A checkpoint says which family it is of, in the words of transformers
(`config.json`) or of GGUF (metadata keys). Both become a ``ModelConfig``; nothing
after this file asks for a family by name, save for the way that weights are stored
(``hf_storage``, ``gguf_storage``).
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from specjax.models import config as config_lib
from specjax.models import metadata as metadata_lib
from specjax.models import rope_scaling

_ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_tanh": "gelu_tanh",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Storage:
    """How a checkpoint stores weights of a family.

    Attributes:
      interleaved_rope: rows of q and k pair dimensions (0, 1), (2, 3), ... instead
        of halves.
      norm_offset: to add to the weights of RMS norms.
    """

    interleaved_rope: bool = False
    norm_offset: float = 0.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Family:
    """Facts of a family that its metadata may leave out."""

    arch: str  # of transformers
    tied_head: bool = False
    gemma: bool = False
    qkv_bias: bool = False  # always, whatever attention_bias says
    mlp_bias: bool = False  # whether an option may turn it on
    qk_norm: bool = False
    sliding: bool = False  # whether it has a sliding window at all
    head_size: int | None = None  # None for E / H
    attention_cap: float | None = None  # None: it knows no caps
    final_cap: float | None = None
    rope_theta: float = 10000.0
    norm_eps: float = 1e-6


_HF = {
    "llama": _Family(arch="LlamaForCausalLM", mlp_bias=True),
    "mistral": _Family(arch="MistralForCausalLM", sliding=True),
    "qwen2": _Family(arch="Qwen2ForCausalLM", qkv_bias=True, sliding=True),
    "qwen3": _Family(
        arch="Qwen3ForCausalLM", qk_norm=True, sliding=True, head_size=128
    ),
    "gemma2": _Family(
        arch="Gemma2ForCausalLM",
        tied_head=True,
        gemma=True,
        sliding=True,
        head_size=256,
        attention_cap=50.0,
        final_cap=30.0,
    ),
    "gemma3_text": _Family(
        arch="Gemma3ForCausalLM",
        tied_head=True,
        gemma=True,
        qk_norm=True,
        sliding=True,
        head_size=256,
        attention_cap=0.0,
        final_cap=0.0,
        rope_theta=1e6,
    ),
}

# Options that would change the maths: value that means "off".
_HF_REFUSED = {
    "quantization_config": None,
    "partial_rotary_factor": 1.0,
    "num_experts": 0,
    "num_local_experts": 0,
    "attention_multiplier": 1.0,
    "residual_multiplier": 1.0,
    "embedding_multiplier": 1.0,
    "logits_scaling": 1.0,
    "use_bidirectional_attention": False,
    "is_encoder_decoder": False,
    "add_cross_attention": False,
    "no_rope_layers": None,
    "rope_interleaved": False,
    "clip_qkv": None,
}

_GGUF = {
    "llama": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "gemma2": "gemma2",
    "gemma3": "gemma3_text",
}
_GGUF_REFUSED = ("expert_count", "attention.scale", "logit_scale", "residual_scale")


def hf_storage(config: config_lib.ModelConfig) -> Storage:
    """How Hugging Face directories store this model: Gemma norms lack their 1."""
    return Storage(norm_offset=1.0 if _HF[config.family].gemma else 0.0)


def gguf_storage(config: config_lib.ModelConfig) -> Storage:
    """How GGUF stores this model: q and k of Llama are reordered for its kernels."""
    return Storage(interleaved_rope=config.family == "llama")


def from_hf(config_json: Mapping[str, Any]) -> config_lib.ModelConfig:
    """Reads a `config.json` of transformers, of old formats and new.

    Args:
      config_json: the parsed file.

    Returns:
      The config.

    Raises:
      ValueError: the family or one of its options is not supported, or a number is
        missing or not sensible.
    """
    raw = {k: v for k, v in config_json.items() if v is not None}
    name = raw.get("model_type")
    if name not in _HF:
        hint = "; the text part alone has model_type gemma3_text"
        raise ValueError(
            f"config: model_type must be one of {', '.join(_HF)}, got {name!r}"
            + (hint if name == "gemma3" else "")
        )
    family = _HF[name]
    _refuse_hf(raw, family)
    layers = metadata_lib.integer(raw, "num_hidden_layers")
    heads = metadata_lib.integer(raw, "num_attention_heads")
    embed = metadata_lib.integer(raw, "hidden_size")
    head_size = metadata_lib.integer(
        raw, "head_dim", family.head_size or embed // heads
    )
    theta, scaling, local_theta = rope_scaling.from_hf(raw, family.rope_theta)
    bias = bool(raw.get("attention_bias", False))
    scalar = raw.get("query_pre_attn_scalar", 256) if family.gemma else None
    return _checked(
        family=name,
        vocab_size=metadata_lib.integer(raw, "vocab_size"),
        embed_size=embed,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=metadata_lib.integer(raw, "num_key_value_heads", heads),
        head_size=head_size,
        mlp_size=metadata_lib.integer(raw, "intermediate_size"),
        max_context=metadata_lib.integer(raw, "max_position_embeddings"),
        norm_eps=float(raw.get("rms_norm_eps", family.norm_eps)),
        rope_theta=theta,
        rope_scaling=scaling,
        local_rope_theta=local_theta,
        windows=_hf_windows(config_json, name, layers),
        tied_head=bool(raw.get("tie_word_embeddings", family.tied_head)),
        qkv_bias=family.qkv_bias or bias,
        output_bias=bias and not family.qkv_bias,
        mlp_bias=family.mlp_bias and bool(raw.get("mlp_bias", False)),
        qk_norm=family.qk_norm,
        post_norms=family.gemma,
        activation=_hf_activation(raw, family),
        embed_scale=math.sqrt(embed) if family.gemma else 1.0,
        query_scale=None if scalar is None else float(scalar) ** -0.5,
        attention_cap=_cap(config_json, "attn_logit_softcapping", family.attention_cap),
        final_cap=_cap(config_json, "final_logit_softcapping", family.final_cap),
    )


def from_gguf(
    metadata: Mapping[str, Any],
    *,
    tied_head: bool = True,
    rope_factors: np.ndarray | None = None,
) -> config_lib.ModelConfig:
    """Reads the metadata of a GGUF file.

    Args:
      metadata: keys and values.
      tied_head: whether the file has no ``output.weight``.
      rope_factors: f32[D / 2], the file's ``rope_freqs.weight`` if it has one: how
        GGUF stores the scaling of Llama 3.

    Returns:
      The config.

    Raises:
      ValueError: the architecture or one of its options is not supported, or a key
        is missing or not sensible.
    """
    arch = metadata.get("general.architecture")
    if arch not in _GGUF:
        raise ValueError(
            f"GGUF: general.architecture must be one of {', '.join(_GGUF)}, got "
            f"{arch!r}"
        )
    raw = {
        key.removeprefix(f"{arch}."): value
        for key, value in metadata.items()
        if key.startswith(f"{arch}.")
    }
    for option in _GGUF_REFUSED:
        if raw.get(option):
            raise ValueError(
                f"GGUF: {arch}.{option} = {raw[option]} is not supported; expected a "
                "dense decoder without it"
            )
    name = _GGUF[arch]
    family = _HF[name]
    layers = metadata_lib.integer(raw, "block_count")
    heads = metadata_lib.integer(raw, "attention.head_count")
    embed = metadata_lib.integer(raw, "embedding_length")
    head_size = metadata_lib.integer(raw, "attention.key_length", embed // heads)
    if metadata_lib.integer(raw, "rope.dimension_count", head_size) != head_size:
        raise ValueError(
            f"GGUF: {arch}.rope.dimension_count must be the head size {head_size} "
            f"(partial rotation is not supported), got {raw['rope.dimension_count']}"
        )
    tokens = metadata.get("tokenizer.ggml.tokens", ())
    theta = float(raw.get("rope.freq_base", family.rope_theta))
    local_theta = None
    if name == "gemma3_text":
        local_theta = float(raw.get("rope.freq_base_swa", 10000.0))
    return _checked(
        family=name,
        vocab_size=metadata_lib.integer(raw, "vocab_size", len(tokens) or None),
        embed_size=embed,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=metadata_lib.integer(raw, "attention.head_count_kv", heads),
        head_size=head_size,
        mlp_size=metadata_lib.integer(raw, "feed_forward_length"),
        max_context=metadata_lib.integer(raw, "context_length"),
        norm_eps=float(raw.get("attention.layer_norm_rms_epsilon", family.norm_eps)),
        rope_theta=theta,
        rope_scaling=rope_scaling.from_gguf(raw, head_size, theta, rope_factors),
        local_rope_theta=local_theta,
        windows=_gguf_windows(raw, name, layers) if family.gemma else (),
        tied_head=tied_head,
        qkv_bias=family.qkv_bias,
        qk_norm=family.qk_norm,
        post_norms=family.gemma,
        activation="gelu_tanh" if family.gemma else "silu",
        embed_scale=math.sqrt(embed) if family.gemma else 1.0,
        query_scale=_gguf_query_scale(name, layers, embed, heads, head_size),
        attention_cap=_cap(raw, "attn_logit_softcapping", family.attention_cap),
        final_cap=_cap(raw, "final_logit_softcapping", family.final_cap),
    )


def _checked(**fields: Any) -> config_lib.ModelConfig:
    """The config, or a ValueError for numbers that can't be."""
    for field in ("norm_eps", "rope_theta"):
        if not (math.isfinite(fields[field]) and fields[field] > 0):
            raise ValueError(f"config: {field} must be positive, got {fields[field]}")
    if fields["head_size"] % 2:
        raise ValueError(
            f"config: head size must be even to rotate, got {fields['head_size']}"
        )
    return config_lib.ModelConfig(**fields)


def _refuse_hf(raw: Mapping[str, Any], family: _Family) -> None:
    architectures = raw.get("architectures") or [family.arch]
    if architectures != [family.arch]:
        raise ValueError(
            f"config: architectures must be [{family.arch!r}] for model_type "
            f"{raw['model_type']}, got {architectures}"
        )
    for option, off in _HF_REFUSED.items():
        if raw.get(option, off) != off:
            raise ValueError(
                f"config: {option} = {raw[option]!r} is not supported; expected it "
                f"absent or {off!r}"
            )


def _hf_activation(raw: Mapping[str, Any], family: _Family) -> str:
    if family.gemma:
        # Gemma's old files say hidden_act "gelu" and mean the tanh form.
        name = raw.get("hidden_activation", "gelu_pytorch_tanh")
    else:
        name = raw.get("hidden_act", "silu")
    if name not in _ACTIVATIONS:
        raise ValueError(
            f"config: hidden_act must be one of {', '.join(_ACTIVATIONS)}, got {name!r}"
        )
    return _ACTIVATIONS[name]


def _cap(raw: Mapping[str, Any], key: str, default: float | None) -> float:
    """A soft cap: absent means the family's, null means none."""
    if default is None:
        return 0.0
    return float(raw.get(key, default) or 0.0)


def _hf_windows(raw: Mapping[str, Any], name: str, layers: int) -> tuple[int, ...]:
    family = _HF[name]
    window = raw.get("sliding_window", 4096)  # null means none
    if name.startswith("qwen") and not raw.get("use_sliding_window", False):
        window = 0
    if not family.sliding or not window:
        return ()
    window = metadata_lib.integer({"sliding_window": window}, "sliding_window")
    kinds = raw.get("layer_types")
    if kinds is None:
        sliding = _old_sliding_layers(raw, name, layers)
    else:
        known = {"full_attention": False, "sliding_attention": True}
        unknown = sorted(set(kinds) - set(known))
        if unknown or len(kinds) != layers:
            raise ValueError(
                f"config: layer_types must be {layers} of {', '.join(known)}, got "
                f"{len(kinds)} with {unknown or sorted(set(kinds))}"
            )
        sliding = [known[kind] for kind in kinds]
    return tuple(window if slides else 0 for slides in sliding)


def _old_sliding_layers(raw, name: str, layers: int) -> list[bool]:
    """Which layers slide, where the file is older than `layer_types`."""
    if name == "gemma2":
        return [i % 2 == 0 for i in range(layers)]
    if name == "gemma3_text":
        pattern = metadata_lib.integer(raw, "sliding_window_pattern", 6)
        return [(i + 1) % pattern != 0 for i in range(layers)]
    if name.startswith("qwen"):
        first = raw.get("max_window_layers", 28)
        return [i >= first for i in range(layers)]
    return [True] * layers


def _gguf_windows(raw, name: str, layers: int) -> tuple[int, ...]:
    """Of Gemma; files of other families have no window that is in use."""
    window = metadata_lib.integer(raw, "attention.sliding_window")
    pattern = raw.get("attention.sliding_window_pattern")
    if isinstance(pattern, list):
        sliding = [bool(x) for x in pattern]
    elif pattern is not None:
        sliding = [(i + 1) % int(pattern) != 0 for i in range(layers)]
    else:
        sliding = _old_sliding_layers({}, name, layers)
    if len(sliding) != layers:
        raise ValueError(
            f"GGUF: attention.sliding_window_pattern must have {layers} entries, got "
            f"{len(sliding)}"
        )
    return tuple(window if slides else 0 for slides in sliding)


def _gguf_query_scale(name, layers, embed, heads, head_size) -> float | None:
    """The 27B Gemmas scale by E / H; GGUF leaves it to the reader to know them."""
    if name not in ("gemma2", "gemma3_text"):
        return None
    big = (name, layers) in (("gemma2", 46), ("gemma3_text", 62))
    return (embed / heads if big else head_size) ** -0.5
