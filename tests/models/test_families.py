"""Configs of transformers and of GGUF: old and new forms, and what is refused."""

import math

import numpy as np
import pytest

from specjax.models import config as config_lib
from specjax.models import families, rope

BASE = {
    "vocab_size": 100,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}


def hf(model_type, **changes):
    """from_hf of a small config; a value of ... removes a key."""
    raw = {**BASE, "model_type": model_type, **changes}
    return families.from_hf({k: v for k, v in raw.items() if v is not ...})


def gguf(arch, *, tied_head=True, rope_factors=None, **changes):
    """from_gguf of small metadata; keys lack the architecture's prefix."""
    raw = {
        "context_length": 512,
        "embedding_length": 32,
        "feed_forward_length": 64,
        "block_count": 4,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        "vocab_size": 100,
        **changes,
    }
    metadata = {f"{arch}.{key}": value for key, value in raw.items()}
    return families.from_gguf(
        {"general.architecture": arch, **metadata},
        tied_head=tied_head,
        rope_factors=rope_factors,
    )


def test_llama_takes_its_defaults():
    config = hf("llama")
    assert (config.head_size, config.group, config.windows) == (8, 2, ())
    assert (config.rope_theta, config.norm_eps) == (10000.0, 1e-6)
    assert not config.tied_head
    assert not config.qkv_bias
    assert config.scale == pytest.approx(8**-0.5)


def test_heads_without_groups():
    assert hf("llama", num_key_value_heads=...).num_kv_heads == 4


def test_biases_of_llama():
    config = hf("llama", attention_bias=True, mlp_bias=True)
    assert (config.qkv_bias, config.output_bias, config.mlp_bias) == (True, True, True)


def test_qwen2_has_biases_on_qkv_only():
    config = hf("qwen2")
    assert (config.qkv_bias, config.output_bias, config.mlp_bias) == (
        True,
        False,
        False,
    )


def test_qwen3_norms_queries_and_keys():
    config = hf("qwen3", head_dim=...)
    assert config.qk_norm
    assert config.head_size == 128


@pytest.mark.parametrize("model_type", ["qwen2", "qwen3"])
def test_qwen_slides_only_when_told_to(model_type):
    options = {"sliding_window": 16, "max_window_layers": 3}
    assert hf(model_type, **options).windows == ()
    config = hf(model_type, use_sliding_window=True, **options)
    assert config.windows == (0, 0, 0, 16)


@pytest.mark.parametrize(
    ("window", "expected"), [(16, (16,) * 4), (None, ()), (..., (4096,) * 4)]
)
def test_mistral_window(window, expected):
    assert hf("mistral", sliding_window=window).windows == expected


def test_gemma2():
    config = hf("gemma2", head_dim=16, sliding_window=8, query_pre_attn_scalar=24)
    assert config.windows == (8, 0, 8, 0)
    assert (config.attention_cap, config.final_cap) == (50.0, 30.0)
    assert config.embed_scale == math.sqrt(32)
    assert config.scale == pytest.approx(24**-0.5)
    assert config.tied_head
    assert config.post_norms
    assert config.activation == "gelu_tanh"
    assert not config.qk_norm


def test_gemma2_without_caps():
    config = hf("gemma2", attn_logit_softcapping=None, final_logit_softcapping=None)
    assert (config.attention_cap, config.final_cap) == (0.0, 0.0)


def test_gemma3_old_and_new_form_agree():
    old = hf(
        "gemma3_text",
        sliding_window=8,
        sliding_window_pattern=3,
        rope_theta=1e6,
        rope_local_base_freq=10000.0,
        rope_scaling={"rope_type": "linear", "factor": 8.0},
    )
    slides = "sliding_attention"
    new = hf(
        "gemma3_text",
        sliding_window=8,
        layer_types=[slides, slides, "full_attention", slides],
        rope_parameters={
            "full_attention": {
                "rope_type": "linear",
                "factor": 8.0,
                "rope_theta": 1e6,
            },
            slides: {"rope_type": "default", "rope_theta": 10000.0},
        },
    )
    assert old == new
    assert old.windows == (8, 8, 0, 8)
    assert (old.rope_theta, old.local_rope_theta) == (1e6, 10000.0)
    assert (old.attention_cap, old.final_cap) == (0.0, 0.0)
    assert old.qk_norm


LLAMA3 = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def test_llama3_scaling_old_and_new_form_agree():
    old = hf("llama", rope_theta=5e5, rope_scaling=LLAMA3)
    new = hf("llama", rope_parameters={**LLAMA3, "rope_theta": 5e5})
    assert old == new
    assert old.rope_scaling == config_lib.RopeScaling(
        kind="llama3",
        factor=32.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_context=8192,
    )


def test_the_oldest_key_of_scaling():
    config = hf("llama", rope_scaling={"type": "linear", "factor": 2})
    assert config.rope_scaling == config_lib.RopeScaling(kind="linear", factor=2.0)


