"""The op in NumPy, one block at a time: slow and obvious."""

import numpy as np


def decode_row(stored: np.ndarray, kind: str) -> np.ndarray:
    """The weights f64[K] of one stored row."""
    if kind in ("f32", "f16", "bf16"):
        return stored.astype(np.float64)
    raw = stored.tobytes()
    size = {"q8_0": 34, "q4_0": 18, "q4_1": 20}[kind]
    weights = []
    for start in range(0, len(raw), size):
        block = raw[start : start + size]
        scale = float(np.frombuffer(block[:2], np.float16)[0])
        if kind == "q8_0":
            weights += [scale * q for q in np.frombuffer(block[2:], np.int8).tolist()]
            continue
        least, first = -8 * scale, 2
        if kind == "q4_1":
            least, first = float(np.frombuffer(block[2:4], np.float16)[0]), 4
        halves = [byte & 15 for byte in block[first:]]
        halves += [byte >> 4 for byte in block[first:]]
        weights += [scale * q + least for q in halves]
    return np.array(weights)


def linear(x: np.ndarray, rows: np.ndarray, kind: str) -> np.ndarray:
    """Equals ``api.linear`` over packed weights, in float64.

    Args:
      x: f[N, K].
      rows: stored rows of M outputs.
      kind: name of their format.
    """
    weights = np.stack([decode_row(row, kind) for row in rows])
    return x.astype(np.float64) @ weights.T
