"""The op in plain jnp: bisection on the bit patterns of floats, which runs anywhere."""

import jax
import jax.numpy as jnp


def top_k(values: jax.Array, count: jax.Array) -> jax.Array:
    """See ``api.top_k``; values are f32."""
    order = _ordered(values)
    wanted = jnp.minimum(count, values.shape[1])
    low = jnp.min(order, axis=1)
    high = jnp.max(order, axis=1) + 1

    def holds(threshold):
        return jnp.sum(order >= threshold[:, None], axis=1) >= wanted

    kth = _from_ordered(_bisect(low, high, holds))
    return jnp.where(count > 0, kth, -jnp.inf)


def top_p(weights: jax.Array, share: jax.Array) -> jax.Array:
    """See ``api.top_p``; weights are f32."""
    order = _ordered(weights)
    allowed = share * jnp.sum(weights, axis=1)
    low = jnp.full(share.shape, -1, jnp.int32)
    high = jnp.max(order, axis=1)

    # Find the largest threshold whose mass above it exceeds what is allowed;
    # the next larger weight is the smallest one kept.
    def holds(threshold):
        above = jnp.where(order > threshold[:, None], weights, 0.0)
        return jnp.sum(above, axis=1) > allowed

    cut = _bisect(low, high, holds)
    cut = jnp.where(holds(cut), cut, -1)
    kept = jnp.where(order > cut[:, None], order, jnp.iinfo(jnp.int32).max)
    threshold = _from_ordered(jnp.min(kept, axis=1))
    return jnp.where(share < 1, threshold, 0.0)


def _ordered(values: jax.Array) -> jax.Array:
    """Maps f32 to i32 so that integers order as the floats do."""
    raw = jax.lax.bitcast_convert_type(values, jnp.int32)
    return jnp.where(raw < 0, raw ^ jnp.int32(0x7FFFFFFF), raw)


def _from_ordered(order: jax.Array) -> jax.Array:
    raw = jnp.where(order < 0, order ^ jnp.int32(0x7FFFFFFF), order)
    return jax.lax.bitcast_convert_type(raw, jnp.float32)


def _bisect(low: jax.Array, high: jax.Array, holds) -> jax.Array:
    """Largest i32[B] value in [low, high) for which ``holds``, given holds(low)."""

    def body(_, bounds):
        low, high = bounds
        # Overflow-free mean, rounded down.
        middle = (low & high) + ((low ^ high) >> 1)
        ok = holds(middle)
        return jnp.where(ok, middle, low), jnp.where(ok, high, middle)

    return jax.lax.fori_loop(0, 32, body, (low, high))[0]
