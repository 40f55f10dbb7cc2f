"""A small random language model with a real byte-level tokenizer."""

import jax
import jax.numpy as jnp
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from specjax import checkpoints
from specjax.models import config as config_lib
from specjax.models import decoder
from specjax.models import model as model_lib

EOS = "<|end|>"


def tokenizer() -> checkpoints.Tokenizer:
    """Every byte is a token, and a few pairs; id 0 is EOS."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("t", "h"), ("th", "e"), ("a", "n")]
    words = [EOS, *alphabet, *(a + b for a, b in merges)]
    vocabulary = {word: index for index, word in enumerate(words)}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(
        add_prefix_space=False, use_regex=False
    )
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([EOS])
    return checkpoints.Tokenizer(backend)


def config(**changes) -> config_lib.ModelConfig:
    """Shapes of the tiny model; sizes are distinct so that swapped axes show."""
    sizes = {
        "family": "llama",
        "vocab_size": tokenizer().vocab_size,
        "embed_size": 24,
        "num_layers": 2,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_size": 10,
        "mlp_size": 36,
        "max_context": 512,
        "tied_head": True,
    }
    return config_lib.ModelConfig(**{**sizes, **changes})


def language_model(seed: int = 0, **changes) -> checkpoints.LanguageModel:
    """The tiny model; its greedy text falls into loops, so lookups get hits."""
    shape = config(**changes)
    made = decoder.init_params(shape, jax.random.key(seed))
    # Weights of usual size would leave the residual stream almost untouched.
    params = jax.tree.map(lambda x: x * 8.0 if x.ndim > 1 else x, made)
    for layer in params["layers"]:
        # Numbers dealt out input by input: a draw whose texts are varied enough.
        inputs, outputs = layer["gate_up"][0].shape
        dealt = jnp.stack(layer["gate_up"]).reshape(inputs, 2, outputs)
        layer["gate_up"] = [dealt[:, 0], dealt[:, 1]]
    words = tokenizer()
    return checkpoints.LanguageModel(
        name="tiny",
        model=model_lib.Model(config=shape),
        params=params,
        tokenizer=words,
        chat_template=None,
        stop_ids=(0,),
        fingerprint=words.fingerprint(),
    )
