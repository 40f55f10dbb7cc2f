"""What the options of the name ``medusa`` mean."""

import os

from specjax import checkpoints, checks
from specjax.drafters import equipped, registry
from specjax.drafters import options as options_lib
from specjax.drafters.neural import medusa as medusa_lib
from specjax.drafters.neural import medusa_trees, published_medusa

_NODES = len(medusa_lib.DEFAULT_TREE)

OPTIONS = (
    options_lib.Option(
        "model",
        options_lib.PATH,
        "directory of trained heads, with config.json and safetensors, or "
        "hf:OWNER/NAME.",
        required=True,
    ),
    options_lib.Option(
        "nodes",
        options_lib.INTEGER,
        f"nodes of the tree, the likeliest ones [{_NODES}, or all of the tree that was "
        "measured for the heads].",
    ),
    options_lib.Option(
        "tree",
        options_lib.TEXT,
        "a published tree of 63 nodes instead: "
        f"{', '.join(medusa_trees.NAMES)}; with nodes, the likeliest of it.",
    ),
)


def build_medusa(
    lm: checkpoints.LanguageModel, options: registry.Options
) -> equipped.Equipped:
    """Drafts a fixed tree of what trained heads on the last hidden state guess.

    Raises:
      ValueError: the heads can't be loaded for the target, or the tree is none or
        deeper than there are heads.
    """
    given = dict(options)
    name = given.pop("model")
    try:
        weights = published_medusa.load(checkpoints.fetch(name), lm)
    except ValueError as error:
        reason = str(error).removeprefix("model: ")
        raise ValueError(f"drafter 'medusa': option 'model': {reason}") from error
    return with_weights(lm, weights, label=f"medusa({os.fspath(name)})", **given)


def with_weights(
    lm: checkpoints.LanguageModel,
    weights: published_medusa.MedusaWeights,
    *,
    label: str = "medusa",
    nodes: int | None = None,
    tree: str | None = None,
) -> equipped.Equipped:
    """Heads that are loaded, or were just trained, as a drafter.

    Args:
      lm: the target.
      weights: of the heads.
      label: for people.
      nodes: of the tree; None for a usual number, or all that was measured.
      tree: name of a published one, None for the one measured or the usual shape.

    Raises:
      ValueError: the tree is none, or deeper than there are heads.
    """
    heads = weights.params["blocks"]["b"].shape[0]
    choices = _tree(weights.choices, heads, nodes, tree)
    depth = max(map(len, choices))
    if depth > heads:
        raise ValueError(
            f"drafter 'medusa': tree {tree or 'of the heads'} is {depth} deep, the "
            f"model has {heads} heads; leave tree out, or ask for fewer nodes"
        )
    ids = weights.params.get("ids")
    width = lm.model.config.vocab_size if ids is None else len(ids)
    ranks = 1 + max(map(max, choices))
    if ranks > width:
        raise ValueError(
            f"drafter 'medusa': the tree looks at {ranks} best tokens of each head, "
            f"whose vocabulary has {width}; ask for fewer nodes"
        )
    return equipped.Equipped(
        drafter=medusa_lib.medusa(lm.model.config, choices=choices),
        params=weights.params,
        fingerprint=weights.fingerprint,
        label=label,
        vocab_size=lm.model.config.vocab_size,
    )


def _tree(
    measured: medusa_trees.Choices | None,
    heads: int,
    nodes: int | None,
    tree: str | None,
) -> medusa_trees.Choices:
    """The choices that options ask for."""
    if nodes is not None:
        checks.integer("drafter 'medusa'", "nodes", nodes, 1)
    if tree is not None:
        return medusa_trees.first(medusa_trees.published(tree), nodes)
    if measured is not None:
        return medusa_trees.first(measured, nodes)
    return medusa_trees.likeliest(_NODES if nodes is None else nodes, heads)
