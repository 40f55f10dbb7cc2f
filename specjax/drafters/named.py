"""The drafters that come with the library, by name."""

from specjax import checkpoints
from specjax.drafters import equipped, registry
from specjax.drafters.compose.auto import build_auto
from specjax.drafters.compose.fallback import fallback
from specjax.drafters.compose.merge import merge
from specjax.drafters.compose.ouroboros import build_ouroboros
from specjax.drafters.compose.with_suffixes import with_suffixes
from specjax.drafters.lookup.lookahead import lookahead
from specjax.drafters.lookup.phrase_pool import phrase_pool
from specjax.drafters.lookup.prompt_lookup import prompt_lookup
from specjax.drafters.lookup.suffix import suffix
from specjax.drafters.lookup.token_recycling import token_recycling
from specjax.drafters.neural.draft_model import draft_model
from specjax.drafters.none import none


def _build_draft_model(
    lm: checkpoints.LanguageModel, options: registry.Options
) -> equipped.Equipped:
    given = dict(options)
    layers, path = given.pop("layers", None), given.pop("model", None)
    if (layers is None) == (path is None):
        raise ValueError(
            "drafter 'draft_model': give either layers=N (the target cut to its first "
            "N layers) or model=NAME_OR_PATH"
        )
    if path is not None:
        small = checkpoints.load(path, dtype=lm.model.dtype)
    else:
        count = registry.as_type("draft_model", "layers", layers, int)
        small = checkpoints.truncate(lm, count)
    return draft_model(small, **registry.convert("draft_model", draft_model, given))


registry.register("none", none)
registry.register("prompt_lookup", prompt_lookup)
registry.register_builder("draft_model", _build_draft_model)
registry.register_builder("auto", build_auto)
registry.register("suffix", suffix)
registry.register("token_recycling", token_recycling)
registry.register("lookahead", lookahead)
registry.register("phrase_pool", phrase_pool)
registry.register_builder("ouroboros", build_ouroboros)
registry.register_combinator("with_suffixes", with_suffixes)
registry.register_combinator("merge", merge)
registry.register_combinator("fallback", fallback)