def test_yarn():
    config = hf(
        "qwen2",
        rope_scaling={
            "type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 128,
            "mscale": 1.0,
            "mscale_all_dim": 0.5,
        },
    )
    scaling = config.rope_scaling
    assert (scaling.kind, scaling.original_context) == ("yarn", 128)
    wanted = (0.1 * math.log(4) + 1) / (0.05 * math.log(4) + 1)
    assert scaling.attention_factor == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "phi3"}, "model_type must be one of llama"),
        ({"model_type": ...}, "got None"),
        ({"model_type": "gemma3"}, "gemma3_text"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "architectures"),
        ({"vocab_size": ...}, "vocab_size must be a positive integer, got nothing"),
        ({"hidden_size": "32"}, "hidden_size must be a positive integer"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"num_key_value_heads": 3}, "multiple"),
        ({"head_dim": 7}, "even"),
        ({"rms_norm_eps": 0.0}, "norm_eps"),
        ({"hidden_act": "relu"}, "hidden_act"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"num_local_experts": 8}, "num_local_experts"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "dynamic"),
        ({"rope_scaling": {"type": "linear"}}, "factor"),
        ({"rope_scaling": {**LLAMA3, "low_freq_factor": -1}}, "low_freq_factor"),
        (
            {"rope_scaling": {"type": "yarn", "factor": 2.0, "truncate": False}},
            "truncate",
        ),
    ],
)
def test_what_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        hf(**{"model_type": "llama", **changes})


def test_layer_types_must_be_known_and_as_many_as_layers():
    with pytest.raises(ValueError, match="layer_types must be 4"):
        hf("gemma2", layer_types=["full_attention"] * 3)
    with pytest.raises(ValueError, match="chunked_attention"):
        hf("gemma2", layer_types=["chunked_attention"] * 4)


def test_gguf_llama_equals_hf():
    wanted = hf("llama", rope_theta=1e5, rms_norm_eps=1e-5, tie_word_embeddings=True)
    got = gguf(
        "llama",
        **{"rope.freq_base": 1e5, "attention.layer_norm_rms_epsilon": 1e-5},
        **{"rope.dimension_count": 8},
    )
    assert got == wanted


def test_gguf_separate_head():
    assert not gguf("llama", tied_head=False).tied_head


def test_gguf_vocabulary_from_the_tokens():
    metadata = {
        "general.architecture": "qwen2",
        "tokenizer.ggml.tokens": ["a"] * 77,
        "qwen2.context_length": 512,
        "qwen2.embedding_length": 32,
        "qwen2.feed_forward_length": 64,
        "qwen2.block_count": 4,
        "qwen2.attention.head_count": 4,
    }
    config = families.from_gguf(metadata)
    assert (config.vocab_size, config.num_kv_heads) == (77, 4)
    assert config.qkv_bias


def test_gguf_gemma2():
    config = gguf(
        "gemma2",
        **{"attention.sliding_window": 8, "attention.key_length": 16},
    )
    wanted = hf("gemma2", head_dim=16, sliding_window=8, query_pre_attn_scalar=16)
    assert config == wanted


def test_gguf_gemma3_slides_in_five_of_six():
    config = gguf(
        "gemma3",
        **{"attention.sliding_window": 8, "attention.key_length": 16},
        block_count=7,
    )
    assert config.windows == (8, 8, 8, 8, 8, 0, 8)
    assert (config.rope_theta, config.local_rope_theta) == (1e6, 10000.0)


def test_gguf_big_gemma_scales_by_width():
    """gemma-2-27b: E 4608, H 32, so 1 / sqrt(144), not 1 / sqrt(128)."""
    config = gguf(
        "gemma2",
        **{
            "block_count": 46,
            "embedding_length": 4608,
            "attention.head_count": 32,
            "attention.head_count_kv": 16,
            "attention.key_length": 128,
            "attention.sliding_window": 4096,
        },
    )
    assert config.scale == pytest.approx(1 / 12)


def test_gguf_llama3_ramp_is_found_from_its_table():
    wanted = hf("llama", head_dim=128, rope_theta=5e5, rope_scaling=LLAMA3)
    plain, _ = rope.frequencies(128, 5e5, config_lib.RopeScaling())
    scaled, _ = rope.frequencies(128, 5e5, wanted.rope_scaling)
    config = gguf(
        "llama",
        rope_factors=(plain / scaled).astype(np.float32),
        **{"rope.freq_base": 5e5, "attention.key_length": 128},
    )
    assert config.rope_scaling.kind == "llama3"
    got, _ = rope.frequencies(128, 5e5, config.rope_scaling)
    np.testing.assert_allclose(got, scaled, rtol=1e-6)


def test_gguf_yarn():
    config = gguf(
        "qwen2",
        **{
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 128,
        },
    )
    assert config.rope_scaling.kind == "yarn"
    wanted = 0.1 * math.log(4) + 1
    assert config.rope_scaling.attention_factor == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"block_count": 0}, "block_count"),
        ({"expert_count": 8}, "expert_count"),
        ({"rope.dimension_count": 4}, "partial rotation"),
        ({"rope.scaling.type": "longrope", "rope.scaling.factor": 2.0}, "longrope"),
        ({"rope_factors": np.ones(3, np.float32)}, "rope_freqs"),
        ({"attention.head_count_kv": [2, 1, 2, 2]}, "head_count_kv"),
    ],
)
def test_what_is_refused_of_gguf(changes, message):
    with pytest.raises(ValueError, match=message):
        gguf("llama", **changes)


def test_unknown_architecture_of_gguf():
    with pytest.raises(ValueError, match="must be one of llama, qwen2"):
        families.from_gguf({"general.architecture": "mamba"})
