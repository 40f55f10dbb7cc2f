"""Ouroboros by name: with a draft model as published, or without one."""

from specjax import checkpoints
from specjax.drafters import equipped, registry
from specjax.drafters import options as options_lib
from specjax.drafters.compose.ouroboros import ouroboros
from specjax.drafters.compose.with_suffixes import with_suffixes
from specjax.drafters.lookup.lookahead import lookahead
from specjax.drafters.lookup.phrase_pool import phrase_pool
from specjax.drafters.lookup.prompt_lookup import prompt_lookup
from specjax.drafters.neural import small as small_lib
from specjax.drafters.neural.draft_model import decoding_ahead, draft_model

_ALONE, _PAIRED = "without a draft model", "with a draft model"


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
    inner = lookahead(
        vocab_size=vocab_size,
        window=window,
        ngram=ngram,
        max_phrases=max_phrases,
        buckets=buckets,
        pool_from_prompt=False,
    )
    chain = decoding_ahead(
        small, label="speculate({}, lookahead)", drafter=inner, max_draft=max_draft
    )
    pool = phrase_pool(
        vocab_size=vocab_size,
        ngram=ngram,
        max_phrases=max_phrases,
        buckets=buckets,
        suffixes=suffixes,
        harvest=harvest,
        correct=correct,
    )
    return ouroboros(chain, pool, min_chance=min_chance)


def _options() -> tuple[options_lib.Option, ...]:
    """The options of both forms, explained by the parts that they go to."""
    parts = (with_suffixes, lookahead, prompt_lookup, phrase_pool, draft_model)
    told = {o.name: o.meaning for part in parts for o in options_lib.of(part)}
    alone = {option.name: option for option in options_lib.of(_without_model)}
    paired = {option.name: option for option in options_lib.of(_with_model)}
    found = []
    for name, option in {**alone, **paired}.items():
        default, meaning = option.default, told[name]
        if name not in paired:
            meaning += f" Only {_ALONE}."
        elif name not in alone:
            meaning += f" Only {_PAIRED}."
        elif default != alone[name].default:
            meaning += f" [{alone[name].default}, {_PAIRED} {default}]"
            default = None
        found.append(option._replace(default=default, meaning=meaning))
    return (small_lib.LAYERS, small_lib.MODEL, *found)


OPTIONS = _options()


def build_ouroboros(
    lm: checkpoints.LanguageModel, options: registry.Options
) -> equipped.Equipped:
    """Drafts a chain, by a draft model or without one, and phrases behind its end.

    Args:
      lm: the target.
      options: ``OPTIONS``; with ``layers`` or ``model`` it is the published system.

    Raises:
      ValueError: an option is out of range or of the other form, or both are given.
    """
    given = dict(options)
    small = small_lib.take("ouroboros", lm, given)
    form, other = (_without_model, _PAIRED) if small is None else (_with_model, _ALONE)
    taken = {option.name for option in options_lib.of(form)}
    for name in given:
        if name not in taken:
            raise ValueError(
                f"drafter 'ouroboros': option {name!r} is for use {other} "
                "(layers=N or model=NAME_OR_PATH)"
            )
    sizes = {"vocab_size": lm.model.config.vocab_size, **given}
    return _without_model(**sizes) if small is None else _with_model(small, **sizes)
