"""The tiny model as a Hugging Face directory on disk."""

import json
import pathlib

import numpy as np
from safetensors import numpy as safetensors_numpy

from tests import tiny_model

_TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n"
    "{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
)


def write(folder: pathlib.Path, *, seed: int = 0, chat: bool = True, **changes) -> None:
    """Writes config, random weights, tokenizer and (if ``chat``) a chat template.

    ``changes`` are fields of the model's config.
    """
    c = tiny_model.config(**changes)
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": c.vocab_size,
        "hidden_size": c.embed_size,
        "num_hidden_layers": c.num_layers,
        "num_attention_heads": c.num_heads,
        "num_key_value_heads": c.num_kv_heads,
        "head_dim": c.head_size,
        "intermediate_size": c.mlp_size,
        "max_position_embeddings": c.max_context,
        "rms_norm_eps": c.norm_eps,
        "rope_theta": c.rope_theta,
        "tie_word_embeddings": True,
        "eos_token_id": 0,
    }
    save_weights(folder, random_weights(c, seed))
    (folder / "config.json").write_text(json.dumps(config))
    tokenizer = tiny_model.tokenizer()._backend
    (folder / "tokenizer.json").write_text(tokenizer.to_str())
    if chat:
        (folder / "chat_template.jinja").write_text(_TEMPLATE)


def random_weights(config, seed: int = 0) -> dict[str, np.ndarray]:
    """Random tensors by their Hugging Face names."""
    embed, mlp = config.embed_size, config.mlp_size
    heads = config.num_heads * config.head_size
    kv_heads = config.num_kv_heads * config.head_size
    layer = {
        "input_layernorm": (embed,),
        "post_attention_layernorm": (embed,),
        "self_attn.q_proj": (heads, embed),
        "self_attn.k_proj": (kv_heads, embed),
        "self_attn.v_proj": (kv_heads, embed),
        "self_attn.o_proj": (embed, heads),
        "mlp.gate_proj": (mlp, embed),
        "mlp.up_proj": (mlp, embed),
        "mlp.down_proj": (embed, mlp),
    }
    shapes = {
        "model.embed_tokens.weight": (config.vocab_size, embed),
        "model.norm.weight": (embed,),
    }
    for i in range(config.num_layers):
        shapes |= {f"model.layers.{i}.{name}.weight": s for name, s in layer.items()}
    random = np.random.default_rng(seed)
    return {
        name: random.normal(0.0, 0.2, shape).astype(np.float32)
        for name, shape in shapes.items()
    }


def save_weights(folder: pathlib.Path, weights: dict[str, np.ndarray]) -> None:
    """Writes ``model.safetensors``."""
    safetensors_numpy.save_file(weights, str(folder / "model.safetensors"))
