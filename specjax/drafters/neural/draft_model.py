"""A second, smaller language model as the drafter."""

from specjax import checkpoints
from specjax.drafters import equipped
from specjax.drafters.compose.speculate import speculate


def draft_model(
    small: checkpoints.LanguageModel, *, max_draft: int = 4
) -> equipped.Equipped:
    """Drafts with a loaded model that shares the target's vocabulary.

    Args:
      small: the draft model; ``truncate(lm, layers)`` makes one of the target itself.
      max_draft: tokens drafted a round.
    """
    return equipped.Equipped(
        drafter=speculate(small.model.target, max_draft=max_draft),
        params={"model": small.params, "drafter": {}},
        fingerprint=small.fingerprint,
        label=f"draft_model({small.name})",
        vocab_size=small.model.config.vocab_size,
    )
