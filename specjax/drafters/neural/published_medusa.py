"""Checkpoints of Medusa heads, in the names of others and in ours.

of head k, block l      Medusa                    vLLM
blocks                  k.l.linear.weight, .bias  blocks.k.layers.l.weight, .bias
own matrix              k.L.weight                lm_heads.k.weight
draft vocabulary        none                      token_map

Names may begin with ``medusa_head.`` or ``medusa_heads.``. A config with ``"version":
"2"`` or ``original_lm_head`` says that heads use the target's own matrix.
"""

import math
import os
import re
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels import linear
from specjax import checkpoints
from specjax.core import template
from specjax.drafters.neural import (
    draft_vocabulary,
    medusa_heads,
    medusa_trees,
    published_files,
    published_host,
)
from specjax.models import config as config_lib

_PREFIX = re.compile(r"medusa_heads?\.")
_BLOCK = re.compile(
    r"(?:(\d+)\.(\d+)\.linear|blocks\.(\d+)\.layers\.(\d+))\.(weight|bias)"
)
_HEAD = re.compile(r"(?:(\d+)\.\d+|lm_heads\.(\d+))\.weight")
_MAP = "token_map"
_MOST = 4096  # blocks, far above any draft
_NUM_HEADS = ("medusa_num_heads", "num_heads")
_NUM_LAYERS = ("medusa_num_layers", "num_hidden_layers")


class _Names(NamedTuple):
    """The tensors of a checkpoint by what they are.

    Attributes:
      blocks: name by (head, block, "weight" or "bias").
      heads: name of each head's own matrix.
      token_map: name of the draft vocabulary, None without one.
      others: names that are none of these.
    """

    blocks: dict[tuple[int, int, str], str]
    heads: dict[int, str]
    token_map: str | None
    others: list[str]

    @property
    def sizes(self) -> tuple[int, int]:
        """Heads and blocks of each, by the tensors that are there."""
        return (
            max((k for k, *_ in self.blocks), default=-1) + 1,
            max((layer for _, layer, _ in self.blocks), default=-1) + 1,
        )


class MedusaWeights(NamedTuple):
    """What a checkpoint holds.

    Attributes:
      params: see ``medusa_heads``.
      choices: of the tree that was measured for them; None without one.
      fingerprint: of the tokenizer that they say they are for, None if they don't.
    """

    params: medusa_heads.Params
    choices: medusa_trees.Choices | None
    fingerprint: str | None


def recognise(draft: published_files.Draft) -> bool:
    """Whether it holds Medusa heads."""
    config = draft.config
    named = config.get("model_type") == "medusa" or "medusa_num_heads" in config
    return named or bool(_names(draft).blocks)


def describe(draft: published_files.Draft) -> list[tuple[str, str]]:
    """Facts for a table, as (name, value)."""
    names = _names(draft)
    heads, layers = names.sizes
    matrix = "the target's" if not names.heads else "its own"
    count = math.prod(draft.shapes[names.token_map]) if names.token_map else None
    size = "the target's" if count is None else str(count)
    tree = draft.own.get("choices")
    return [
        ("heads", f"{heads} of {layers} blocks, matrix: {matrix}"),
        ("draft vocabulary", size),
        ("tree", f"of {len(tree)} nodes" if isinstance(tree, list) else "the usual"),
    ]


def problems(
    draft: published_files.Draft, host: published_host.Host | None
) -> list[str]:
    """Every reason why it would not load for a target, values aside.

    Args:
      draft: opened.
      host: the target; None leaves out what depends on it.
    """
    names = _names(draft)
    whole = [names.token_map] if names.token_map else []
    found = draft.storage_problems(whole)
    found += [
        f"tensor {name} is no part of Medusa heads; take it out of the file (a "
        "Medusa-2 checkpoint is a whole model: split it into model and heads)"
        for name in names.others
    ]
    found += _counts(draft, names) + _tree_problems(draft)
    if host is not None:
        found += published_host.problems(draft, host, draft.config.get("vocab_size"))
        found += _misshapen(draft, names, host)
        found += _vocabulary(draft, names, host)
    return found


