"""Ways to draft, and how they are named and combined."""

import specjax.drafters.named  # noqa: F401, for the names that it registers
from specjax.drafters.compose.adaptive_length import adaptive_length
from specjax.drafters.compose.fallback import fallback
from specjax.drafters.compose.merge import merge
from specjax.drafters.compose.speculate import speculate
from specjax.drafters.equipped import Equipped, equip
from specjax.drafters.lookup.prompt_lookup import prompt_lookup
from specjax.drafters.neural.draft_model import draft_model
from specjax.drafters.none import none
from specjax.drafters.registry import (
    make,
    names,
    register,
    register_builder,
    register_combinator,
)

__all__ = [
    "Equipped",
    "adaptive_length",
    "draft_model",
    "equip",
    "fallback",
    "make",
    "merge",
    "names",
    "none",
    "prompt_lookup",
    "register",
    "register_builder",
    "register_combinator",
    "speculate",
]
