"""Attention of tree nodes to a cached prefix and to their own ancestors."""

from pallas_kernels.tree_attention.api import BLOCK, tree_attention

__all__ = ["BLOCK", "tree_attention"]
