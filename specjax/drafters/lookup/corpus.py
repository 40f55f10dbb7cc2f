"""REST: draft what a large text says after the longest phrase that it knows.

The end of the text is looked up in a suffix array, longest suffix first. Whatever
followed its occurrences becomes a trie, each node weighted by how often it was seen,
and the heaviest nodes are drafted::

    "... a c" was followed by     b d      b 3 of 4 --- d 2 of 3
                                  b d      e 1 of 4  `- x 1 of 3
                                  b x
                                  e
"""

import jax
import jax.numpy as jnp

from specjax import cached, checks
from specjax.core import contracts
from specjax.core import history as history_lib
from specjax.core import tree as tree_lib
from specjax.drafters import equipped
from specjax.drafters.lookup import datastore as datastore_lib
from specjax.drafters.lookup import suffix_array, windows
from specjax.drafters.stateless import stateless

_MOST_KEYS = 2**31 - 1
_EXACT_IN_FLOAT = 2**24


def corpus(
    store: datastore_lib.Datastore,
    *,
    max_suffix: int = 16,
    min_suffix: int = 2,
    max_hits: int = 256,
    max_draft: int = 10,
    max_nodes: int = 64,
) -> equipped.Equipped:
    """A drafter that looks the text up in the corpus of a datastore.

    Args:
      store: with a corpus, made for the tokenizer of the target.
      max_suffix, min_suffix, max_hits, max_draft, max_nodes: see ``corpus_drafter``.

    Raises:
      ValueError: the store has no corpus, or an option is out of range.
    """
    drafter = corpus_drafter(
        max_suffix=max_suffix,
        min_suffix=min_suffix,
        max_hits=max_hits,
        max_draft=max_draft,
        max_nodes=max_nodes,
    )
    arrays = store.arrays_of(datastore_lib.CORPUS)
    params = {name: jnp.asarray(array) for name, array in arrays.items()}
    return equipped.Equipped(drafter, params, store.fingerprint, "corpus")


@cached.cached
def corpus_drafter(
    *,
    max_suffix: int = 16,
    min_suffix: int = 2,
    max_hits: int = 256,
    max_draft: int = 10,
    max_nodes: int = 64,
) -> contracts.Drafter:
    """Drafts the heaviest continuations of the longest suffix that a corpus knows.

    A node's confidence is its share of its parent's occurrences. The corpus is never
    written to.

    Args:
      max_suffix: longest suffix of the text that is looked up.
      min_suffix: shortest one that drafts at all.
      max_hits: occurrences that count, evenly spaced over all of them.
      max_draft: most tokens of a continuation; it ends where a document does.
      max_nodes: most nodes; of equally heavy ones the shorter go first, then those
        with the lower ids.

    Params: {"text": i32[M], documents parted by ``suffix_array.SEPARATOR``, "order":
    i32[M], its suffix array}.

    Raises:
      ValueError: an option is out of range.
      TypeError: one is of the wrong kind.

    Source: REST (He et al. 2023), section 3, whose code cuts a trie over the limit
    only roughly. Here the heaviest nodes are kept exactly; they are a tree, because no
    node outweighs its parent. One draw a node, not one a path, is up to the verifier.
    """
    _check(min_suffix, max_suffix, max_hits, max_draft, max_nodes)
    nodes = min(max_nodes, max_hits * max_draft)

    def propose(params, view, tree):
        text, order = params["drafter"]["text"], params["drafter"]["order"]
        if text.shape[0] == 0:
            return tree
        known = history_lib.append(view.history, *tree_lib.spine_tokens(tree))
        suffix = windows.last_tokens(known.tokens, known.length, max_suffix)
        anchor = tree_lib.spine_end(tree)
        levels = tree_lib.room_below(tree, anchor, view.room)
        levels = jnp.clip(levels, 0, max_draft)

        def one(suffix, length, levels):
            low, high, size = _longest(text, order, suffix, length, min_suffix)
            at, live = _spread(low, high, max_hits)
            after = _continuations(text, order[at] + size, live, max_draft)
            return _heaviest(after, jnp.sum(live, dtype=jnp.int32), levels, nodes)

        token, parent, confidence, count = jax.vmap(one)(suffix, known.length, levels)
        return tree_lib.append(
            tree,
            token=token,
            parent=parent,
            count=count,
            tag=jnp.arange(nodes, dtype=jnp.int32),
            confidence=confidence,
            anchor=anchor,
        )

    return stateless(
        propose,
        bounds=contracts.Bounds(
            nodes=nodes,
            depth=min(max_draft, nodes),
            branching=min(max_hits, nodes),
        ),
        sources=(contracts.Source("corpus", nodes),),
    )


def _longest(text, order, suffix, length, least: int):
    """Occurrences (low, high) of the longest known suffix, and its size; unbatched.

    Args:
      text: i32[M].
      order: i32[M].
      suffix: i32[P], the last tokens.
      length: i32[], how many there are.
      least: shortest suffix that counts, static.
    """
    sizes = jnp.arange(least, suffix.shape[0] + 1, dtype=jnp.int32)
    find = jax.vmap(suffix_array.find, in_axes=(None, None, None, 0))
    low, high = find(text, order, suffix, sizes)
    known = (high > low) & (sizes <= length)
    best = jnp.max(jnp.where(known, jnp.arange(sizes.shape[0], dtype=jnp.int32), 0))
    high = jnp.where(known[best], high[best], low[best])
    return low[best], high, sizes[best]


