"""What checkpoints are loaded in tests, and how params are compared."""

import functools

import jax
import numpy as np

from specjax import checkpoints

dense = functools.partial(checkpoints.load, weights="dense")
GEMMA = {
    "head_dim": 16,
    "sliding_window": 8,
    "query_pre_attn_scalar": 16,
    "rms_norm_eps": 1e-5,
}
# Checkpoints that both formats can hold, with GGUF's name of the architecture.
BOTH = {
    "llama": ("llama", {}),
    "llama tied": ("llama", {"tie_word_embeddings": True}),
    "qwen2": ("qwen2", {"model_type": "qwen2"}),
    "qwen3": ("qwen3", {"model_type": "qwen3", "head_dim": 16}),
    "gemma2": ("gemma2", {"model_type": "gemma2", **GEMMA}),
    "gemma3": (
        "gemma3",
        {"model_type": "gemma3_text", **GEMMA, "sliding_window_pattern": 6},
    ),
}


def same(first, second, **tolerance):
    """Asserts that two params are equal in structure and value."""
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, **tolerance), first, second
    )
