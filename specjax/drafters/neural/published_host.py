"""The target that a draft checkpoint is to serve, and what both must agree on."""

import pathlib
from typing import Any, NamedTuple

from specjax import checkpoints
from specjax.checkpoints import tokenizer as tokenizer_lib
from specjax.drafters.neural import published_files
from specjax.models import config as config_lib


class Host(NamedTuple):
    """What a draft checkpoint must fit.

    Attributes:
      name: of the target, for messages.
      config: its shapes.
      fingerprint: of its tokenizer, None if it can't be read.
    """

    name: str
    config: config_lib.ModelConfig
    fingerprint: str | None


def of_model(lm: checkpoints.LanguageModel) -> Host:
    """A loaded target."""
    return Host(lm.name, lm.model.config, lm.fingerprint)


def of_inspection(name: str, inspection: checkpoints.Inspection) -> Host | None:
    """A target of which headers were read; None if its config can't be."""
    if inspection.config is None:
        return None
    return Host(name, inspection.config, inspection.fingerprint)


def fingerprint_of(draft: published_files.Draft) -> str | None:
    """The tokenizer's fingerprint that a draft says or brings, None if neither.

    Raises:
      ValueError: its tokenizer can't be read.
    """
    said = draft.own.get("fingerprint")
    if isinstance(said, str):
        return said
    file = pathlib.Path(draft.path) / "tokenizer.json"
    return tokenizer_lib.from_json(file).fingerprint() if file.is_file() else None


def problems(draft: published_files.Draft, host: Host, width: Any) -> list[str]:
    """Why the draft is of a target with another vocabulary; empty if it is not.

    Args:
      draft: the checkpoint.
      host: the target.
      width: the target's vocabulary by the draft's config, None if it does not say.
    """
    try:
        theirs = fingerprint_of(draft)
    except ValueError as error:
        return [str(error)]
    if None not in (theirs, host.fingerprint) and theirs != host.fingerprint:
        return [
            f"it was made for another tokenizer than that of {host.name}, so its "
            "drafts would be other tokens; use a draft made for this target"
        ]
    if width is not None and width != host.config.vocab_size:
        return [
            f"config.json says vocab_size {width}, {host.name} has "
            f"{host.config.vocab_size}; use a draft made for this target"
        ]
    return []


def misshapen(
    draft: published_files.Draft, name: str, expected: tuple[int, ...], host: Host
) -> list[str]:
    """What is wrong with the shape of a tensor that is there; empty if nothing is.

    Args:
      draft: the checkpoint.
      name: of the tensor.
      expected: its shape for this target.
      host: the target.
    """
    shape = tuple(draft.shapes[name])
    if shape == expected:
        return []
    return [
        f"tensor {name} has shape {shape}, expected {expected} for {host.name}, whose "
        f"hidden size is {host.config.embed_size} and vocabulary "
        f"{host.config.vocab_size}; use a draft made for this target"
    ]


def refuse(draft: published_files.Draft, found: list[str]) -> None:
    """Raises the first of some problems.

    Raises:
      ValueError: there is one.
    """
    if found:
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise ValueError(f"{draft.path}: {found[0]}{more}")
