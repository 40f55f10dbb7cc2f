"""Rotary positions, and fused projections split into heads."""

from pallas_kernels.rotary.api import split_heads

__all__ = ["split_heads"]
