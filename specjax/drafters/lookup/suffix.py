"""SuffixDecoding: draft what usually followed where the text read like its end.

Wherever the last tokens stood before, what followed them is a vote. The votes of the
best match length are drafted as a tree, the more of it the longer the match. The text
itself is searched, and a large static one besides it where there is a store.
"""

import functools
import inspect
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from specjax import cached, checks
from specjax.core import contracts
from specjax.core import history as history_lib
from specjax.core import tree as tree_lib
from specjax.drafters import equipped
from specjax.drafters.lookup import datastore as datastore_lib
from specjax.drafters.lookup import match, suffix_array, windows
from specjax.drafters.lookup import votes as votes_lib
from specjax.drafters.stateless import stateless

_OVERRUNS = ("repeat", "cut")


class _Search(NamedTuple):
    """Which votes are looked for; options of ``suffix``."""

    max_match: int
    min_match: int
    max_votes: int
    max_depth: int
    overrun: str
    store_bias: int


@cached.cached
def suffix(
    *,
    max_match: int = 32,
    min_match: int = 1,
    max_nodes: int = 15,
    max_depth: int = 15,
    factor: float = 2.0,
    offset: float = -1.0,
    min_chance: float = 0.1,
    max_votes: int = 16,
    overrun: str = "repeat",
    tree: bool = True,
    count_self: bool = False,
    store_bias: int = 1,
) -> contracts.Drafter:
    """Drafts by the votes of earlier matches of the last tokens.

    The longest matches vote, of equally long ones the most recent. How votes become a
    tree and how sure its nodes are is told by ``votes.grow`` and
    ``votes.confidences``.

    Args:
      max_match: longest suffix that is matched.
      min_match: shortest match that votes.
      max_nodes: most nodes; together with the trunk they should fill a rung of the
        ladder (1 + 15 = 16).
      max_depth: most tokens of a vote.
      factor, offset: after a match of n tokens nodes lie no deeper than
        ``floor(factor * n + offset)``: 1, 3, 5, ... up to ``max_depth``.
      min_chance: nodes are left out whose product of confidences is lower.
      max_votes: matches that vote.
      overrun: what happens where a continuation runs into the end of the text:
        "repeat" goes on with the period that the match implies, "cut" stops there.
      tree: False drafts a chain, of each node's children the most frequent one.
      count_self: counts as the reference does: confidence is a plain share, and the
        end of the text is one of its own occurrences.
      store_bias: tokens that a match in a store counts less than one in the text
        itself, no more than ``max_match - min_match``; at the same length the text's
        own goes first.

    Params: {}, or where a static text is searched too {"text": i32[M], documents parted
    by ``suffix_array.SEPARATOR``, "order": i32[M], its suffix array}; see
    ``suffix_with_store``.

    Raises:
      ValueError: an argument is out of range.
      TypeError: one is of the wrong kind.

    Source: SuffixDecoding (Oliaro et al. 2024), section 3, whose reference is
    ``max_match=64, max_depth=64, factor=1, offset=0, overrun="cut", tree=False,
    count_self=True``. It keeps counts of all matches in suffix trees; here the longest
    matches are counted afresh each round, and both sources vote in one tree. That a
    match in a static text counts less follows SAM-Decoding.
    """
    search = _Search(max_match, min_match, max_votes, max_depth, overrun, store_bias)
    _check(search, max_nodes, min_chance, factor, offset)
    nodes = min(max_nodes, max_votes * max_depth if tree else max_depth)
    rules = votes_lib.Rules(
        max_nodes=nodes,
        limits=votes_lib.limits(max_match, max_depth, factor, offset),
        min_chance=min_chance,
        chain=not tree,
        count_self=count_self,
    )

    def propose(params, view, tree):
        return _append(search, rules, params["drafter"], view, tree)

    return stateless(
        propose,
        bounds=contracts.Bounds(
            nodes=nodes,
            depth=min(max_depth, nodes),
            branching=min(max_votes, nodes) if tree else 1,
        ),
        sources=(contracts.Source("suffix", nodes),),
    )


def suffix_with_store(
    store: datastore_lib.Datastore, **options: Any
) -> equipped.Equipped:
    """A ``suffix`` drafter that searches the corpus of a datastore as well.

    Args:
      store: with a corpus, made for the tokenizer of the target.
      **options: of ``suffix``.

    Raises:
      ValueError: the store has no corpus, or an option is out of range.
    """
    drafter = suffix(**options)
    given = inspect.signature(suffix).bind(**options)
    given.apply_defaults()
    bias = given.arguments["store_bias"]
    most = given.arguments["max_match"] - given.arguments["min_match"]
    if bias > most:  # No match there could ever vote.
        raise ValueError(
            f"suffix: store_bias must be 0 to max_match - min_match = {most} with a "
            f"store, got {bias}"
        )
    arrays = store.arrays_of(datastore_lib.CORPUS)
    params = {name: jnp.asarray(array) for name, array in arrays.items()}
    return equipped.Equipped(drafter, params, store.fingerprint, "suffix_with_store")


def _append(
    search: _Search,
    rules: votes_lib.Rules,
    store: contracts.Params,
    view: contracts.View,
    tree: tree_lib.TokenTree,
) -> tree_lib.TokenTree:
    """Appends what the votes of the text, and of the store if there is one, make."""
    text = history_lib.append(view.history, *tree_lib.spine_tokens(tree))
    votes = _in_text(text, search)
    if store and store["text"].shape[0]:
        votes = _join(votes, _in_store(store, text, search))
    anchor = tree_lib.spine_end(tree)
    levels = tree_lib.room_below(tree, anchor, view.room)
    grow = jax.vmap(functools.partial(votes_lib.grow, rules=rules))
    shape = jax.eval_shape(grow, votes, levels)
    grown = jax.lax.cond(
        jnp.any(votes.matched > 0),
        grow,
        lambda *_: jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shape),
        votes,
        levels,
    )
    return tree_lib.append(
        tree,
        **grown._asdict(),
        tag=jnp.arange(rules.max_nodes, dtype=jnp.int32),
        anchor=anchor,
    )


