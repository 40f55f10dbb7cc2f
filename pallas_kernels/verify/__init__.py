"""What a draw needs of a row of logits: its best id, and its normaliser."""

from pallas_kernels.verify.api import argmax, log_sum_exp

__all__ = ["argmax", "log_sum_exp"]
