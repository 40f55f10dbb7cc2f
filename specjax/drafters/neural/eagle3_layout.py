"""What a checkpoint of EAGLE-3 says and must hold, in the words of two publishers.

::

    EAGLE, SpecForge                speculators
    config.json                     transformer_layer_config in it
    midlayer.self_attn.q_proj...    layers.0.self_attn.q_proj...
    fc, norm, lm_head, d2t, t2d     the same

``embed_tokens`` may be there, a copy of the target's. A head may leave ``d2t`` and
``t2d`` out where it has a logit for every id.
"""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from specjax.drafters.neural import (
    draft_vocabulary,
    published_files,
    published_host,
)
from specjax.models import config as config_lib
from specjax.models import metadata, rope_scaling

_LAYER = re.compile(r"(?:midlayer|layers\.0)\.")
_KIND = "speculators_model_type"
_THETA = 10000.0  # where a config has none, as transformers reads it
# Options of later versions, which change the maths: value that means "off".
_REFUSED: Mapping[str, Any] = {
    "norm_before_fc": False,
    "fc_norm": False,
    "norm_output": False,
    "attention_bias": False,
    "mlp_bias": False,
    "qkv_bias": False,
    "parallel_drafting": False,
    "quantization_config": None,
}
_ACTIVATIONS = ("silu", "swish")
_WHOLE = ("d2t", "t2d")
_HARMLESS = "rotary_emb.inv_freq"  # a buffer that old checkpoints saved
EMBED = "embed_tokens.weight"
HEAD = "lm_head.weight"
MALFORMED = (ValueError, TypeError, AttributeError)  # what a config may raise


@dataclasses.dataclass(frozen=True, kw_only=True)
class Facts:
    """What the config says, in our words.

    Attributes:
      size: E, of the draft's hidden states.
      num_heads, num_kv_heads, head_size: of its attention.
      mlp_size: I.
      norm_eps: of its norms.
      rope_theta, rope_scaling: of its rotary embedding.
      says_scaling: whether the config has a word about the latter at all.
      features: layers of the target whose outputs it reads, None for the usual ones.
      draft_vocab: Vd.
      norm_before_residual: whether the residual is what the norm of features gives.
      tied: whether the config ties the head to the embedding.
      verifier: name of the target that it says it is for.
    """

    size: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    mlp_size: int
    norm_eps: float
    rope_theta: float
    rope_scaling: config_lib.RopeScaling
    says_scaling: bool
    features: tuple[int, ...] | None
    draft_vocab: int
    norm_before_residual: bool
    tied: bool
    verifier: str | None


def recognise(draft: published_files.Draft) -> bool:
    """Whether it is a draft of the EAGLE-3 kind."""
    if _KIND in draft.config:
        return draft.config[_KIND] == "eagle3"
    if any(name.startswith("midlayer.") for name in draft.shapes):
        return True
    return "fc.weight" in draft.shapes and any(map(_LAYER.match, draft.shapes))


def names(draft: published_files.Draft) -> dict[str, str]:
    """Name in the file by name as in this file, the layer's without ``midlayer.``."""
    found = {}
    for name in draft.shapes:
        if not name.endswith(_HARMLESS):
            short = name.removeprefix("model.")
            found[_LAYER.sub("", short, count=1)] = name
    return found


def facts(draft: published_files.Draft) -> Facts:
    """Reads the config.

    Raises:
      ValueError: something is missing, or of another kind, or not supported.
    """
    raw = draft.config
    layer = raw.get("transformer_layer_config", raw)
    if not isinstance(layer, dict):
        raise ValueError("config: transformer_layer_config must be an object")
    for key, off in _REFUSED.items():
        value = layer.get(key, raw.get(key, off))
        if value not in (off, None):
            raise ValueError(
                f"config: {key} is {value!r}, which is not supported; use a draft of "
                f"the EAGLE-3 kind with {key} = {off}"
            )
    if layer.get("hidden_act", "silu") not in _ACTIVATIONS:
        raise ValueError(f"config: hidden_act must be silu, got {layer['hidden_act']}")
    size = metadata.integer(layer, "hidden_size")
    heads = metadata.integer(layer, "num_attention_heads")
    vocab = metadata.integer(layer, "vocab_size")
    theta, scaling, _ = rope_scaling.from_hf({"model_type": "llama", **layer}, _THETA)
    return Facts(
        size=size,
        num_heads=heads,
        num_kv_heads=metadata.integer(layer, "num_key_value_heads", heads),
        head_size=metadata.integer(
            _given(layer, "head_dim"), "head_dim", size // heads
        ),
        mlp_size=metadata.integer(layer, "intermediate_size"),
        norm_eps=float(layer.get("rms_norm_eps", 1e-6)),
        rope_theta=theta,
        rope_scaling=scaling,
        says_scaling="rope_scaling" in layer or "rope_parameters" in layer,
        features=_features(raw),
        draft_vocab=metadata.integer(
            _given(raw, "draft_vocab_size"), "draft_vocab_size", vocab
        ),
        norm_before_residual=bool(raw.get("norm_before_residual", False)),
        tied=bool(layer.get("tie_word_embeddings", False)),
        verifier=_verifier(raw),
    )


