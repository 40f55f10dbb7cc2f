"""The op in NumPy, one block at a time: slow and obvious."""

import functools

import numpy as np

_BYTES = {"q8_0": 34, "q4_0": 18, "q4_1": 20, "q4_k": 144, "q6_k": 210}


def decode_row(stored: np.ndarray, kind: str) -> np.ndarray:
    """The weights f64[K] of one stored row."""
    if kind in ("f32", "f16", "bf16"):
        return stored.astype(np.float64)
    raw, size = stored.tobytes(), _BYTES[kind]
    block = {"q4_k": _q4_k, "q6_k": _q6_k}.get(kind, functools.partial(_small, kind))
    weights = [block(raw[at : at + size]) for at in range(0, len(raw), size)]
    return np.concatenate(weights)


def _half(raw: bytes, at: int) -> float:
    return float(np.frombuffer(raw, np.float16, 1, at)[0])


def _small(kind: str, block: bytes) -> list[float]:
    """A block of 32."""
    scale = _half(block, 0)
    if kind == "q8_0":
        return [scale * q for q in np.frombuffer(block[2:], np.int8).tolist()]
    least, first = -8 * scale, 2
    if kind == "q4_1":
        least, first = _half(block, 2), 4
    halves = [byte & 15 for byte in block[first:]]
    halves += [byte >> 4 for byte in block[first:]]
    return [scale * q + least for q in halves]


def _q4_k(block: bytes) -> list[float]:
    """A block of 256 in groups of 32, each with a scale and a least value."""
    step, lowest = _half(block, 0), _half(block, 2)
    packed, weights = block[4:16], []
    for group in range(8):
        if group < 4:
            scale, least = packed[group] & 63, packed[4 + group] & 63
        else:
            rest = packed[4 + group]
            scale = (rest & 15) + (packed[group - 4] >> 6) * 16
            least = (rest >> 4) + (packed[group] >> 6) * 16
        for byte in block[16 + group // 2 * 32 :][:32]:
            q = byte >> 4 if group % 2 else byte & 15
            weights.append(step * scale * q - lowest * least)
    return weights


def _q6_k(block: bytes) -> list[float]:
    """A block of 256 in groups of 16, each with a scale."""
    step, factors = _half(block, 208), np.frombuffer(block, np.int8, 16, 192).tolist()
    weights = []
    for i in range(256):
        run, within = divmod(i, 128)
        quarter, lane = divmod(within, 32)
        low = block[64 * run + within % 64] >> (4 if within >= 64 else 0) & 15
        high = block[128 + 32 * run + lane] >> 2 * quarter & 3
        q = low + 16 * high - 32
        weights.append(step * factors[i // 16] * q)
    return weights


def linear(x: np.ndarray, rows: np.ndarray, kind: str) -> np.ndarray:
    """Equals ``api.linear`` over packed weights, in float64.

    Args:
      x: f[N, K].
      rows: stored rows of M outputs.
      kind: name of their format.
    """
    weights = np.stack([decode_row(row, kind) for row in rows])
    return x.astype(np.float64) @ weights.T
