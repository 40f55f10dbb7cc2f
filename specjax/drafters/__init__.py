"""Ways to draft, and how they are named and combined."""

import specjax.drafters.named  # noqa: F401, for the names that it registers
from specjax.drafters.compose import schedule
from specjax.drafters.compose.adaptive_length import adaptive_length
from specjax.drafters.compose.auto import auto
from specjax.drafters.compose.cascade import cascade, nested_params
from specjax.drafters.compose.fallback import fallback
from specjax.drafters.compose.hierarchy import hierarchy
from specjax.drafters.compose.horizontal import horizontal
from specjax.drafters.compose.merge import merge
from specjax.drafters.compose.ouroboros import ouroboros
from specjax.drafters.compose.schedule import best_matrix
from specjax.drafters.compose.speculate import speculate
from specjax.drafters.compose.with_suffixes import with_suffixes
from specjax.drafters.equipped import Equipped, equip
from specjax.drafters.lookup.context_ngrams import context_ngrams
from specjax.drafters.lookup.corpus import corpus
from specjax.drafters.lookup.lookahead import lookahead
from specjax.drafters.lookup.max_gram import max_gram, max_gram_with_store
from specjax.drafters.lookup.model_ngrams import model_ngrams
from specjax.drafters.lookup.phrase_pool import phrase_pool
from specjax.drafters.lookup.prompt_lookup import prompt_lookup
from specjax.drafters.lookup.suffix import suffix, suffix_with_store
from specjax.drafters.lookup.token_recycling import token_recycling
from specjax.drafters.neural.draft_model import draft_model
from specjax.drafters.neural.medusa import medusa
from specjax.drafters.none import none
from specjax.drafters.registry import (
    describe,
    make,
    names,
    register,
    register_builder,
    register_combinator,
)

__all__ = [
    "Equipped",
    "adaptive_length",
    "auto",
    "best_matrix",
    "cascade",
    "context_ngrams",
    "corpus",
    "describe",
    "draft_model",
    "equip",
    "fallback",
    "hierarchy",
    "horizontal",
    "lookahead",
    "make",
    "max_gram",
    "max_gram_with_store",
    "medusa",
    "merge",
    "model_ngrams",
    "names",
    "nested_params",
    "none",
    "ouroboros",
    "phrase_pool",
    "prompt_lookup",
    "register",
    "register_builder",
    "register_combinator",
    "schedule",
    "speculate",
    "suffix",
    "suffix_with_store",
    "token_recycling",
    "with_suffixes",
]