def _given(raw: Mapping[str, Any], key: str) -> dict[str, Any]:
    """The one entry, if it is there and says anything."""
    return {key: raw[key]} if raw.get(key) is not None else {}


def _features(raw: Mapping[str, Any]) -> tuple[int, ...] | None:
    """Layers by their outputs; published ids are of the layers that these enter."""
    ids = raw.get("eagle_aux_hidden_state_layer_ids")
    if ids is None:
        inner = raw.get("eagle_config")
        if isinstance(inner, dict):
            ids = inner.get("eagle_aux_hidden_state_layer_ids")
    if ids is None:
        return None
    sound = isinstance(ids, list) and ids and all(type(one) is int for one in ids)
    if not sound or min(ids) < 1:
        raise ValueError(
            "config: eagle_aux_hidden_state_layer_ids must be layers from 1 up, got "
            f"{ids!r}"
        )
    return tuple(one - 1 for one in ids)


def _verifier(raw: Mapping[str, Any]) -> str | None:
    inner = raw.get("speculators_config")
    found = inner.get("verifier") if isinstance(inner, dict) else None
    name = found.get("name_or_path") if isinstance(found, dict) else None
    return name if isinstance(name, str) else None


def feature_layers(said: Facts, layers: int) -> tuple[int, ...]:
    """The target's layers whose outputs the draft reads.

    Args:
      said: by the config.
      layers: L, of the target.
    """
    if said.features is not None:
        return said.features
    return 1, layers // 2 - 1, layers - 4


def expected_shapes(
    said: Facts, host: published_host.Host, num_features: int
) -> dict[str, tuple[int, ...]]:
    """Shape of every tensor of numbers that must be there, by ``names``."""
    size, head = host.config.embed_size, said.head_size
    queries, keys = said.num_heads * head, said.num_kv_heads * head
    return {
        "fc.weight": (size, num_features * size),
        "input_layernorm.weight": (size,),
        "hidden_norm.weight": (size,),
        "self_attn.q_proj.weight": (queries, 2 * size),
        "self_attn.k_proj.weight": (keys, 2 * size),
        "self_attn.v_proj.weight": (keys, 2 * size),
        "self_attn.o_proj.weight": (size, queries),
        "post_attention_layernorm.weight": (size,),
        "mlp.gate_proj.weight": (said.mlp_size, size),
        "mlp.up_proj.weight": (said.mlp_size, size),
        "mlp.down_proj.weight": (size, said.mlp_size),
        "norm.weight": (size,),
        HEAD: (said.draft_vocab, size),
    }


def problems(
    draft: published_files.Draft, host: published_host.Host | None
) -> list[str]:
    """Every reason why it would not load for a target, values aside.

    Args:
      draft: opened.
      host: the target; None leaves out what depends on it.
    """
    there = names(draft)
    found = draft.storage_problems([there[short] for short in _WHOLE if short in there])
    try:
        said = facts(draft)
    except MALFORMED as error:
        return [*found, str(error)]
    if said.tied and said.draft_vocab != _vocab(draft):
        found.append(
            f"config.json ties {HEAD}, which has {said.draft_vocab} logits, to an "
            f"embedding of {_vocab(draft)} ids; say tie_word_embeddings: false"
        )
    if host is None:
        return found
    found += published_host.problems(draft, host, _vocab(draft))
    found += _sizes(said, host)
    found += _rope(said, host)
    found += _tensors(draft, said, host)
    try:
        ids(draft, said, host.config.vocab_size)
    except ValueError as error:
        found.append(str(error))
    return found


def _vocab(draft: published_files.Draft) -> int:
    layer = draft.config.get("transformer_layer_config", draft.config)
    return layer["vocab_size"]


