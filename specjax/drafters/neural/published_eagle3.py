"""Draft checkpoints of EAGLE-3: loaded from two layouts, saved in that of its authors.

Weights are a plain dict of arrays, products from the right (f[inputs, outputs])::

    fc f[n E, E], q f[2 E, H D], k and v f[2 E, G D], out f[H D, E],
    gate and up f[E, I], down f[I, E], head f[E, Vd],
    embed_norm, feature_norm, mlp_norm, final_norm f[E],
    embed f[V, E] where it is another one than the target's
"""

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from pallas_kernels import linear
from specjax import checkpoints
from specjax.drafters.neural import (
    draft_vocabulary,
    eagle3_layout,
    published_files,
    published_host,
)
from specjax.drafters.neural.eagle3_layout import Facts, problems, recognise
from specjax.models import config as config_lib

__all__ = [
    "Eagle3Weights",
    "describe",
    "load",
    "problems",
    "recognise",
    "save",
]

_NAMES = {
    "fc": "fc.weight",
    "embed_norm": "input_layernorm.weight",
    "feature_norm": "hidden_norm.weight",
    "q": "self_attn.q_proj.weight",
    "k": "self_attn.k_proj.weight",
    "v": "self_attn.v_proj.weight",
    "out": "self_attn.o_proj.weight",
    "mlp_norm": "post_attention_layernorm.weight",
    "gate": "mlp.gate_proj.weight",
    "up": "mlp.up_proj.weight",
    "down": "mlp.down_proj.weight",
    "final_norm": "norm.weight",
    "head": eagle3_layout.HEAD,
}
_OUTSIDE = ("fc", "final_norm", "head")  # the layer
_ROWS = 8192  # of an embedding that are compared at once


class Eagle3Weights(NamedTuple):
    """What a checkpoint holds.

    Attributes:
      facts: of its config.
      features: layers of the target whose outputs it reads.
      arrays: see the module's text.
      ids: the target's ids of its logits, None where each id has one.
      fingerprint: of the tokenizer that it says it is for, None if it does not.
    """

    facts: Facts
    features: tuple[int, ...]
    arrays: dict[str, np.ndarray]
    ids: np.ndarray | None
    fingerprint: str | None


def describe(draft: published_files.Draft) -> list[tuple[str, str]]:
    """Facts for a table, as (name, value)."""
    try:
        said = eagle3_layout.facts(draft)
    except eagle3_layout.MALFORMED:
        return []
    heads = f"{said.num_heads} heads, {said.num_kv_heads} kv heads of {said.head_size}"
    layers = said.features
    facts = [
        ("hidden size", f"{said.size}, MLP {said.mlp_size}"),
        ("attention", heads),
        ("draft vocabulary", str(said.draft_vocab)),
        ("reads layers", ", ".join(map(str, layers)) if layers else "the usual ones"),
    ]
    return facts + ([("made for", said.verifier)] if said.verifier else [])


def load(path: str | os.PathLike[str], lm: checkpoints.LanguageModel) -> Eagle3Weights:
    """Loads a draft for a target, in its dtype.

    Args:
      path: the directory.
      lm: the target.

    Raises:
      ValueError: it is no EAGLE-3 draft, not whole, or of another target.
    """
    draft, host = published_files.open_draft(path), published_host.of_model(lm)
    if not recognise(draft):
        raise ValueError(
            f"{draft.path}: expected a draft of the EAGLE-3 kind, found none: neither "
            "tensors such as midlayer.self_attn.q_proj.weight nor "
            "speculators_model_type eagle3 in config.json"
        )
    published_host.refuse(draft, problems(draft, host))
    said, dtype = eagle3_layout.facts(draft), np.dtype(lm.model.dtype)
    there = eagle3_layout.names(draft)
    arrays = {}
    for piece, name in _NAMES.items():
        value = draft.read(there[name], dtype)
        arrays[piece] = np.ascontiguousarray(value.T)
    if eagle3_layout.EMBED in there:
        embed = draft.read(there[eagle3_layout.EMBED], dtype)
        if not _same_embedding(embed, lm):
            arrays["embed"] = embed
    return Eagle3Weights(
        facts=said,
        features=eagle3_layout.feature_layers(said, host.config.num_layers),
        arrays=arrays,
        ids=eagle3_layout.ids(draft, said, host.config.vocab_size),
        fingerprint=published_host.fingerprint_of(draft),
    )


