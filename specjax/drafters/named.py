"""The drafters that come with the library, by name."""

from specjax import checkpoints
from specjax.drafters import equipped, registry
from specjax.drafters.compose.auto import build_auto
from specjax.drafters.compose.cascade_recipe import build_cascade
from specjax.drafters.compose.fallback import fallback
from specjax.drafters.compose.hierarchy import hierarchy
from specjax.drafters.compose.horizontal import horizontal
from specjax.drafters.compose.merge import merge
from specjax.drafters.compose.ouroboros_recipe import build_ouroboros
from specjax.drafters.compose.with_suffixes import with_suffixes
from specjax.drafters.lookup import datastore as datastore_lib
from specjax.drafters.lookup import stored
from specjax.drafters.lookup.context_ngrams import context_ngrams
from specjax.drafters.lookup.corpus import corpus
from specjax.drafters.lookup.lookahead import lookahead
from specjax.drafters.lookup.max_gram import max_gram, max_gram_with_store
from specjax.drafters.lookup.model_ngrams import model_ngrams
from specjax.drafters.lookup.phrase_pool import phrase_pool
from specjax.drafters.lookup.prompt_lookup import prompt_lookup
from specjax.drafters.lookup.suffix import suffix, suffix_with_store
from specjax.drafters.lookup.token_recycling import token_recycling
from specjax.drafters.neural import small as small_lib
from specjax.drafters.neural.draft_model import draft_model
from specjax.drafters.none import none


def _build_draft_model(
    lm: checkpoints.LanguageModel, options: registry.Options
) -> equipped.Equipped:
    given = dict(options)
    small = small_lib.take("draft_model", lm, given)
    if small is None:
        raise ValueError(
            "drafter 'draft_model': give either layers=N (the target cut to its first "
            "N layers) or model=NAME_OR_PATH"
        )
    return draft_model(small, **registry.convert("draft_model", draft_model, given))


def _build_hierarchy(
    lm: checkpoints.LanguageModel, options: registry.Options
) -> equipped.Equipped:
    """The published order of databases: the text, the model's past, a large corpus.

    The latter two come from ``store=FOLDER``, as far as it holds them; ``children``
    names other ones. Unless told otherwise the tree fills a rung of 16 slots.
    """
    given = dict(options)
    if "children" in given:
        made = registry.children("hierarchy", lm, given.pop("children"))
    else:
        made = [registry.make("context_ngrams", lm)]
        if "store" in given:
            store, given = stored.open_store("hierarchy", lm, given)
            if datastore_lib.MODEL_NGRAMS in store.parts:
                made.append(model_ngrams(store))
            if datastore_lib.CORPUS in store.parts:
                made.append(corpus(store))
        given.setdefault("max_nodes", 15)
    return equipped.equip(
        hierarchy(*made, **registry.convert("hierarchy", hierarchy, given))
    )


registry.register("none", none)
registry.register("prompt_lookup", prompt_lookup)
registry.register_builder("draft_model", _build_draft_model)
registry.register_builder("auto", build_auto)
registry.register_builder(
    "suffix", stored.builder("suffix", suffix_with_store, without=suffix)
)
registry.register("token_recycling", token_recycling)
registry.register("context_ngrams", context_ngrams)
registry.register_builder("model_ngrams", stored.builder("model_ngrams", model_ngrams))
registry.register_builder("corpus", stored.builder("corpus", corpus))
registry.register_builder("hierarchy", _build_hierarchy)
registry.register_builder(
    "max_gram", stored.builder("max_gram", max_gram_with_store, without=max_gram)
)
registry.register_builder("cascade", build_cascade)
registry.register("lookahead", lookahead)
registry.register("phrase_pool", phrase_pool)
registry.register_builder("ouroboros", build_ouroboros)
registry.register_combinator("with_suffixes", with_suffixes)
registry.register_combinator("merge", merge)
registry.register_combinator("fallback", fallback)
registry.register_combinator("horizontal", horizontal)
