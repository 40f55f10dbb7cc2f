"""Pools of phrases: what followed a token, one table a row.

A pool maps one token to phrases of a fixed length, newest first. This is the form
that lookahead and Ouroboros share, so that one can lend its pool to the other::

    pool[9]    phrase 5 6, the newest      under a 9 at the    9 - 5 - 6
               phrase 1 2                  end of the spine    `- 1 - 2
"""

import jax
import jax.numpy as jnp

from specjax import checks
from specjax.core import contracts
from specjax.core import tree as tree_lib
from specjax.drafters.lookup import match
from specjax.drafters.lookup import table as table_lib


def create(
    rows: int,
    *,
    vocab_size: int,
    buckets: int,
    ways: int,
    phrase_tokens: int,
    key_tokens: int = 1,
) -> table_lib.Table:
    """Empty pools, leaves [B, ...].

    Args:
      rows: B.
      vocab_size: V, for pools without a hash.
      buckets: a power of two; 0 gives each token id a bucket of its own.
      ways: G, most phrases a token.
      phrase_tokens: W, length of a phrase.
      key_tokens: K, the longest key; 1 without a hash.
    """
    if buckets:
        one = table_lib.hashed(
            buckets, ways, key_tokens=key_tokens, phrase_tokens=phrase_tokens
        )
    else:
        one = table_lib.addressed(vocab_size, ways, phrase_tokens=phrase_tokens)
    return jax.tree.map(lambda x: jnp.broadcast_to(x[None], (rows, *x.shape)), one)


def check_sizes(name: str, **sizes: int) -> None:
    """Refuses sizes of a pool.

    Args:
      name: of the drafter that asks.
      **sizes: ``vocab_size`` and ``buckets``, and others that must be positive.

    Raises:
      ValueError: a size is out of range.
    """
    buckets, vocab_size = sizes.pop("buckets"), sizes.pop("vocab_size")
    checks.at_least(name, 1, **sizes)
    if buckets and not table_lib.may_hash(buckets):
        raise ValueError(
            f"{name}: buckets must be 0 (one for each token id) or a power of two of "
            f"at least {table_lib.PROBES}, got {buckets}"
        )
    if vocab_size < 0 or not (buckets or vocab_size):
        raise ValueError(
            f"{name}: vocab_size must be the target's where buckets=0, got {vocab_size}"
        )


def newest(
    pool: table_lib.Table, key: jax.Array, count: int
) -> tuple[jax.Array, jax.Array]:
    """The newest phrases of one token a row.

    Args:
      pool: the rows' pools.
      key: i32[B].
      count: most phrases, static.

    Returns:
      (i32[B, count, W] phrases, newest first, bool[B, count] which are there).
    """
    read = jax.vmap(lambda table, key: table_lib.read(table, key, count))
    return read(pool, key[:, None])


def insert(
    pool: table_lib.Table, key: jax.Array, phrase: jax.Array, valid: jax.Array
) -> table_lib.Table:
    """Inserts phrases in order; it takes time for the valid ones only.

    Args:
      pool: the rows' pools.
      key: i32[B, M].
      phrase: i32[B, M, W].
      valid: bool[B, M].
    """
    if key.shape[1] == 0:  # trees too small for any
        return pool
    order = jnp.argsort(~valid, axis=1, stable=True)  # i32[B, M], valid ones first
    key = jnp.take_along_axis(key, order, axis=1)
    phrase = jnp.take_along_axis(phrase, order[:, :, None], axis=1)
    count = jnp.sum(valid, axis=1, dtype=jnp.int32)

    def step(carry):
        at, pool = carry

        def one(table, key, phrase, count):
            key = jax.lax.dynamic_slice_in_dim(key, at, 1)[:, None]
            phrase = jax.lax.dynamic_slice_in_dim(phrase, at, 1)
            return table_lib.insert(table, key, phrase, (at < count)[None])

        return at + 1, jax.vmap(one)(pool, key, phrase, count)

    most = jnp.max(count)
    return jax.lax.while_loop(lambda c: c[0] < most, step, (jnp.int32(0), pool))[1]


def forget(
    pool: table_lib.Table, key: jax.Array, phrase: jax.Array, valid: jax.Array
) -> table_lib.Table:
    """Frees the places of phrases, where they are. Arguments as for ``insert``."""
    return jax.vmap(table_lib.forget)(pool, key[:, :, None], phrase, valid)


def append(
    tree: tree_lib.TokenTree,
    phrase: jax.Array,
    live: jax.Array,
    *,
    anchor: jax.Array,
    view: contracts.View,
    vocab_size: int,
) -> tree_lib.TokenTree:
    """Appends phrases as chains under one node, no deeper than there is room.

    Nodes lie level by level, so that a cut by depth leaves the first of them. The tag
    of token j of phrase i is i * W + j. The key counts as a match of one token; first
    tokens of phrases have to share what that lets one expect, newer ones get more.

    Args:
      tree: where to append.
      phrase: i32[B, G, W].
      live: bool[B, G], which of them to append; these come first.
      anchor: i32[B], slot of the spine's end.
      view: for the room.
      vocab_size: V, 0 if not known.
    """
    rows, ways, width = phrase.shape
    levels = jnp.clip(tree_lib.room_below(tree, anchor, view.room), 0, width)
    chains = jnp.sum(live, axis=1, dtype=jnp.int32)
    node = jnp.arange(ways * width, dtype=jnp.int32)[None]
    across = jnp.maximum(chains, 1)[:, None]
    level, chain = node // across, node % across  # i32[B, G * W]
    tag = chain * width + jnp.minimum(level, width - 1)
    token = jnp.take_along_axis(phrase.reshape(rows, ways * width), tag, axis=1)
    rank = jnp.where(level == 0, chain, 0).astype(jnp.float32)
    return tree_lib.append(
        tree,
        token=within(token, vocab_size),
        parent=jnp.where(level == 0, tree_lib.NO_PARENT, node - across),
        count=chains * levels,
        tag=tag,
        confidence=match.confidence_after(1 + level) / (1 + rank),
        anchor=anchor,
    )


def within(token: jax.Array, vocab_size: int) -> jax.Array:
    """Tokens moved into [0, V): a state may be a spoilt memo. V = 0: not known."""
    token = jnp.maximum(token, 0)
    return jnp.minimum(token, vocab_size - 1) if vocab_size else token


def slots_of_tags(tree: tree_lib.TokenTree, first: int, count: int) -> jax.Array:
    """Slots i32[B, count] of the nodes with tags ``first`` on; N where there is none.

    Args:
      tree: as it was scored.
      first: static.
      count: static.
    """
    slot = jnp.arange(tree.slots, dtype=jnp.int32)
    tag = tree.tag - first
    known = tree_lib.node_mask(tree) & (tag >= 0) & (tag < count)
    at = jnp.where(known, tag, count)
    blank = jnp.full((tree.token.shape[0], count), tree.slots, jnp.int32)
    put = jax.vmap(lambda row, at: row.at[at].set(slot, mode="drop"))
    return put(blank, at)


def at_slots(field: jax.Array, slots: jax.Array) -> jax.Array:
    """Values of a field [B, N] at slots i32[B, ...]; some value where out of range."""
    inside = jnp.clip(slots, 0, field.shape[1] - 1)
    return jax.vmap(lambda row, at: row[at])(field, inside)
