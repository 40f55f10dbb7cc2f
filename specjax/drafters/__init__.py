"""Ways to draft, and how they are named and combined."""

from specjax.drafters.compose.speculate import speculate
from specjax.drafters.equipped import Equipped, equip
from specjax.drafters.lookup.prompt_lookup import prompt_lookup
from specjax.drafters.neural.draft_model import draft_model
from specjax.drafters.none import none
from specjax.drafters.registry import make, names, register, register_builder

__all__ = [
    "Equipped",
    "draft_model",
    "equip",
    "make",
    "names",
    "none",
    "prompt_lookup",
    "register",
    "register_builder",
    "speculate",
]
