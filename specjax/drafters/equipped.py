"""A drafter together with its weights, ready for one target."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from specjax import cached
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
      widths: ladder that it was made for, None for the usual one.
      note: why it was made so, for people.
    """

    drafter: contracts.Drafter
    params: contracts.Params
    fingerprint: str | None = None
    label: str = ""
    vocab_size: int | None = None
    widths: tuple[int, ...] | None = None
    note: str = ""


AnyDrafter = contracts.Drafter | Equipped


def equip(drafter: AnyDrafter) -> Equipped:
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


def combinator(combine: Callable[..., contracts.Drafter]) -> Callable[..., Any]:
    """Lets a function of drafters take equipped ones as well.

    ``combine(*drafters, **options)`` is pure and knows drafters only. What this
    returns gives a Drafter for Drafters, and for a family in which some child has
    weights an Equipped, whose params are the tuple of the children's.

    Raises (when called):
      TypeError: a child is neither a Drafter nor an Equipped.
      ValueError: children were made for different tokenizers, vocabularies or ladders.
    """
    kept = cached.cached(combine)

    @functools.wraps(combine)
    def combined(*children: AnyDrafter, **options: Any) -> AnyDrafter:
        parts = [equip(child) for child in children]
        drafter = kept(*(part.drafter for part in parts), **options)
        if not any(isinstance(child, Equipped) for child in children):
            return drafter
        inner = ", ".join(part.label for part in parts)
        return Equipped(
            drafter=drafter,
            params=tuple(part.params for part in parts),
            fingerprint=_agreed(combine.__name__, "tokenizers", parts, "fingerprint"),
            label=f"{combine.__name__}({inner})",
            vocab_size=_agreed(combine.__name__, "vocabularies", parts, "vocab_size"),
            widths=_agreed(combine.__name__, "ladders", parts, "widths"),
        )

    return combined


def _agreed(name: str, what: str, parts: list[Equipped], field: str) -> Any:
    """The value that all parts which have one share."""
    stated = [(part.label, getattr(part, field)) for part in parts]
    values = {value for _, value in stated if value is not None}
    if len(values) > 1:
        raise ValueError(f"{name}: the drafters have different {what}: {stated}")
    return next(iter(values), None)
