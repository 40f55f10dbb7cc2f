"""A fixed-capacity table from a few tokens to the phrases that followed them.

Set-associative: a key has one bucket, a bucket holds up to ``ways`` phrases. Buckets
are found by a multiplicative hash and a few linear probes; with one-token keys and
as many buckets as ids a token is its own address and no key is stored. Everything is
int32 and of fixed size, so it lives in the carry of a compiled loop::

    key (7, 9) -> bucket 5    way 0  phrase 4 4 1   stamp 12  count 3
                              way 1  phrase 4 4 2   stamp 31  count 1   the newest
                              way 2  free           stamp  0

The functions here are unbatched: one table. ``jax.vmap`` gives a table to each row;
one table that rows share takes their inserts one after the other.
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp

from specjax import checks

NO_TOKEN = -1
PROBES = 4
EVICTIONS = ("oldest", "rarest")
ORDERS = ("newest", "commonest")
_GOLDEN = 0x9E3779B1  # 2^32 over the golden ratio: Knuth's multiplicative hash
_LATE = 2**31 - 1


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """Buckets of phrases.

    C buckets, G ways, K key tokens, W phrase tokens.

    Attributes:
      key: i32[C, K], NO_TOKEN in front of a shorter key; None where the token itself
        is the address of its bucket.
      phrase: i32[C, G, W], NO_TOKEN behind a shorter phrase.
      stamp: i32[C, G], clock at the latest insert, 0 for a free way.
      count: i32[C, G], how often the phrase was inserted.
      clock: i32[], inserts so far.
    """

    key: jax.Array | None  # i32[C, K]
    phrase: jax.Array  # i32[C, G, W]
    stamp: jax.Array  # i32[C, G]
    count: jax.Array  # i32[C, G]
    clock: jax.Array  # i32[]


def hashed(buckets: int, ways: int, *, key_tokens: int, phrase_tokens: int) -> Table:
    """An empty table whose keys are hashed.

    Args:
      buckets: C, a power of two of at least PROBES.
      ways: G, phrases a key.
      key_tokens: K, the longest key.
      phrase_tokens: W, the longest phrase.

    Raises:
      ValueError: a size is out of range.
    """
    if not may_hash(buckets):
        raise ValueError(
            f"table: buckets must be a power of two of at least {PROBES}, got {buckets}"
        )
    checks.at_least("table", 1, key_tokens=key_tokens)
    empty = addressed(buckets, ways, phrase_tokens=phrase_tokens)
    key = jnp.full((buckets, key_tokens), NO_TOKEN, jnp.int32)
    return dataclasses.replace(empty, key=key)


def may_hash(buckets: int) -> bool:
    """Whether a table with hashed keys may have so many buckets: a power of two."""
    return buckets >= PROBES and not buckets & (buckets - 1)


def addressed(vocab_size: int, ways: int, *, phrase_tokens: int) -> Table:
    """An empty table with a bucket for each token id.

    Args:
      vocab_size: C.
      ways: G, phrases a token.
      phrase_tokens: W, the longest phrase.

    Raises:
      ValueError: a size is below 1.
    """
    sizes = {"vocab_size": vocab_size, "ways": ways, "phrase_tokens": phrase_tokens}
    checks.at_least("table", 1, **sizes)
    return Table(
        key=None,
        phrase=jnp.full((vocab_size, ways, phrase_tokens), NO_TOKEN, jnp.int32),
        stamp=jnp.zeros((vocab_size, ways), jnp.int32),
        count=jnp.zeros((vocab_size, ways), jnp.int32),
        clock=jnp.int32(0),
    )


def megabytes(tables: Any) -> float:
    """Size in MB (10^6 bytes) of a table, or of any pytree of arrays or shapes."""
    leaves = jax.tree.leaves(tables)
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in leaves) / 1e6


def insert(
    table: Table,
    key: jax.Array,
    phrase: jax.Array,
    valid: jax.Array,
    *,
    evict: str = "oldest",
) -> Table:
    """Inserts phrases one after the other; of equal ones the later wins.

    A phrase that its key already holds gets a new stamp and a higher count. A full
    bucket gives up its ``evict`` phrase; where all probes are taken by other keys,
    the bucket that was written longest ago is given up whole.

    Args:
      table: where to.
      key: i32[M, K], NO_TOKEN in front of shorter keys.
      phrase: i32[M, W].
      valid: bool[M]; the others are left out.
      evict: "oldest" by stamp, or "rarest" by count and then stamp.

    Raises:
      ValueError: ``evict`` is neither.
    """
    checks.one_of("table", "evict", evict, EVICTIONS)

    def one(table, item):
        return _insert_one(table, *item, evict=evict), None

    return jax.lax.scan(one, table, (key, phrase, valid))[0]


def read(
    table: Table, key: jax.Array, count: int, *, order: str = "newest"
) -> tuple[jax.Array, jax.Array]:
    """The best phrases of a key.

    Args:
      table: where from.
      key: i32[K].
      count: most phrases, static.
      order: "newest" by stamp, or "commonest" by count and then stamp.

    Returns:
      (i32[count, W] phrases, best first, bool[count] which of them are there).

    Raises:
      ValueError: ``order`` is neither.
    """
    checks.one_of("table", "order", order, ORDERS)
    bucket, found = _find(table, key)
    stamp = jnp.where(found, table.stamp[bucket], 0)  # i32[G]
    worth = table.count[bucket] if order == "commonest" else jnp.zeros_like(stamp)
    best = jnp.lexsort((-stamp, -worth, stamp == 0))[:count]
    phrase, live = table.phrase[bucket][best], stamp[best] > 0
    spare = count - best.shape[0]  # more asked for than there are ways
    if spare > 0:
        phrase = jnp.pad(phrase, ((0, spare), (0, 0)), constant_values=NO_TOKEN)
        live = jnp.pad(live, (0, spare))
    return phrase, live


def forget(table: Table, key: jax.Array, phrase: jax.Array, valid: jax.Array) -> Table:
    """Frees the ways of phrases, where they are held. Arguments as for ``insert``."""

    def one(stamp, item):
        key, phrase, valid = item
        bucket, found = _find(table, key)
        same = jnp.all(table.phrase[bucket] == phrase[None], axis=1)  # bool[G]
        gone = same & found & valid
        return stamp.at[bucket].set(jnp.where(gone, 0, stamp[bucket])), None

    stamp, _ = jax.lax.scan(one, table.stamp, (key, phrase, valid))
    return dataclasses.replace(table, stamp=stamp)


def _insert_one(table: Table, key, phrase, valid, *, evict: str) -> Table:
    bucket, found = _place(table, key)
    fresh = ~found  # a bucket taken over from another key starts empty
    stamp = jnp.where(fresh, 0, table.stamp[bucket])  # i32[G]
    count = jnp.where(fresh, 0, table.count[bucket])
    same = (stamp > 0) & jnp.all(table.phrase[bucket] == phrase[None], axis=1)
    way = _victim(stamp, count, same, evict)
    clock = table.clock + valid.astype(jnp.int32)
    counted = jnp.where(same[way], count[way] + 1, 1)

    def put(old: jax.Array, new: jax.Array) -> jax.Array:
        return old.at[bucket].set(jnp.where(valid, new, old[bucket]))

    if table.key is not None:
        table = dataclasses.replace(table, key=put(table.key, key))
    return dataclasses.replace(
        table,
        phrase=put(table.phrase, table.phrase[bucket].at[way].set(phrase)),
        stamp=put(table.stamp, stamp.at[way].set(clock)),
        count=put(table.count, count.at[way].set(counted)),
        clock=clock,
    )


def _victim(stamp, count, same, evict: str) -> jax.Array:
    """The way to write: the equal phrase, else a free way, else what is evicted."""
    first = jnp.argmax(same)
    if evict == "rarest":
        rarest = jnp.min(jnp.where(stamp == 0, 0, count))
        stamp = jnp.where(jnp.where(stamp == 0, 0, count) == rarest, stamp, _LATE)
    return jnp.where(jnp.any(same), first, jnp.argmin(stamp))


def _find(table: Table, key: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The bucket i32[] of a key, and whether it has one; never out of range."""
    if table.key is None:
        known = (key[0] >= 0) & (key[0] < table.stamp.shape[0])
        return jnp.where(known, key[0], 0), known
    probes = _probes(table, key)
    hit = jnp.all(table.key[probes] == key[None], axis=1)
    return probes[jnp.argmax(hit)], jnp.any(hit)


def _place(table: Table, key: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The bucket i32[] to write a key to, and whether it is the key's already.

    Else it is the first free probe, or the one that was written longest ago.
    """
    if table.key is None:
        return jnp.clip(key[0], 0, table.stamp.shape[0] - 1), jnp.bool_(True)
    probes = _probes(table, key)
    hit = jnp.all(table.key[probes] == key[None], axis=1)
    written = jnp.max(table.stamp[probes], axis=1)  # 0 where the bucket is free
    best = jnp.where(jnp.any(hit), jnp.argmax(hit), jnp.argmin(written))
    return probes[best], jnp.any(hit)


def _probes(table: Table, key: jax.Array) -> jax.Array:
    """Buckets i32[PROBES] where a key may be."""
    buckets = table.stamp.shape[0]
    mixed = jnp.uint32(0)
    for at in range(key.shape[0]):
        mixed = (mixed ^ (key[at] + 1).astype(jnp.uint32)) * jnp.uint32(_GOLDEN)
        mixed = mixed ^ (mixed >> jnp.uint32(15))
    home = (mixed & jnp.uint32(buckets - 1)).astype(jnp.int32)
    return (home + jnp.arange(PROBES, dtype=jnp.int32)) & (buckets - 1)