def _in_text(text: history_lib.History, search: _Search) -> votes_lib.Votes:
    """Votes of each row's own text, leaves [B, ...]."""
    slots = text.tokens.shape[1]
    matched = match.match_lengths(text, search.max_match)
    # The longest first, of those the latest; top_k of floats is the fast one.
    slot = jnp.arange(slots, dtype=jnp.int32)[None]
    key = jnp.where(matched >= search.min_match, matched * slots + slot, -1)
    best, at = jax.lax.top_k(key.astype(jnp.float32), min(search.max_votes, slots))
    spare = ((0, 0), (0, search.max_votes - at.shape[1]))
    at, live = jnp.pad(at, spare), jnp.pad(best >= 0, spare)
    matched = jnp.where(live, jnp.take_along_axis(matched, at, axis=1), 0)

    available = jnp.maximum(text.length[:, None] - 1 - at, 1)[:, :, None]
    step = jnp.arange(search.max_depth, dtype=jnp.int32)[None, None]
    length = jnp.where(live, search.max_depth, 0)
    if search.overrun == "cut":
        length = jnp.minimum(length, available[:, :, 0])
    place = at[:, :, None] + 1 + step % available
    token = jax.vmap(lambda row, place: row[place])(
        text.tokens, jnp.minimum(place, slots - 1)
    )
    return votes_lib.Votes(matched, token, length)


def _join(first: votes_lib.Votes, second: votes_lib.Votes) -> votes_lib.Votes:
    """The longest matches of two sources, as many as one has; leaves [B, ...]."""
    count = first.matched.shape[1]
    both = jax.tree.map(lambda *x: jnp.concatenate(x, axis=1), first, second)
    return jax.vmap(functools.partial(votes_lib.first, count=count))(both)


def _in_store(store, text: history_lib.History, search: _Search) -> votes_lib.Votes:
    """Votes of the static text, leaves [B, ...].

    Suffixes of a few sizes are looked up, each twice as long as the one before. Of
    the occurrences of each some are kept, evenly spaced, which agree with the text in
    less than the next size: those that agree in more come by that one.
    """
    width = search.max_match
    sizes = [search.min_match + search.store_bias]
    while 2 * sizes[-1] <= width:
        sizes.append(2 * sizes[-1])
    size = jnp.asarray(sizes, jnp.int32)
    next_size = jnp.asarray([*sizes[1:], width + 1], jnp.int32)
    find = jax.vmap(suffix_array.find, in_axes=(None, None, None, 0))

    def one(suffix, length):
        low, high = find(store["text"], store["order"], suffix, size)
        high = jnp.where(size <= length, high, low)
        stride = (high - low + search.max_votes - 1) // search.max_votes
        pick = jnp.arange(search.max_votes, dtype=jnp.int32)[None]
        rank = low[:, None] + pick * jnp.maximum(stride, 1)[:, None]  # i32[sizes, C]
        after = _take(store["order"], rank) + size[:, None]
        matched = _agreement(store["text"], after, suffix, length)
        live = (rank < high[:, None]) & (matched < next_size[:, None])
        matched = jnp.where(live, matched - search.store_bias, 0)
        return _continued(store["text"], after.reshape(-1), matched.reshape(-1))

    def _continued(known, after, matched):
        step = jnp.arange(search.max_depth, dtype=jnp.int32)[None]
        at = after[:, None] + step  # i32[sizes * C, D]
        token = _take(known, at)
        ends = (at >= known.shape[0]) | (token < 0)
        padded = jnp.pad(ends, ((0, 0), (0, 1)), constant_values=True)
        length = jnp.argmax(padded, axis=1).astype(jnp.int32)
        length = jnp.where(matched > 0, length, 0)
        return votes_lib.Votes(matched, jnp.maximum(token, 0), length)

    suffix = windows.last_tokens(text.tokens, text.length, width)
    return jax.vmap(one)(suffix, text.length)


def _agreement(known, after, suffix, length) -> jax.Array:
    """How many tokens before places ``after`` i32[X, C] are the last of the suffix."""
    back = jnp.arange(suffix.shape[0], dtype=jnp.int32)[None, None]
    at = after[:, :, None] - 1 - back  # i32[X, C, P]
    same = _take(known, at) == suffix[None, None, ::-1]
    same = same & (at >= 0) & (back < length)
    return jnp.sum(jnp.cumprod(same.astype(jnp.int32), axis=2), axis=2)


def _take(known: jax.Array, at: jax.Array) -> jax.Array:
    return known[jnp.clip(at, 0, known.shape[0] - 1)]


def _check(
    search: _Search, max_nodes: int, min_chance: float, factor: float, offset: float
) -> None:
    longest, least = search.max_match, search.min_match
    checks.at_least("suffix", 1, max_nodes=max_nodes, max_match=longest)
    checks.at_least("suffix", 1, max_depth=search.max_depth, max_votes=search.max_votes)
    checks.smallest("suffix", "min_match", least, "max_match", longest)
    checks.at_least("suffix", 0, store_bias=search.store_bias)
    checks.one_of("suffix", "overrun", search.overrun, _OVERRUNS)
    if not 0 <= min_chance <= 1:
        raise ValueError(f"suffix: min_chance must be 0 to 1, got {min_chance}")
    if not factor * longest + offset >= 1:
        raise ValueError(
            "suffix: factor and offset must allow a draft after max_match="
            f"{longest} tokens, got {factor} and {offset}"
        )
