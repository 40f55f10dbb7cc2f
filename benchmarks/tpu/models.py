"""Shapes of the models that are compiled for TPU."""

from specjax.models import config as config_lib

SMOLLM2 = config_lib.ModelConfig(
    family="llama",
    vocab_size=49152,
    embed_size=576,
    num_layers=30,
    num_heads=9,
    num_kv_heads=3,
    head_size=64,
    mlp_size=1536,
    max_context=8192,
    rope_theta=100_000.0,
    tied_head=True,
)
LLAMA3_8B = config_lib.ModelConfig(
    family="llama",
    vocab_size=128256,
    embed_size=4096,
    num_layers=32,
    num_heads=32,
    num_kv_heads=8,
    head_size=128,
    mlp_size=14336,
    max_context=8192,
    rope_theta=500_000.0,
)
LLAMA2_70B = config_lib.ModelConfig(
    family="llama",
    vocab_size=32000,
    embed_size=8192,
    num_layers=80,
    num_heads=64,
    num_kv_heads=8,
    head_size=128,
    mlp_size=28672,
    max_context=4096,
)
QWEN3_32B = config_lib.ModelConfig(
    family="qwen3",
    vocab_size=151936,
    embed_size=5120,
    num_layers=64,
    num_heads=64,
    num_kv_heads=8,
    head_size=128,
    mlp_size=25600,
    max_context=40960,
    rope_theta=1_000_000.0,
    qk_norm=True,
)
GEMMA3_27B = config_lib.ModelConfig(
    family="gemma3_text",
    vocab_size=262208,
    embed_size=5376,
    num_layers=62,
    num_heads=32,
    num_kv_heads=16,
    head_size=128,
    mlp_size=21504,
    max_context=131072,
    rope_theta=1_000_000.0,
    local_rope_theta=10_000.0,
    windows=tuple(0 if (i + 1) % 6 == 0 else 1024 for i in range(62)),
    tied_head=True,
    qk_norm=True,
    post_norms=True,
    activation="gelu_tanh",
)
