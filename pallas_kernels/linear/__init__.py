"""Products of few rows with weights that stay as they were stored."""

from pallas_kernels.linear.api import linear, pack, pick, take_rows
from pallas_kernels.linear.cpu import available
from pallas_kernels.linear.formats import FORMATS, Packed, decode, finite
from pallas_kernels.linear.tiled import (
    Tiled,
    at_layer,
    quantise,
    tile,
    tileable,
    tiled_shapes,
    without_tiled,
)

__all__ = [
    "FORMATS",
    "Packed",
    "Tiled",
    "at_layer",
    "available",
    "decode",
    "finite",
    "linear",
    "pack",
    "pick",
    "quantise",
    "take_rows",
    "tile",
    "tileable",
    "tiled_shapes",
    "without_tiled",
]
