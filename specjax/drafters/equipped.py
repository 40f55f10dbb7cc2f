"""A drafter together with its weights, ready for one target."""

from typing import NamedTuple

from specjax.core import contracts


class Equipped(NamedTuple):
    """A drafter, its params, and whose tokens it speaks.

    Attributes:
      drafter: the functions.
      params: the drafter's own params; {} for one without weights.
      fingerprint: of the tokenizer that its weights were made for, None if it has
        no vocabulary of its own. A target with another one is refused.
      label: how the user spelled it.
      vocab_size: width of its logits, None if it has none. It must be the target's:
        processors and noise go by the target's ids.
    """

    drafter: contracts.Drafter
    params: contracts.Params
    fingerprint: str | None = None
    label: str = ""
    vocab_size: int | None = None


def equip(drafter: "contracts.Drafter | Equipped") -> Equipped:
    """Wraps a drafter without weights; passes an equipped one through.

    Raises:
      TypeError: it is neither.
    """
    if isinstance(drafter, Equipped):
        return drafter
    if isinstance(drafter, contracts.Drafter):
        name = "+".join(source.name for source in drafter.sources) or "none"
        return Equipped(drafter, {}, None, name)
    raise TypeError(
        f"drafter must be a Drafter or Equipped, got {type(drafter).__name__}; make "
        "one with specjax.drafters.prompt_lookup() or specjax.drafters.make(NAME, lm)"
    )