def save(
    path: str | os.PathLike[str],
    config: config_lib.ModelConfig,
    weights: Eagle3Weights,
    *,
    form: str = "bfloat16",
) -> None:
    """Writes a draft in the names of EAGLE-3's authors.

    Args:
      path: the directory; its parent must exist.
      config: of the target.
      weights: what to write.
      form: "bfloat16", "float32" or "int8" with a scale for every output.

    Raises:
      ValueError: the form is not known, values are not finite, or the directory can't
        be written.
    """
    tensors: dict[str, np.ndarray] = {}
    for piece, name in _NAMES.items():
        layer = "" if piece in _OUTSIDE else "midlayer."
        tensors[layer + name] = np.asarray(weights.arrays[piece]).T
    if "embed" in weights.arrays:
        tensors[eagle3_layout.EMBED] = np.asarray(weights.arrays["embed"])
    if weights.ids is not None:
        ids = np.asarray(weights.ids)
        tensors["d2t"] = draft_vocabulary.to_offsets(ids)
        tensors["t2d"] = draft_vocabulary.to_marks(ids, config.vocab_size)
    published_files.write(path, tensors, _config(config, weights), form=form)


def _config(
    config: config_lib.ModelConfig, weights: Eagle3Weights
) -> Mapping[str, Any]:
    """``config.json`` in the words of transformers."""
    said = weights.facts
    made = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": said.size,
        "intermediate_size": said.mlp_size,
        "num_attention_heads": said.num_heads,
        "num_key_value_heads": said.num_kv_heads,
        "head_dim": said.head_size,
        "num_hidden_layers": 1,
        "max_position_embeddings": config.max_context,
        "rms_norm_eps": said.norm_eps,
        "rope_theta": said.rope_theta,
        "rope_scaling": _scaling(said.rope_scaling),
        "vocab_size": config.vocab_size,
        "draft_vocab_size": said.draft_vocab,
        "tie_word_embeddings": False,
        "norm_before_residual": said.norm_before_residual,
        "eagle_aux_hidden_state_layer_ids": [layer + 1 for layer in weights.features],
    }
    if weights.fingerprint is not None:
        made[published_files.OWN] = {"fingerprint": weights.fingerprint}
    return made


def _scaling(scaling: config_lib.RopeScaling) -> dict[str, Any] | None:
    """A rope scaling in the words of transformers, None without one."""
    if scaling.kind == "default":
        return None
    made: dict[str, Any] = {"rope_type": scaling.kind, "factor": scaling.factor}
    if scaling.kind == "linear":
        return made
    made["original_max_position_embeddings"] = scaling.original_context
    if scaling.kind == "llama3":
        made["low_freq_factor"] = scaling.low_freq_factor
        made["high_freq_factor"] = scaling.high_freq_factor
        return made
    made |= {"beta_fast": scaling.beta_fast, "beta_slow": scaling.beta_slow}
    if scaling.attention_factor is not None:
        made["attention_factor"] = scaling.attention_factor
    return made


def _same_embedding(embed: np.ndarray, lm: checkpoints.LanguageModel) -> bool:
    """Whether an embedding is the target's, as far as a stored format keeps numbers.

    A target in fewer bits differs from the copy by its rounding.
    """
    kept = lm.params["embed"]
    packed = isinstance(kept, linear.Packed | linear.Tiled)
    near = 0.1 if packed else 0.02  # of the rows' norms
    for at in range(0, len(embed), _ROWS):
        index = jnp.arange(at, min(at + _ROWS, len(embed)), dtype=jnp.int32)
        theirs = np.asarray(linear.take_rows(kept, index), np.float32)
        ours = embed[at : at + _ROWS].astype(np.float32)
        apart = np.linalg.norm(ours - theirs, axis=1)
        if np.any(apart > near * np.linalg.norm(theirs, axis=1) + 1e-6):
            return False
    return True
