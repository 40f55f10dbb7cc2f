"""The drafters that come with the library, by name."""

from specjax import checkpoints
from specjax.drafters import equipped, registry
from specjax.drafters import options as options_lib
from specjax.drafters.compose import auto, cascade_recipe, ouroboros_recipe
from specjax.drafters.compose.cascade import cascade
from specjax.drafters.compose.fallback import fallback
from specjax.drafters.compose.hierarchy import hierarchy
from specjax.drafters.compose.horizontal import horizontal
from specjax.drafters.compose.merge import merge
from specjax.drafters.compose.with_suffixes import with_suffixes
from specjax.drafters.lookup import datastore as datastore_lib
from specjax.drafters.lookup import stored
from specjax.drafters.lookup.context_ngrams import context_ngrams
from specjax.drafters.lookup.corpus import corpus, corpus_drafter
from specjax.drafters.lookup.lookahead import lookahead
from specjax.drafters.lookup.max_gram import max_gram, max_gram_with_store
from specjax.drafters.lookup.model_ngrams import model_ngrams
from specjax.drafters.lookup.phrase_pool import phrase_pool
from specjax.drafters.lookup.prompt_lookup import prompt_lookup
from specjax.drafters.lookup.suffix import suffix, suffix_with_store
from specjax.drafters.lookup.token_recycling import token_recycling
from specjax.drafters.neural import medusa_recipe
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
    return draft_model(small, **given)


_MAX_NODES = 15  # with the trunk a width of 16
_HIERARCHY = (
    stored.STORE._replace(
        meaning="datastore with n-grams of the model, a corpus, or both, to be asked "
        "after the text itself."
    ),
    registry.CHILDREN._replace(
        meaning="other drafters in place of those, the most local and cheapest first."
    ),
    options_lib.Option(
        "max_nodes",
        options_lib.INTEGER,
        "most nodes of all chains together, those of later chains are left out first "
        f"[{_MAX_NODES}, with children quota times their longest chain].",
    ),
)


def _build_hierarchy(
    lm: checkpoints.LanguageModel, options: registry.Options
) -> equipped.Equipped:
    """The published order of databases: the text, the model's past, a large corpus.

    The latter two come from ``store=FOLDER``, as far as it holds them; ``children``
    names other ones.
    """
    given = dict(options)
    if "children" in given and "store" in given:
        raise ValueError(
            "drafter 'hierarchy': give either store=FOLDER or children, not both; "
            "children may have stores of their own"
        )
    if "children" in given:
        made = [child.build(lm) for child in given.pop("children")]
    else:
        made = [registry.make("context_ngrams", lm)]
        if "store" in given:
            store = stored.open_store("hierarchy", lm, given.pop("store"))
            if datastore_lib.MODEL_NGRAMS in store.parts:
                made.append(model_ngrams(store))
            if datastore_lib.CORPUS in store.parts:
                made.append(corpus(store))
        given.setdefault("max_nodes", _MAX_NODES)
    return equipped.equip(hierarchy(*made, **given))


def _register_stored(name: str, factory, *, like=None, without=None) -> None:
    """One that looks a datastore up; without ``without`` it needs one."""
    builder = stored.builder(name, factory, without=without)
    store = stored.NEEDED if without is None else stored.STORE
    registry.register_builder(
        name, builder, options=(store,), like=like or without or factory
    )


registry.register("none", none)
registry.register("prompt_lookup", prompt_lookup)
registry.register_builder(
    "draft_model",
    _build_draft_model,
    options=(small_lib.LAYERS, small_lib.MODEL),
    like=draft_model,
)
registry.register_builder(
    "medusa", medusa_recipe.build_medusa, options=medusa_recipe.OPTIONS
)
registry.register_builder(
    "auto", auto.build_auto, options=(auto.COSTS,), like=auto.auto
)
_register_stored("suffix", suffix_with_store, without=suffix)
registry.register("token_recycling", token_recycling)
registry.register("context_ngrams", context_ngrams)
_register_stored("model_ngrams", model_ngrams)
_register_stored("corpus", corpus, like=corpus_drafter)
registry.register_builder(
    "hierarchy", _build_hierarchy, options=_HIERARCHY, like=hierarchy
)
_register_stored("max_gram", max_gram_with_store, without=max_gram)
registry.register_builder(
    "cascade",
    cascade_recipe.build_cascade,
    options=cascade_recipe.OPTIONS,
    like=cascade,
)
registry.register("lookahead", lookahead)
registry.register("phrase_pool", phrase_pool)
registry.register_builder(
    "ouroboros", ouroboros_recipe.build_ouroboros, options=ouroboros_recipe.OPTIONS
)
registry.register_combinator("with_suffixes", with_suffixes)
registry.register_combinator("merge", merge)
registry.register_combinator("fallback", fallback)
registry.register_combinator("horizontal", horizontal)