def _sizes(said: Facts, host: published_host.Host) -> list[str]:
    found, vocab = [], host.config.vocab_size
    if said.size != host.config.embed_size:
        found.append(
            f"config.json says hidden_size {said.size}, {host.name} has "
            f"{host.config.embed_size}; the draft is of another target"
        )
    if said.draft_vocab > vocab:
        found.append(
            f"config.json says draft_vocab_size {said.draft_vocab}, {host.name} has "
            f"only {vocab} ids; the draft is of another target"
        )
    layers = feature_layers(said, host.config.num_layers)
    if not all(0 <= layer < host.config.num_layers for layer in layers):
        found.append(
            f"it reads the outputs of layers {layers}, {host.name} has "
            f"{host.config.num_layers}; say eagle_aux_hidden_state_layer_ids in "
            "config.json, each 1 more than the layer whose output is meant"
        )
    return found


def _rope(said: Facts, host: published_host.Host) -> list[str]:
    """A scaling that was left out is the most silent fault: only acceptance falls."""
    theirs = host.config.rope_scaling
    if said.says_scaling or theirs == config_lib.RopeScaling():
        return []
    return [
        f"config.json has no word about rope_scaling, {host.name} has {theirs.kind} "
        f"scaling by {theirs.factor:g}; copy the target's rope_scaling into it, or say "
        "rope_scaling: null if the draft was trained without"
    ]


def _tensors(draft, said: Facts, host: published_host.Host) -> list[str]:
    """Tensors that are missing, misshapen or of no use."""
    there = names(draft)
    if not {HEAD, "hidden_norm.weight", "d2t"} & there.keys():
        return [
            "tensors lm_head.weight, midlayer.hidden_norm.weight and d2t are all "
            "missing: this is a draft of EAGLE-1 or EAGLE-2, which use the target's "
            "head; only those of EAGLE-3 are read"
        ]
    layers = feature_layers(said, host.config.num_layers)
    expected = expected_shapes(said, host, len(layers))
    found = []
    for short, shape in expected.items():
        if short not in there:
            found.append(_missing(short, shape))
        elif short == "fc.weight" and draft.shapes[there[short]] != shape:
            found.append(
                f"tensor {there[short]} has shape {draft.shapes[there[short]]}, "
                f"expected {shape}: {len(layers)} layers' outputs of "
                f"{host.config.embed_size} each; the draft is of another target or "
                "reads other layers (eagle_aux_hidden_state_layer_ids in config.json)"
            )
        else:
            found += published_host.misshapen(draft, there[short], shape, host)
    if EMBED in there:
        shape = (host.config.vocab_size, host.config.embed_size)
        found += published_host.misshapen(draft, there[EMBED], shape, host)
    found += [
        f"tensor {name} is no part of an EAGLE-3 draft of one layer; take it out of "
        "the file if it is a copy of the target's, else the draft is of another kind"
        for short, name in there.items()
        if short not in (*expected, EMBED, *_WHOLE)
    ]
    return found


def _missing(short: str, shape: tuple[int, ...]) -> str:
    if short == HEAD:
        return (
            f"tensor {short} is missing, expected shape {shape}: an EAGLE-3 draft has "
            "a head of its own, the target's does not do; fetch the file again, or "
            "save the draft with its head"
        )
    layer = "" if short in ("fc.weight", "norm.weight") else "midlayer."
    name = layer + short
    return f"tensor {name} is missing, expected shape {shape}; fetch the file again"


def ids(
    draft: published_files.Draft, said: Facts, vocab_size: int
) -> np.ndarray | None:
    """The target's ids of its logits, None where each id has one.

    Raises:
      ValueError: ``d2t`` and ``t2d`` do not say so, or not the same.
    """
    there = names(draft)
    if "d2t" not in there:
        if said.draft_vocab == vocab_size:
            return None
        raise ValueError(
            f"tensor d2t is missing: there are {said.draft_vocab} logits for "
            f"{vocab_size} ids and nothing says which; fetch the file again, or save "
            "the draft with it"
        )
    d2t = draft.whole(there["d2t"])
    if d2t.shape != (said.draft_vocab,):
        raise ValueError(
            f"tensor d2t has shape {d2t.shape}, expected ({said.draft_vocab},), one "
            "for each logit (draft_vocab_size in config.json)"
        )
    found = draft_vocabulary.from_offsets(d2t, vocab_size)
    if len(found) == vocab_size:
        return None
    if "t2d" in there:
        marks = draft.whole(there["t2d"])
        draft_vocabulary.check_marks(marks, d2t, found, vocab_size)
    return found
