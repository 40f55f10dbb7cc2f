"""Attention of tree nodes to a cached prefix and to their own ancestors."""

from pallas_kernels.tree_attention.api import (
    BLOCK,
    Part,
    merge,
    part,
    tree_attention,
)
from pallas_kernels.tree_attention.tpu import as_read

__all__ = ["BLOCK", "Part", "as_read", "merge", "part", "tree_attention"]
