"""Products of few rows with weights that stay as they were stored."""

from pallas_kernels.linear.api import linear, pack, take_rows
from pallas_kernels.linear.cpu import available
from pallas_kernels.linear.formats import FORMATS, Packed, decode, finite

__all__ = [
    "FORMATS",
    "Packed",
    "available",
    "decode",
    "finite",
    "linear",
    "pack",
    "take_rows",
]
