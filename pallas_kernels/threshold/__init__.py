"""Where to cut a row of numbers: after so many of them, or after so much mass."""

from pallas_kernels.threshold.api import top_k, top_p

__all__ = ["top_k", "top_p"]
