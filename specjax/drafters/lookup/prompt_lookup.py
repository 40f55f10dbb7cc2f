"""Prompt lookup: draft what followed the last time these words were used."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from specjax import cached, checks
from specjax.core import contracts
from specjax.core import history as history_lib
from specjax.core import tree as tree_lib
from specjax.drafters.lookup import match
from specjax.drafters.stateless import stateless

_OVERRUNS = ("repeat", "cut", "whole")


class _Rules(NamedTuple):
    """Options of ``prompt_lookup``; static."""

    max_ngram: int
    min_ngram: int
    max_draft: int
    short_draft: int
    long_match: int
    recent: bool
    overrun: str


@cached.cached
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
      TypeError: one is of the wrong kind.

    Source: Prompt Lookup Decoding (Saxena 2023), whose reference is ``min_ngram=1,
    max_ngram=3, max_draft=10, long_match=1, recent=False, overrun="whole"``. That a
    longer match drafts more follows SuffixDecoding and SAM-Decoding.
    """
    lengths = {"max_draft": max_draft, "short_draft": short_draft}
    checks.smallest("prompt_lookup", "min_ngram", min_ngram, "max_ngram", max_ngram)
    checks.at_least("prompt_lookup", 1, **lengths, long_match=long_match)
    checks.one_of("prompt_lookup", "overrun", overrun, _OVERRUNS)

    rules = _Rules(
        max_ngram, min_ngram, max_draft, short_draft, long_match, recent, overrun
    )

    def propose(params, view, tree):
        del params
        return _append(rules, view, tree)

    return stateless(
        propose,
        bounds=contracts.Bounds(nodes=max_draft, depth=max_draft, branching=1),
        sources=(contracts.Source("prompt_lookup", max_draft),),
    )


def _append(
    rules: _Rules, view: contracts.View, tree: tree_lib.TokenTree
) -> tree_lib.TokenTree:
    """Appends the draft, no deeper than there is room."""
    text = history_lib.append(view.history, *tree_lib.spine_tokens(tree))
    token, count, matched = _continuation(rules, text)
    anchor = tree_lib.spine_end(tree)
    levels = tree_lib.room_below(tree, anchor, view.room)
    count = jnp.minimum(count, jnp.maximum(levels, 0))
    link = jnp.arange(rules.max_draft, dtype=jnp.int32)[None]
    return tree_lib.append_chain(
        tree,
        token=token,
        count=count,
        confidence=match.confidence_after(jnp.maximum(matched, 1)[:, None] + link),
        anchor=anchor,
    )


def _continuation(
    rules: _Rules, text: history_lib.History
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Draft i32[B, max_draft], its length i32[B], and that of the match i32[B]."""
    at, best = _longest(rules, text)
    start = at[:, None] + 1
    available = jnp.maximum(text.length - start[:, 0], 1)
    short = min(rules.short_draft, rules.max_draft)
    count = jnp.where(best >= rules.long_match, rules.max_draft, short)
    count = count.astype(jnp.int32)
    step = jnp.arange(rules.max_draft, dtype=jnp.int32)[None]
    if rules.overrun == "repeat":
        step = step % available[:, None]
    else:
        count = jnp.minimum(count, available)
        step = jnp.broadcast_to(step, (count.shape[0], rules.max_draft))
    last = text.tokens.shape[1] - 1
    token = jnp.take_along_axis(text.tokens, jnp.minimum(start + step, last), axis=1)
    return token, jnp.where(best >= rules.min_ngram, count, 0), best


def _longest(rules: _Rules, text: history_lib.History) -> tuple[jax.Array, jax.Array]:
    """Where the longest match ends i32[B], and its length i32[B]."""
    length = match.match_lengths(text, rules.max_ngram)
    if rules.overrun == "whole":
        slot = jnp.arange(text.tokens.shape[1], dtype=jnp.int32)[None]
        length = jnp.where(slot + rules.max_draft < text.length[:, None], length, 0)
    return match.longest(length, recent=rules.recent)