def load(path: str | os.PathLike[str], lm: checkpoints.LanguageModel) -> MedusaWeights:
    """Loads heads for a target, in its dtype.

    Args:
      path: the directory.
      lm: the target.

    Raises:
      ValueError: they are no Medusa heads, not whole, or of another target.
    """
    draft, host = published_files.open_draft(path), published_host.of_model(lm)
    if not recognise(draft):
        raise ValueError(
            f"{draft.path}: expected Medusa heads, found none: neither tensors such as "
            "0.0.linear.weight nor medusa_num_heads in config.json"
        )
    published_host.refuse(draft, problems(draft, host))
    names, dtype = _names(draft), np.dtype(lm.model.dtype)
    heads, layers = names.sizes
    every = [[(k, layer) for layer in range(layers)] for k in range(heads)]
    w = [
        [draft.read(names.blocks[*at, "weight"], dtype).T for at in row]
        for row in every
    ]
    if any(kind == "bias" for *_, kind in names.blocks):
        b = [
            [draft.read(names.blocks[*at, "bias"], dtype) for at in row]
            for row in every
        ]
    else:
        b = [[np.zeros(host.config.embed_size, dtype)] * layers] * heads
    ids = _ids(draft, names, host.config.vocab_size)
    params: dict[str, Any] = {"blocks": {"w": jnp.asarray(w), "b": jnp.asarray(b)}}
    if names.heads:
        own = [_own_head(draft, names.heads[k], dtype, ids) for k in range(heads)]
        params["head"] = jnp.asarray(np.stack(own))
    if ids is not None:
        params["ids"] = jnp.asarray(ids, jnp.int32)
        if not names.heads:
            params |= _set_aside(lm, ids)
    return MedusaWeights(
        params=params,
        choices=_choices(draft),
        fingerprint=published_host.fingerprint_of(draft),
    )


def save(
    path: str | os.PathLike[str],
    config: config_lib.ModelConfig,
    params: medusa_heads.Params,
    *,
    form: str = "bfloat16",
    fingerprint: str | None = None,
    choices: medusa_trees.Choices | None = None,
) -> None:
    """Writes heads in the names of Medusa.

    Heads with matrices of their own over the whole vocabulary are what its readers
    expect. Those that use the target's matrix are its version 2; a draft vocabulary is
    a ``token_map``, which vLLM knows under names of its own.

    Args:
      path: the directory; its parent must exist.
      config: of the target.
      params: see ``medusa_heads``.
      form: "bfloat16", "float32" or "int8" with a scale for every output.
      fingerprint: of the target's tokenizer; then another one is refused at load.
      choices: the tree to draft by default.

    Raises:
      ValueError: the form is not known, values are not finite, choices are no tree, or
        the directory can't be written.
    """
    blocks = jax.tree.map(np.asarray, params["blocks"])
    heads, layers, size = blocks["b"].shape
    tensors = {}
    for k in range(heads):
        for layer in range(layers):
            tensors[f"{k}.{layer}.linear.weight"] = blocks["w"][k, layer].T
            tensors[f"{k}.{layer}.linear.bias"] = blocks["b"][k, layer]
        if params.get("head") is not None:
            tensors[f"{k}.{layers}.weight"] = np.asarray(params["head"][k]).T
    said: dict[str, Any] = {
        "model_type": "medusa",
        "architectures": ["MedusaModel"],
        "medusa_num_heads": heads,
        "medusa_num_layers": layers,
        "hidden_size": size,
        "vocab_size": config.vocab_size,
        "medusa_fc_bias": True,
    }
    if params.get("head") is None:
        said |= {"version": "2", "original_lm_head": True}
    if params.get("ids") is not None:
        tensors[_MAP] = np.asarray(params["ids"]).astype(np.int64)
        said["truncated_vocab_size"] = len(tensors[_MAP])
    own = {}
    if fingerprint is not None:
        own["fingerprint"] = fingerprint
    if choices is not None:
        template.from_choices(choices)
        own["choices"] = [list(map(int, choice)) for choice in choices]
    if own:
        said[published_files.OWN] = own
    published_files.write(path, tensors, said, form=form)


def _set_aside(lm: checkpoints.LanguageModel, ids: np.ndarray) -> dict[str, Any]:
    """The target's rows of a draft vocabulary, where picking them out is dear."""
    weight = medusa_heads.head_weight(lm.model.config, lm.params)
    if not isinstance(weight, linear.Packed) or not linear.available():
        return {}
    return {"rows": linear.pick(weight, ids.astype(np.int32))}


def _names(draft: published_files.Draft) -> _Names:
    blocks, heads, others, token_map = {}, {}, [], None
    for name in draft.shapes:
        short = _PREFIX.sub("", name, count=1)
        if block := _BLOCK.fullmatch(short):
            head, layer = (int(x) for x in block.groups()[:4] if x is not None)
            blocks[head, layer, block[5]] = name
        elif head := _HEAD.fullmatch(short):
            heads[int(head[1] or head[2] or 0)] = name
        elif short == _MAP:
            token_map = name
        else:
            others.append(name)
    found = _Names(blocks, heads, token_map, others)
    # Of heads that use the target's matrix a file may hold a copy or two of it.
    copies = _uses_the_targets(draft) and len(heads) < found.sizes[0]
    return found._replace(heads={}) if copies else found


