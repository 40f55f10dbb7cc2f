"""A tiny checkpoint on disk and a way to run commands on it."""

import json

import numpy as np
import pytest
from safetensors import numpy as safetensors_numpy
from typer.testing import CliRunner

from specjax.cli import app
from tests import tiny_model

_TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n"
    "{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
)


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory):
    """A Hugging Face directory of the tiny model, with a chat template."""
    folder = tmp_path_factory.mktemp("tiny")
    write_checkpoint(folder)
    return folder


@pytest.fixture
def make_checkpoint(tmp_path):
    """(name) -> a fresh folder with the checkpoint, to be spoilt by the test."""

    def make(name="model", **changes):
        folder = tmp_path / name
        folder.mkdir()
        write_checkpoint(folder, **changes)
        return folder

    return make


@pytest.fixture(autouse=True)
def cache_folder(tmp_path, monkeypatch):
    """No test reads or writes the user's cache."""
    monkeypatch.setenv("SPECJAX_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def run():
    """(arguments, input) -> the result of the command line, in this process."""

    def invoke(*arguments, input=None):
        return CliRunner().invoke(app, [str(a) for a in arguments], input=input)

    return invoke


@pytest.fixture
def dataset(tmp_path):
    """A prompt file of six questions in two categories, some of two turns."""
    path = tmp_path / "prompts.jsonl"
    rows = [
        {
            "question_id": 10 + i,
            "category": "even" if i % 2 == 0 else "odd",
            "turns": [f"the than {i} the than the", "and the"][: 1 + i % 2],
        }
        for i in range(6)
    ]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def write_checkpoint(folder, seed=0, **changes):
    """Writes config, random weights, tokenizer and chat template."""
    c = tiny_model.config(**changes)
    heads, kv_heads = c.num_heads * c.head_size, c.num_kv_heads * c.head_size
    shapes = {
        "model.embed_tokens.weight": (c.vocab_size, c.embed_size),
        "model.norm.weight": (c.embed_size,),
    }
    for i in range(c.num_layers):
        layer = {
            "input_layernorm": (c.embed_size,),
            "post_attention_layernorm": (c.embed_size,),
            "self_attn.q_proj": (heads, c.embed_size),
            "self_attn.k_proj": (kv_heads, c.embed_size),
            "self_attn.v_proj": (kv_heads, c.embed_size),
            "self_attn.o_proj": (c.embed_size, heads),
            "mlp.gate_proj": (c.mlp_size, c.embed_size),
            "mlp.up_proj": (c.mlp_size, c.embed_size),
            "mlp.down_proj": (c.embed_size, c.mlp_size),
        }
        shapes |= {f"model.layers.{i}.{name}.weight": s for name, s in layer.items()}
    random = np.random.default_rng(seed)
    weights = {
        name: random.normal(0.0, 0.2, shape).astype(np.float32)
        for name, shape in shapes.items()
    }
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
    safetensors_numpy.save_file(weights, str(folder / "model.safetensors"))
    (folder / "config.json").write_text(json.dumps(config))
    backend = tiny_model.tokenizer()._backend
    backend.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(_TEMPLATE)
