"""Prompt lookup: draft what followed the last time these words were used."""

import functools

import jax.numpy as jnp

from specjax.core import contracts
from specjax.core import history as history_lib
from specjax.core import tree as tree_lib
from specjax.drafters.lookup import match

_OVERRUNS = ("repeat", "cut", "whole")


@functools.cache
def prompt_lookup(
    *,
    max_ngram: int = 8,
    min_ngram: int = 2,
    max_draft: int = 15,
    short_draft: int = 3,
    long_match: int = 8,
    recent: bool = True,
    overrun: str = "repeat",
) -> contracts.Drafter:
    """Drafts the continuation of the longest earlier match of the last tokens.

    Args:
      max_ngram: longest suffix that is matched.
      min_ngram: shortest match that drafts at all.
      max_draft: tokens drafted after a long match.
      short_draft: tokens drafted after a shorter one; it should fill a rung of the
        ladder together with the trunk (1 + 3 = 4).
      long_match: how many matched tokens make a match long.
      recent: among equally long matches take the most recent, else the earliest.
      overrun: what happens where the continuation runs into the end of the text:
        "repeat" goes on with the period that the match implies, "cut" stops there,
        "whole" refuses matches with fewer than ``max_draft`` tokens after them.

    Raises:
      ValueError: an argument is out of range.

    Source: Prompt Lookup Decoding (Saxena 2023), whose reference is ``min_ngram=1,
    max_ngram=3, max_draft=10, long_match=1, recent=False, overrun="whole"``. That a
    longer match drafts more follows SuffixDecoding and SAM-Decoding.
    """
    _check_ngrams(min_ngram, max_ngram)
    _check_lengths(max_draft=max_draft, short_draft=short_draft, long_match=long_match)
    if overrun not in _OVERRUNS:
        raise ValueError(
            f"prompt_lookup: overrun must be one of {_OVERRUNS}, got {overrun!r}"
        )

    def init(params, rows, capacity):
        del params, rows, capacity
        return ()

    def propose(params, state, view, tree):
        del params
        text = history_lib.append(view.history, *tree_lib.spine_tokens(tree))
        token, count, matched = _continuation(text)
        anchor = tree_lib.spine_end(tree)
        levels = tree_lib.room_below(tree, anchor, view.room)
        count = jnp.minimum(count, jnp.maximum(levels, 0))
        link = jnp.arange(max_draft, dtype=jnp.int32)[None]
        tree = tree_lib.append_chain(
            tree,
            token=token,
            count=count,
            confidence=match.confidence_after(jnp.maximum(matched, 1)[:, None] + link),
            anchor=anchor,
        )
        return tree, state

    def _continuation(text):
        """Draft i32[B, max_draft], its length i32[B], and that of the match i32[B]."""
        slots = text.tokens.shape[1]
        slot = jnp.arange(slots, dtype=jnp.int32)[None]
        length = match.match_lengths(text, max_ngram)
        if overrun == "whole":
            length = jnp.where(slot + max_draft < text.length[:, None], length, 0)
        best = jnp.max(length, axis=1, keepdims=True)
        hits = length == best
        if recent:
            at = slots - 1 - jnp.argmax(hits[:, ::-1], axis=1)
        else:
            at = jnp.argmax(hits, axis=1)
        start = at.astype(jnp.int32)[:, None] + 1
        best = best[:, 0]
        available = jnp.maximum(text.length - start[:, 0], 1)
        short = min(short_draft, max_draft)
        count = jnp.where(best >= long_match, max_draft, short).astype(jnp.int32)
        step = jnp.arange(max_draft, dtype=jnp.int32)[None]
        if overrun == "repeat":
            step = step % available[:, None]
        else:
            count = jnp.minimum(count, available)
            step = jnp.broadcast_to(step, (count.shape[0], max_draft))
        token = jnp.take_along_axis(
            text.tokens, jnp.minimum(start + step, slots - 1), axis=1
        )
        return token, jnp.where(best >= min_ngram, count, 0), best

    def observe(params, state, view, tree, outcome):
        del params, view, tree, outcome
        return state

    return contracts.Drafter(
        init=init,
        propose=propose,
        observe=observe,
        bounds=contracts.Bounds(nodes=max_draft, depth=max_draft, branching=1),
        needs=contracts.Needs(),
        sources=(contracts.Source("prompt_lookup", max_draft),),
    )


def _check_ngrams(min_ngram: int, max_ngram: int) -> None:
    if not 1 <= min_ngram <= max_ngram:
        raise ValueError(
            f"prompt_lookup: min_ngram must be 1 to max_ngram={max_ngram}, "
            f"got {min_ngram}"
        )


def _check_lengths(**lengths: int) -> None:
    for name, value in lengths.items():
        if value < 1:
            raise ValueError(f"prompt_lookup: {name} must be at least 1, got {value}")
