"""The op in NumPy, by sorting."""

import numpy as np


def top_k(values: np.ndarray, count: np.ndarray) -> np.ndarray:
    """Equals ``api.top_k``."""
    descending = -np.sort(-values, axis=1)
    at = np.clip(count, 1, values.shape[1]) - 1
    kth = np.take_along_axis(descending, at[:, None], axis=1)[:, 0]
    return np.where(count > 0, kth, -np.inf)


def top_p(weights: np.ndarray, share: np.ndarray) -> np.ndarray:
    """Equals ``api.top_p``, in float64."""
    wide = np.asarray(weights, np.float64)
    thresholds = []
    for row, p in zip(wide, share, strict=True):
        larger = np.array([row[row > weight].sum() for weight in row])
        thresholds.append(row[larger <= p * row.sum()].min() if p < 1 else 0.0)
    return np.array(thresholds)
