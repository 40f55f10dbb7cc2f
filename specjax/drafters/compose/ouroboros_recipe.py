"""Ouroboros by name: with a draft model as published, or without one."""

from specjax import checkpoints
from specjax.drafters import equipped, registry
from specjax.drafters.compose.ouroboros import ouroboros
from specjax.drafters.compose.with_suffixes import with_suffixes
from specjax.drafters.lookup.lookahead import lookahead
from specjax.drafters.lookup.phrase_pool import phrase_pool
from specjax.drafters.lookup.prompt_lookup import prompt_lookup
from specjax.drafters.neural import small as small_lib
from specjax.drafters.neural.draft_model import decoding_ahead


def _without_model(
    *,
    vocab_size: int = 0,
    max_draft: int = 12,
    short_draft: int = 3,
    ngram: int = 4,
    max_phrases: int = 4,
    suffixes: int = 1,
    harvest: str = "none",
    correct: str = "none",
    min_chance: float = 0.5,
    buckets: int = 2048,
) -> equipped.Equipped:
    """Without a draft model: prompt lookup, and phrases where it is unsure.

    A longer lookup would be a better suffix of a lookup than a phrase is, so suffixes
    go where the chain is empty or short. The phrases are those of the text:
    learning from answers takes a row of the head for every node.
    """
    pool = phrase_pool(
        vocab_size=vocab_size,
        ngram=ngram,
        max_phrases=max_phrases,
        suffixes=suffixes,
        harvest=harvest,
        correct=correct,
        buckets=buckets,
    )
    chain = prompt_lookup(max_draft=max_draft, short_draft=short_draft)
    made = with_suffixes(chain, pool, min_chance=min_chance)
    return equipped.equip(made)._replace(widths=(1, 4, 8, 16))


def _with_model(
    small: checkpoints.LanguageModel,
    *,
    vocab_size: int = 0,
    max_draft: int = 6,
    window: int = 4,
    ngram: int = 4,
    max_phrases: int = 4,
    suffixes: int = 3,
    harvest: str = "agreement",
    correct: str = "agreement",
    min_chance: float = 0.0,
    buckets: int = 2048,
) -> equipped.Equipped:
    """The published system, in sizes for small devices.

    The text enters the shared pool by the suffixes' drafter alone.
    """
    sizes = {
        "vocab_size": vocab_size,
        "ngram": ngram,
        "max_phrases": max_phrases,
        "buckets": buckets,
    }
    inner = lookahead(window=window, pool_from_prompt=False, **sizes)
    chain = decoding_ahead(
        small, label="speculate({}, lookahead)", drafter=inner, max_draft=max_draft
    )
    pool = phrase_pool(suffixes=suffixes, harvest=harvest, correct=correct, **sizes)
    return ouroboros(chain, pool, min_chance=min_chance)


def build_ouroboros(
    lm: checkpoints.LanguageModel, options: registry.Options
) -> equipped.Equipped:
    """Builds it by name: with ``layers`` or ``model`` as published, else without model.

    Args:
      lm: the target.
      options: ``layers`` (the target cut to its first layers is the draft model),
        ``model`` (name or path of one), neither, and those of the parts.

    Raises:
      ValueError: an option is unknown or out of range, or both are given.
    """
    given = {"vocab_size": lm.model.config.vocab_size, **options}
    small = small_lib.take("ouroboros", lm, given)
    if small is None:
        return _without_model(**registry.convert("ouroboros", _without_model, given))
    return _with_model(small, **registry.convert("ouroboros", _with_model, given))
