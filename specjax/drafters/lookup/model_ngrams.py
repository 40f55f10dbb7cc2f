"""Model n-grams: draft what a model often said after this token.

A table that was counted over past outputs of the target holds, for each token, the
phrases that followed it in most documents. Those of the last token are drafted as a
trie, weighted by their counts::

    phrases of "the"   cat sat   in 5 documents      cat 7/20 --- sat 5/7
    (20 in all)        dog ran   in 4                dog 4/20  `- is 2/7
                       cat is    in 2                 `- ran 4/4
"""

import jax
import jax.numpy as jnp

from specjax import cached, checks
from specjax.core import contracts
from specjax.core import tree as tree_lib
from specjax.drafters import equipped
from specjax.drafters.lookup import datastore as datastore_lib
from specjax.drafters.stateless import stateless


def model_ngrams(
    store: datastore_lib.Datastore,
    *,
    ngram: int = 0,
    max_phrases: int = 0,
    compat: bool = False,
) -> equipped.Equipped:
    """A drafter that looks the last token up in the n-grams of a datastore.

    Args:
      store: with model n-grams, made for the tokenizer of the target.
      ngram: tokens of an n-gram, its key included; 0 for as many as the store has.
      max_phrases: phrases drafted; 0 for as many as the store has of a key.
      compat: the least frequent phrases first, as the reference reads them.

    Raises:
      ValueError: the store has no n-grams, or shorter or fewer ones than asked for.
    """
    arrays = store.arrays_of(datastore_lib.MODEL_NGRAMS)
    _, ways, width = arrays["phrase"].shape
    for name, value, most in (
        ("ngram", ngram, width + 1),
        ("max_phrases", max_phrases, ways),
    ):
        if value > most:
            raise ValueError(
                f"model_ngrams: {name} must be at most the store's {most}, got {value}"
            )
    drafter = model_ngrams_drafter(
        ngram=ngram or width + 1, max_phrases=max_phrases or ways, compat=compat
    )
    params = {name: jnp.asarray(array) for name, array in arrays.items()}
    return equipped.Equipped(drafter, params, store.fingerprint, "model_ngrams")


@cached.cached
def model_ngrams_drafter(
    *, ngram: int = 5, max_phrases: int = 7, compat: bool = False
) -> contracts.Drafter:
    """Drafts the most frequent phrases that are known of the last token.

    Equal beginnings become one node. The confidence of a node is the count of its
    phrases over that of its parent's, of those right under the last token over the
    count of all n-grams of that token: a lower bound there, because phrases beyond
    those that are kept count for the whole only. The table is never written to.

    Args:
      ngram: tokens of an n-gram, its key included.
      max_phrases: phrases drafted.
      compat: the least frequent phrases first, as the reference reads them; with
        fewer phrases than the table has, these are then all that is drafted.

    Params: {"phrase": i32[V, G, W], most frequent first, -1 where there is none,
    "count": i32[V, G], "total": i32[V]}, with G >= ``max_phrases`` and
    W >= ``ngram`` - 1.

    Raises:
      ValueError: an option is out of range.
      TypeError: one is of the wrong kind.

    Source: Hierarchy Drafting (Cho et al. 2025), its model-dependent database.
    """
    checks.at_least("model_ngrams", 2, ngram=ngram)
    checks.at_least("model_ngrams", 1, max_phrases=max_phrases)
    width = ngram - 1
    nodes = max_phrases * width

    def propose(params, view, tree):
        own = params["drafter"]
        phrase, count, total = own["phrase"], own["count"], own["total"]
        anchor = tree_lib.spine_end(tree)
        at = anchor[:, None]
        last = jnp.take_along_axis(tree.token, at, axis=1)[:, 0]
        levels = tree_lib.room_below(tree, anchor, view.room)
        levels = jnp.clip(levels, 0, width)
        known = (last >= 0) & (last < phrase.shape[0])
        key = jnp.where(known, last, 0)
        weight = jnp.where(known[:, None], count[key], 0)  # i32[B, G]
        order = _order(weight, compat)[:, :max_phrases]
        chosen = jnp.take_along_axis(phrase[key], order[:, :, None], axis=1)
        weight = jnp.take_along_axis(weight, order, axis=1)
        return tree_lib.append(
            tree,
            **_trie(chosen[:, :, :width], weight, total[key], levels),
            tag=jnp.arange(nodes, dtype=jnp.int32),
            anchor=anchor,
        )

    return stateless(
        propose,
        bounds=contracts.Bounds(nodes=nodes, depth=width, branching=max_phrases),
        sources=(contracts.Source("model_ngrams", nodes),),
    )


