"""The op in NumPy, one query at a time: slow and obvious."""

import numpy as np


def tree_attention(q, k, v, k_cache, v_cache, **options):
    """Equals ``api.tree_attention`` in float64, without stacked caches."""
    return part(q, k, v, k_cache, v_cache, **options)[0]


def part(q, k, v, k_cache, v_cache, *, length, depth, mask, scale, window=0, cap=0.0):
    """Equals ``api.part`` in float64, without stacked caches."""
    q, k, v, k_cache, v_cache = (
        np.asarray(x, np.float64) for x in (q, k, v, k_cache, v_cache)
    )
    out = np.zeros(q.shape)
    logs = np.full(q.shape[:4], -np.inf)
    for b, g, r, n in np.ndindex(q.shape[:4]):
        position = length[b] + depth[b, n]
        keys, values = [], []
        for s in range(length[b]):
            if window == 0 or position - s < window:
                keys.append(k_cache[b, g, s])
                values.append(v_cache[b, g, s])
        for m in range(k.shape[2]):
            near = window == 0 or depth[b, n] - depth[b, m] < window
            if mask[b, n, m] and near:
                keys.append(k[b, g, m])
                values.append(v[b, g, m])
        if not keys:
            continue
        score = np.stack(keys) @ q[b, g, r, n] * scale
        if cap:
            score = cap * np.tanh(score / cap)
        weight = np.exp(score - score.max())
        out[b, g, r, n] = weight @ np.stack(values) / weight.sum()
        logs[b, g, r, n] = score.max() + np.log(weight.sum())
    return out.transpose(0, 3, 1, 2, 4), logs.transpose(0, 3, 1, 2)
