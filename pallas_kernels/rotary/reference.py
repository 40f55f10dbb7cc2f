"""The op in NumPy, one head at a time: slow and obvious."""

import numpy as np


def split_heads(qkv, cos, sin):
    """Equals ``api.split_heads`` in float64."""
    qkv, cos, sin = (np.asarray(x, np.float64) for x in (qkv, cos, sin))
    rows, nodes, groups, parts, size = qkv.shape
    heads, half = parts - 2, size // 2
    q = np.zeros((rows, groups, heads, nodes, size))
    k = np.zeros((rows, groups, nodes, size))
    v = np.zeros((rows, groups, nodes, size))
    for b, n, g in np.ndindex(rows, nodes, groups):
        for part in range(heads + 1):
            first, second = qkv[b, n, g, part, :half], qkv[b, n, g, part, half:]
            turned = np.concatenate(
                [
                    first * cos[b, n] - second * sin[b, n],
                    second * cos[b, n] + first * sin[b, n],
                ]
            )
            if part < heads:
                q[b, g, part, n] = turned
            else:
                k[b, g, n] = turned
        v[b, g, n] = qkv[b, n, g, heads + 1]
    return q, k, v
