"""Rules that decide which drafts are kept."""

from specjax.verify.candidates import draw_without_replacement
from specjax.verify.exact import exact
from specjax.verify.registry import by_name
from specjax.verify.rejection import rejection
from specjax.verify.without_replacement import without_replacement

__all__ = [
    "by_name",
    "draw_without_replacement",
    "exact",
    "rejection",
    "without_replacement",
]
