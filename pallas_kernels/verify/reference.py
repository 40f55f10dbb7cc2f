"""The op in NumPy."""

import numpy as np


def argmax(scores: np.ndarray) -> np.ndarray:
    """Equals ``api.argmax``."""
    return np.argmax(scores, axis=1)


def log_sum_exp(logits: np.ndarray) -> np.ndarray:
    """Equals ``api.log_sum_exp`` in float64."""
    wide = np.asarray(logits, np.float64)
    top = wide.max(axis=1)
    base = np.where(np.isinf(top), 0.0, top)
    with np.errstate(divide="ignore"):
        return base + np.log(np.exp(wide - base[:, None]).sum(axis=1))
