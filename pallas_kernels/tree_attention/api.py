"""The public function: checks arguments and chooses an implementation."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from pallas_kernels import backends, triton
from pallas_kernels.tree_attention import cpu, gpu, tpu, xla

BLOCK = xla.BLOCK


class Part(NamedTuple):
    """Attention to some of the keys, fit to be merged with that to others.

    Attributes:
      out: f[B, N, G, R, D], zeros where a query sees none of them.
      log_sum_exp: f32[B, N, G, R] of the scores, -inf there.
    """

    out: jax.Array
    log_sum_exp: jax.Array


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
    backend: str | None = None,
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
      backend: "tpu", "gpu", "native" or "xla", static; None takes the first that
        serves.

    Returns:
      f[B, N, G, R, D] in the dtype of q: a node's heads side by side, as the
      projection that follows takes them.

    Raises:
      ValueError: a shape does not fit, or the backend asked for is not there.
    """
    floats = (q, k, v, k_cache, v_cache)
    _check(*floats, length, depth, mask, layer)
    rest = {"length": length, "depth": depth, "mask": mask, "window": window}
    rest |= {"scale": scale, "cap": cap, "layer": layer}
    single = all(x.dtype == jnp.float32 for x in floats)
    there = {
        "native": backends.platform() == "cpu" and single and cpu.available(),
        **_kernels(),
    }
    chosen = backends.choose("tree_attention", backend, there)
    by_xla = functools.partial(xla.tree_attention, **rest)
    if chosen == "xla":
        return by_xla(*floats)
    kernel = _for_platform(chosen, rest)
    return jax.lax.platform_dependent(*floats, **kernel, default=by_xla)


def part(
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
    backend: str | None = None,
) -> Part:
    """As `tree_attention`, with the log-sum-exp that ``merge`` needs.

    A node need not see itself: with a mask of False the part is the cache alone, with
    a length of 0 the tree alone. ``backend`` is "tpu", "gpu" or "xla".
    """
    floats = (q, k, v, k_cache, v_cache)
    _check(*floats, length, depth, mask, layer)
    rest = {"length": length, "depth": depth, "mask": mask, "window": window}
    rest |= {"scale": scale, "cap": cap, "layer": layer, "log_sum_exp": True}
    there = _kernels()
    chosen = backends.choose("tree_attention.part", backend, there)
    by_xla = functools.partial(xla.tree_attention, **rest)
    if chosen == "xla":
        return Part(*by_xla(*floats))
    kernel = _for_platform(chosen, rest)
    return Part(*jax.lax.platform_dependent(*floats, **kernel, default=by_xla))


def merge(first: Part, second: Part) -> Part:
    """Attention to the keys of both parts, which share none.

    Exact: each part weighs as much as the sum of its exponentials, in float32.
    """
    top = jnp.maximum(first.log_sum_exp, second.log_sum_exp)
    top = jnp.where(top == -jnp.inf, 0.0, top)  # neither sees anything
    weights = [jnp.exp(one.log_sum_exp - top) for one in (first, second)]
    total = weights[0] + weights[1]
    shares = [(one / jnp.where(total == 0, 1.0, total))[..., None] for one in weights]
    outs = [one.out.astype(jnp.float32) for one in (first, second)]
    out = shares[0] * outs[0] + shares[1] * outs[1]
    return Part(out.astype(first.out.dtype), top + jnp.log(total))


def _kernels() -> dict[str, bool]:
    """By name, which of XLA and the Pallas kernels serve here; best first.

    The one for GPU only where it is asked for, until it has been timed on one.
    """
    whole = not backends.partitioned()
    return {
        "tpu": whole and backends.platform() == "tpu",
        "xla": True,
        "gpu": whole and backends.platform() == "gpu" and triton.available(),
    }


def _for_platform(backend: str, options: dict[str, Any]) -> dict[str, Any]:
    """A kernel by the platform that it is compiled for."""
    module, platform = {
        "native": (cpu, "cpu"),
        "tpu": (tpu, "tpu"),
        "gpu": (gpu, "cuda"),
    }[backend]
    return {platform: functools.partial(module.tree_attention, **options)}


def _check(q, k, v, k_cache, v_cache, length, depth, mask, layer) -> None:
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
