"""The public function: checks arguments and chooses an implementation."""

import functools

import jax
import jax.numpy as jnp

from pallas_kernels.tree_attention import cpu, xla

BLOCK = xla.BLOCK


def tree_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    k_cache: jax.Array,
    v_cache: jax.Array,
    *,
    length: jax.Array,
    depth: jax.Array,
    mask: jax.Array,
    scale: float,
    window: jax.Array | int = 0,
    cap: float = 0.0,
    layer: jax.Array | None = None,
) -> jax.Array:
    """Attends from N tree nodes to a cached prefix plus the tree's own rows.

    Equals softmax(cap(scale * q k^T) + mask) v over the concatenation of the first
    ``length`` cached positions and the N new rows, where node n sits at position
    ``length + depth[n]`` and sees new row m iff ``mask[n, m]``. With a window, only
    keys less than ``window`` positions back are seen. Work follows ``length``, not
    the capacity.

    Args:
      q: f[B, G, R, N, D], R query heads for each of G kv heads.
      k, v: f[B, G, N, D], rows of the tree itself.
      k_cache, v_cache: f[B, G, S, D], or f[B, layers, G, S, D] with ``layer``. S is
        at most BLOCK or a multiple of it.
      length: i32[B], cached positions in use, 0 to S.
      depth: i32[B, N].
      mask: bool[B, N, N]; every node must see itself.
      scale: factor on the scores, static.
      window: i32[] or int, 0 for none.
      cap: soft cap on the scores, static, 0 for none.
      layer: i32[], which layer of a stacked cache to read.

    Returns:
      f[B, N, G, R, D] in the dtype of q: a node's heads side by side, as the
      projection that follows takes them.

    Raises:
      ValueError: a shape does not fit.
    """
    rows, groups, _, nodes, size = q.shape
    slots = k_cache.shape[-2]
    layers = () if layer is None else k_cache.shape[1:2]
    cached = (rows, *layers, groups, slots, size)
    expected = {
        "k": (k.shape, (rows, groups, nodes, size)),
        "v": (v.shape, (rows, groups, nodes, size)),
        "k_cache": (k_cache.shape, cached),
        "v_cache": (v_cache.shape, cached),
        "length": (length.shape, (rows,)),
        "depth": (depth.shape, (rows, nodes)),
        "mask": (mask.shape, (rows, nodes, nodes)),
    }
    for name, (got, wanted) in expected.items():
        if tuple(got) != wanted:
            raise ValueError(
                f"tree_attention: {name} must have shape {wanted} (q is {q.shape}), "
                f"got {tuple(got)}"
            )
    if slots > BLOCK and slots % BLOCK:
        raise ValueError(
            f"tree_attention: a cache of more than {BLOCK} slots must be a multiple "
            f"of {BLOCK}, got {slots}"
        )

    rest = {"length": length, "depth": depth, "mask": mask, "window": window}
    rest |= {"scale": scale, "cap": cap, "layer": layer}
    by_xla = functools.partial(xla.tree_attention, **rest)
    floats = (q, k, v, k_cache, v_cache)
    single = all(x.dtype == jnp.float32 for x in floats)
    if not single or not cpu.available():
        return by_xla(*floats)
    native = functools.partial(cpu.tree_attention, **rest)
    return jax.lax.platform_dependent(*floats, cpu=native, default=by_xla)
