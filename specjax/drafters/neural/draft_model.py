"""A second, smaller language model as the drafter."""

from specjax import checkpoints
from specjax.core import contracts
from specjax.drafters import equipped
from specjax.drafters.compose.speculate import speculate


def draft_model(
    small: checkpoints.LanguageModel, *, max_draft: int = 4, laws: bool = False
) -> equipped.Equipped:
    """Drafts with a loaded model that shares the target's vocabulary.

    Args:
      small: the draft model; ``truncate(lm, layers)`` makes one of the target itself.
      max_draft: tokens drafted a round.
      laws: draws drafts from the model's law and hands it on, for rules that test
        drafts against their laws (``rejection``, ``without_replacement``).
    """
    return decoding_ahead(
        small, label="draft_model({})", max_draft=max_draft, laws=laws
    )


def decoding_ahead(
    small: checkpoints.LanguageModel,
    *,
    label: str,
    drafter: contracts.Drafter | None = None,
    max_draft: int,
    laws: bool = False,
) -> equipped.Equipped:
    """``speculate`` over a loaded model, with its weights.

    Args:
      small: the model.
      label: for people, with braces where its name goes.
      drafter: what drafts for it in turn, one without weights.
      max_draft: tokens drafted a round.
      laws: of ``speculate``.
    """
    return equipped.Equipped(
        drafter=speculate(
            small.model.target, drafter=drafter, max_draft=max_draft, laws=laws
        ),
        params={"model": small.params, "drafter": {}},
        fingerprint=small.fingerprint,
        label=label.format(small.name),
        vocab_size=small.model.config.vocab_size,
    )