def _spread(low, high, most: int):
    """Up to ``most`` (static) indices from low to high, evenly spaced; unbatched.

    Returns:
      (i32[most], bool[most] which of them count): all if there are no more, else
      low + floor(i * (high - low) / most).
    """
    step = jnp.arange(most, dtype=jnp.int32)
    count = high - low
    whole, rest = count // most, count % most  # i * count itself might overflow
    spaced = jnp.where(count > most, step * whole + (step * rest) // most, step)
    return jnp.where(step < count, low + spaced, 0), step < count


def _continuations(text, start, live, width: int):
    """What follows each occurrence, i32[C, D], SEPARATOR behind its end; unbatched.

    Args:
      text: i32[M].
      start: i32[C], where a continuation begins.
      live: bool[C], the others are empty.
      width: D, static.
    """
    at = start[:, None] + jnp.arange(width, dtype=jnp.int32)[None]
    token = text[jnp.clip(at, 0, text.shape[0] - 1)]
    inside = live[:, None] & (at < text.shape[0]) & (token >= 0)
    inside = jnp.cumprod(inside.astype(jnp.int32), axis=1) > 0
    return jnp.where(inside, token, suffix_array.SEPARATOR)


def _heaviest(after, hits, levels, nodes: int):
    """The heaviest nodes of the trie of some continuations; unbatched.

    Continuations come in the order of the suffix array, so those with a common prefix
    lie together: a node is a run of rows, named by its first row and its depth.

    Args:
      after: i32[C, D], sorted, SEPARATOR behind the end of each.
      hits: i32[], how many of them count.
      levels: i32[], no node lies deeper.
      nodes: K, most nodes, static.

    Returns:
      (token i32[K], parent i32[K], confidence f32[K], count i32[]), parents first.
    """
    rows, width = after.shape
    row = jnp.arange(rows, dtype=jnp.int32)[:, None]
    depth = jnp.arange(width, dtype=jnp.int32)[None]
    begins = _begins(after)  # bool[C, D]
    # Not lax.cummax: on CPU that takes time quadratic in the rows.
    first = jnp.where(begins, row, 0)
    first = jax.lax.associative_scan(jnp.maximum, first, axis=0)  # where a run begins
    ends = jnp.where(begins, row, rows)[1:]  # and where the next one does
    ends = jnp.concatenate([ends, jnp.full((1, width), rows, jnp.int32)])
    ends = jax.lax.associative_scan(jnp.minimum, ends, axis=0, reverse=True)
    weight = ends - row
    wanted = begins & (after >= 0) & (depth < levels)
    # By weight, then the shorter, then the earlier: no two nodes have the same key.
    key = (weight * width + (width - 1 - depth)) * rows + (rows - 1 - row)
    key = jnp.where(wanted, key, -1).reshape(-1)
    if (rows + 1) * rows * width <= _EXACT_IN_FLOAT:
        key = key.astype(jnp.float32)  # the CPU finds these twenty times faster
    key, node = jax.lax.top_k(key, nodes)
    at, level = node // width, node % width  # i32[K]
    place = jnp.full((rows * width,), -1, jnp.int32)
    place = place.at[node].set(jnp.arange(nodes, dtype=jnp.int32))
    up = jnp.maximum(level - 1, 0)
    parent_row = first[at, up]
    parent = jnp.where(level == 0, tree_lib.NO_PARENT, place[parent_row * width + up])
    base = jnp.where(level == 0, hits, weight[parent_row, up])
    base = jnp.maximum(base, 1).astype(jnp.float32)
    share = weight[at, level].astype(jnp.float32) / base
    confidence = jnp.clip(share, jnp.finfo(jnp.float32).tiny, 1.0)
    count = jnp.sum(key >= 0, dtype=jnp.int32)
    return jnp.maximum(after[at, level], 0), parent, confidence, count


def _begins(after):
    """bool[C, D]: rows whose first d + 1 tokens are not those of the row before."""
    same = after[1:] == after[:-1]
    same = jnp.cumprod(same.astype(jnp.int32), axis=1) > 0
    return jnp.concatenate([jnp.ones((1, after.shape[1]), jnp.bool_), ~same])


def _check(min_suffix, max_suffix, max_hits, max_draft, max_nodes) -> None:
    checks.smallest("corpus", "min_suffix", min_suffix, "max_suffix", max_suffix)
    counts = {"max_hits": max_hits, "max_draft": max_draft, "max_nodes": max_nodes}
    checks.at_least("corpus", 1, **counts)
    if (max_hits + 1) * max_hits * max_draft > _MOST_KEYS:
        most = int((_MOST_KEYS / max_draft) ** 0.5) - 1
        raise ValueError(
            f"corpus: max_hits must be at most {most} with max_draft={max_draft}, "
            f"got {max_hits}"
        )
