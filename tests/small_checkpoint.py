"""Writes small checkpoints in both formats, in the words of their converters."""

import json

import gguf
import ml_dtypes
import numpy as np
import safetensors.numpy
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from specjax.checkpoints import layout
from specjax.models import families
from tests import gguf_blocks

SPECIALS = ["<|end|>", "<|start|>"]
MERGES = ["t h", "th e", "1 2", "12 3", "Ġ the"]
TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


def words():
    """A byte-level vocabulary: specials, all bytes, merges."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    return [*SPECIALS, *alphabet, *(merge.replace(" ", "") for merge in MERGES)]


VOCAB = len(words())
HF = {
    "model_type": "llama",
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "eos_token_id": 0,
}


class Small:
    """Makes and writes one small model; every method may change a part of it."""

    def __init__(self, **changes):
        self.hf = {**HF, **changes}
        self.config = families.from_hf(self.hf)

    def tensors(self):
        """Tensors as transformers stores them, float32 (exact in bfloat16)."""
        random = np.random.default_rng(0)
        shapes = layout.expected_shapes(self.config, layout.hf_naming(self.config))
        return {
            name: random.standard_normal(shape)
            .astype(ml_dtypes.bfloat16)
            .astype(np.float32)
            for name, shape in shapes.items()
        }

    def directory(self, path, *, tensors=None, shards=1, config=None):
        """Writes a directory as transformers does."""
        path.mkdir(parents=True, exist_ok=True)
        tensors = self.tensors() if tensors is None else tensors
        config = {**self.hf, **(config or {})}
        (path / "config.json").write_text(json.dumps(config))
        (path / "tokenizer.json").write_text(tokenizer_json())
        (path / "tokenizer_config.json").write_text(
            json.dumps(
                {
                    "eos_token": {"content": SPECIALS[0]},
                    "bos_token": SPECIALS[1],
                    "chat_template": TEMPLATE,
                }
            )
        )
        names = sorted(tensors)
        if shards == 1:
            safetensors.numpy.save_file(tensors, str(path / "model.safetensors"))
            return path
        weight_map = {}
        for i in range(shards):
            file = f"model-{i + 1:05d}-of-{shards:05d}.safetensors"
            part = {name: tensors[name] for name in names[i::shards]}
            safetensors.numpy.save_file(part, str(path / file))
            weight_map |= dict.fromkeys(part, file)
        index = {"metadata": {}, "weight_map": weight_map}
        (path / "model.safetensors.index.json").write_text(json.dumps(index))
        return path

    def gguf(
        self,
        path,
        *,
        kind="F32",
        kinds=None,
        tensors=None,
        metadata=None,
        arch="llama",
    ):
        """Writes a GGUF file as llama.cpp's converter does.

        Args:
          path: the file.
          kind: storage of the matrices; vectors stay F32. Of K-quants and the like
            matrices are random blocks.
          kinds: other storage of single matrices, by GGUF name.
          tensors: changes to tensors by GGUF name, None leaves one out.
          metadata: keys to add or replace, None leaves one out.
          arch: general.architecture.
        """
        made = {**self._gguf_tensors(), **(tensors or {})}
        writer = gguf.GGUFWriter(path, arch)
        for key, value in {**self.gguf_metadata(arch), **(metadata or {})}.items():
            _add(writer, key, value)
        for name, value in made.items():
            if value is None:
                continue
            storage = (kinds or {}).get(name, kind)
            if value.ndim == 1 or storage == "F32":
                writer.add_tensor(name, value)
            else:
                stored = gguf.GGMLQuantizationType[storage]
                packed = _quantise(value, stored)
                writer.add_tensor(name, packed, raw_dtype=stored)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    def _gguf_tensors(self):
        hf, ggml = layout.hf_naming(self.config), layout.gguf_naming()
        names = {hf.top[piece]: ggml.top[piece] for piece in hf.top}
        for i in range(self.config.num_layers):
            for piece, name in hf.layer.items():
                ours = ggml.prefix.format(i) + ggml.layer[piece]
                names[hf.prefix.format(i) + name] = ours
        made = {}
        for name, value in self.tensors().items():
            if self.config.family == "llama" and ".q_proj" in name:
                value = permute(value, self.config.num_heads)
            if self.config.family == "llama" and ".k_proj" in name:
                value = permute(value, self.config.num_kv_heads)
            if self.config.family.startswith("gemma") and "norm" in name:
                value = value + 1
            made[names[name]] = value
        return made

    def gguf_metadata(self, arch):
        c = self.config
        numbers = {
            "context_length": c.max_context,
            "embedding_length": c.embed_size,
            "block_count": c.num_layers,
            "feed_forward_length": c.mlp_size,
            "attention.head_count": c.num_heads,
            "attention.head_count_kv": c.num_kv_heads,
            "attention.key_length": c.head_size,
            "attention.layer_norm_rms_epsilon": c.norm_eps,
            "rope.freq_base": c.rope_theta,
            "vocab_size": c.vocab_size,
        }
        if c.windows:
            numbers["attention.sliding_window"] = max(c.windows)
        special = [3] * len(SPECIALS) + [1] * (VOCAB - len(SPECIALS))
        return {
            **{f"{arch}.{key}": value for key, value in numbers.items()},
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "gpt-2",
            "tokenizer.ggml.tokens": words(),
            "tokenizer.ggml.token_type": special,
            "tokenizer.ggml.merges": MERGES,
            "tokenizer.ggml.eos_token_id": 0,
            "tokenizer.ggml.bos_token_id": 1,
            "tokenizer.chat_template": TEMPLATE,
        }


def _quantise(value, kind):
    """Rows of a tensor; random ones of weights about 1 where the package can't."""
    try:
        return gguf.quants.quantize(value, kind)
    except NotImplementedError:
        return gguf_blocks.random_rows(kind.name, *value.shape, exponents=(5, 10))


def _add(writer, key, value):
    """Adds a key by the type of its value."""
    if value is None:
        return
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


def permute(value, heads):
    """llama.cpp's `LlamaModel.permute`: halves to pairs, for each head."""
    shape = (heads, 2, value.shape[0] // heads // 2, *value.shape[1:])
    return value.reshape(shape).swapaxes(1, 2).reshape(value.shape)


def tokenizer_json():
    """The same tokenizer as in the GGUF files."""
    vocabulary = {word: index for index, word in enumerate(words())}
    pairs = [tuple(merge.split(" ")) for merge in MERGES]
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=pairs))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(SPECIALS)
    return backend.to_str()