def _counts(draft: published_files.Draft, names: _Names) -> list[str]:
    """Tensors that are missing. Medusa's configs may say fewer heads than there are."""
    heads, layers = names.sizes
    heads = max(heads, _said(draft, _NUM_HEADS))
    layers = max(layers, _said(draft, _NUM_LAYERS))
    if not names.blocks:
        return [
            "tensor 0.0.linear.weight is missing, the first block of the first head; "
            "this is no checkpoint of Medusa heads"
        ]
    if heads * layers > _MOST:
        return [
            f"config.json or names of tensors say {heads} heads of {layers} blocks, "
            f"expected at most {_MOST} blocks; mend config.json"
        ]
    kinds = {kind for *_, kind in names.blocks} | {"weight"}
    if not any("blocks." in name for name in names.blocks.values()):
        kinds |= {"bias"}  # vLLM's may have none
    found = [
        f"tensor {k}.{layer}.linear.{kind} (or blocks.{k}.layers.{layer}.{kind}) is "
        f"missing; config.json or the other tensors say {heads} heads of {layers} "
        "blocks: fetch the file again, or mend config.json"
        for k in range(heads)
        for layer in range(layers)
        for kind in sorted(kinds)
        if (k, layer, kind) not in names.blocks
    ]
    if not _uses_the_targets(draft):
        found += [
            f"tensor {k}.{layers}.weight (or lm_heads.{k}.weight), the matrix of head "
            f"{k}, is missing; fetch the file again, or say original_lm_head: true in "
            "config.json if heads are to use the target's"
            for k in range(heads)
            if k not in names.heads
        ]
    return found


def _choices(draft: published_files.Draft) -> medusa_trees.Choices | None:
    """The tree that the config says, None without one.

    Raises:
      ValueError: it is none.
    """
    said = draft.own.get("choices")
    if said is None:
        return None
    try:
        choices = tuple(tuple(map(int, choice)) for choice in said)
        template.from_choices(choices)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"config.json: {published_files.OWN}.choices is no tree ({error}); take it "
            "out, and a tree of the usual shape is drafted"
        ) from error
    return choices


def _tree_problems(draft: published_files.Draft) -> list[str]:
    try:
        choices = _choices(draft)
    except ValueError as error:
        return [str(error)]
    heads, _ = _names(draft).sizes
    depth = max(map(len, choices or ()), default=0)
    if depth <= heads:
        return []
    return [
        f"config.json: {published_files.OWN}.choices are {depth} deep and there are "
        f"{heads} heads; take it out, and a tree of the usual shape is drafted"
    ]


def _uses_the_targets(draft: published_files.Draft) -> bool:
    config = draft.config
    return str(config.get("version")) == "2" or config.get("original_lm_head") is True


def _said(draft: published_files.Draft, keys: tuple[str, ...]) -> int:
    """A number of the config under one of its names, 0 where there is none."""
    for key in keys:
        value = draft.config.get(key)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    return 0


def _misshapen(draft, names: _Names, host: published_host.Host) -> list[str]:
    size, vocab = host.config.embed_size, host.config.vocab_size
    found = []
    for (*_, kind), name in names.blocks.items():
        expected = (size, size) if kind == "weight" else (size,)
        found += published_host.misshapen(draft, name, expected, host)
    least = math.prod(draft.shapes[names.token_map]) if names.token_map else vocab
    for name in names.heads.values():
        if draft.shapes[name] != (vocab, size):
            found += published_host.misshapen(draft, name, (least, size), host)
    return found


def _vocabulary(draft, names: _Names, host: published_host.Host) -> list[str]:
    try:
        _ids(draft, names, host.config.vocab_size)
    except ValueError as error:
        return [str(error)]
    return []


def _ids(draft, names: _Names, vocab_size: int) -> np.ndarray | None:
    if names.token_map is None:
        return None
    return draft_vocabulary.from_map(draft.whole(names.token_map), vocab_size)


def _own_head(draft, name: str, dtype: np.dtype, ids: np.ndarray | None) -> np.ndarray:
    """A head's matrix [E, Vd]; of one over all ids the draft vocabulary's rows."""
    rows = draft.read(name, dtype)
    if ids is not None and len(rows) != len(ids):
        rows = rows[ids]
    return rows.T