def _order(count: jax.Array, compat: bool) -> jax.Array:
    """In which order phrases are drafted, i32[B, G]; those that are there go first."""
    ways = jnp.broadcast_to(jnp.arange(count.shape[1], dtype=jnp.int32), count.shape)
    if not compat:
        return ways
    live = jnp.sum(count > 0, axis=1, dtype=jnp.int32)[:, None]
    return jnp.where(ways < live, live - 1 - ways, ways)


def _trie(phrase, weight, total, levels) -> dict[str, jax.Array]:
    """Phrases as one trie, level by level and within a level in the order given.

    Args:
      phrase: i32[B, G, W].
      weight: i32[B, G], 0 for phrases that are not there.
      total: i32[B], weight of all, those not given included.
      levels: i32[B], no node lies deeper.

    Returns:
      token, parent i32[B, W * G], confidence f32[B, W * G], count i32[B].
    """
    rows, ways, width = phrase.shape
    same = _begin_alike(phrase, weight > 0)
    leader = jnp.argmax(same, axis=2).astype(jnp.int32)  # the first that begins alike
    mass = jnp.sum(jnp.where(same, weight[:, None, :, None], 0), axis=2)  # i32[B, G, W]
    whole = jnp.broadcast_to(total[:, None, None], (rows, ways, 1))
    whole = jnp.concatenate([whole, mass[:, :, :-1]], axis=2)
    share = mass.astype(jnp.float32) / jnp.maximum(whole, 1).astype(jnp.float32)

    def flat(x: jax.Array) -> jax.Array:
        """By level, then by phrase: [B, W * G]."""
        return jnp.swapaxes(x, 1, 2).reshape(rows, width * ways)

    node = jnp.arange(width * ways, dtype=jnp.int32)[None]
    level, way = node // ways, node % ways
    live = jnp.tile(weight > 0, (1, width))
    exists = live & (flat(leader) == way) & (level < levels[:, None])
    place = jnp.cumsum(exists, axis=1, dtype=jnp.int32) - 1
    above = jnp.pad(flat(leader), ((0, 0), (ways, 0)))[:, :-ways] + (level - 1) * ways
    parent = jnp.take_along_axis(place, jnp.maximum(above, 0), axis=1)
    parent = jnp.where(level == 0, tree_lib.NO_PARENT, parent)
    dense = jnp.argsort(~exists, axis=1, stable=True)
    fields = {
        "token": jnp.maximum(flat(phrase), 0),
        "parent": parent,
        "confidence": jnp.clip(flat(share), jnp.finfo(jnp.float32).tiny, 1.0),
    }
    fields = {k: jnp.take_along_axis(x, dense, axis=1) for k, x in fields.items()}
    return fields | {"count": jnp.sum(exists, axis=1, dtype=jnp.int32)}


def _begin_alike(phrase: jax.Array, live: jax.Array) -> jax.Array:
    """bool[B, G, G, W]: phrases that are there and whose first w + 1 tokens agree."""
    same = phrase[:, :, None] == phrase[:, None]
    same = jnp.cumprod(same.astype(jnp.int32), axis=3) > 0
    return same & live[:, :, None, None] & live[:, None, :, None]
