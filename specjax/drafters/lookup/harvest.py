"""What the target's answers to drafts teach: phrases for a pool.

A round leaves an answer, the target's best id, after every node that it scored. Here
those after a drafted chain and after the suffixes behind it become phrases of W tokens
with the token before them as their key. With W = 2 and all of the chain rejected::

    drafted   10   11   12   13        the draft goes on with 11 after 10: 10: 11 12,
    answered    11   12   99   14      and with 12 after 11: 11: 12 99, where 99, the
                                       last, may differ; but 14 answers 13, not 99
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

from specjax.core import outcome as outcome_lib
from specjax.core import tree as tree_lib
from specjax.drafters.lookup import phrases


class Seen(NamedTuple):
    """A scored tree as one chain and K suffixes of W tokens under its end.

    Attributes:
      chain: i32[B, M].
      answer: i32[B, M + 1], the target's, to what stands before the chain and then
        after each of its tokens.
      length: i32[B], tokens of the chain, 0 to M.
      kept: i32[B], how many of them, from the first on, were emitted.
      suffix: i32[B, K, W].
      suffix_answer: i32[B, K, W], after each token of a suffix.
      key: i32[B, K], token before a suffix.
      key_answer: i32[B, K], after that one.
      whole: bool[B, K], suffixes of which every token was scored.
    """

    chain: jax.Array
    answer: jax.Array
    length: jax.Array
    kept: jax.Array
    suffix: jax.Array
    suffix_answer: jax.Array
    key: jax.Array
    key_answer: jax.Array
    whole: jax.Array


class Found(NamedTuple):
    """Phrases in order, of which some count.

    Attributes:
      key: i32[B, M].
      phrase: i32[B, M, W].
      valid: bool[B, M].
    """

    key: jax.Array
    phrase: jax.Array
    valid: jax.Array


def see(
    tree: tree_lib.TokenTree, outcome: outcome_lib.Outcome, count: int, width: int
) -> Seen:
    """Reads a scored tree.

    The chain is the spine of what others drafted: nodes with a tag are the suffixes.

    Args:
      tree: the tag of token j of suffix i is i * W + j.
      outcome: of the round, with top ids.
      count: K, static.
      width: W, static.
    """
    assert outcome.top_ids is not None
    best = outcome.top_ids[:, :, 0]  # i32[B, N]
    chain_slot, length = _chain(tree)
    chain = phrases.at_slots(tree.token, chain_slot)
    end = jnp.maximum(tree.num_trunk - 1, 0)[:, None]
    slot = phrases.slots_of_tags(tree, 0, count * width)
    slot = slot.reshape(slot.shape[0], count, width)
    before = phrases.at_slots(tree.parent, slot[:, :, 0])
    return Seen(
        chain=chain,
        answer=phrases.at_slots(best, jnp.concatenate([end, chain_slot], axis=1)),
        length=length,
        kept=_kept(tree, outcome, chain, length),
        suffix=phrases.at_slots(tree.token, slot),
        suffix_answer=phrases.at_slots(best, slot),
        key=phrases.at_slots(tree.token, before),
        key_answer=phrases.at_slots(best, before),
        whole=jnp.all(slot < tree.slots, axis=2),
    )


def _chain(tree: tree_lib.TokenTree) -> tuple[jax.Array, jax.Array]:
    """Slots i32[B, N - 1] and length i32[B] of the spine of nodes without a tag."""
    slot = jnp.arange(tree.slots, dtype=jnp.int32)
    others = dataclasses.replace(
        tree,
        token=jnp.broadcast_to(slot, tree.token.shape),
        parent=jnp.where(tree.tag >= 0, tree_lib.NO_PARENT, tree.parent),
    )
    slots, length = tree_lib.spine_tokens(others)
    return slots[:, :-1], length


def _kept(tree, outcome, chain, length) -> jax.Array:
    """How many tokens i32[B] of the chain were emitted, by value."""
    step = jnp.arange(chain.shape[1], dtype=jnp.int32)[None]
    at = jnp.maximum(tree.num_trunk - 1, 0)[:, None] + step
    same = chain == phrases.at_slots(outcome.token, at)
    same = same & (step < jnp.minimum(length, outcome.num_new)[:, None])
    return jnp.sum(jnp.cumprod(same.astype(jnp.int32), axis=1), axis=1)


def agreed(seen: Seen) -> Found:
    """Phrases of answers along which the rejected chain said the same.

    A phrase of the answers after chain tokens s, s + 1, ... counts if each but the
    last is the chain's next token: then all of it answers one text.
    """
    width = seen.suffix.shape[2]
    starts = max(seen.chain.shape[1] - width + 1, 0)
    start = jnp.arange(starts, dtype=jnp.int32)
    at = start[:, None] + jnp.arange(width, dtype=jnp.int32)[None]  # i32[starts, W]
    phrase = seen.answer[:, 1:][:, at]  # i32[B, starts, W]
    same = seen.chain[:, at[:, 1:]] == phrase[:, :, :-1]
    inside = (start + width)[None] <= seen.length[:, None]
    valid = jnp.all(same, axis=2) & inside & (start[None] >= seen.kept[:, None])
    return Found(seen.chain[:, :starts], phrase, valid)


def answered(seen: Seen) -> Found:
    """All phrases of the answers from the first rejected token on.

    Those that run past the chain's end go on with the answers to each suffix. Nothing
    where the whole chain was kept.
    """
    rows, count, width = seen.suffix.shape
    tail, whole = seen.suffix_answer, seen.whole
    if count == 0:  # then none goes past the chain's end
        count, whole = 1, jnp.zeros((rows, 1), jnp.bool_)
        tail = jnp.zeros((rows, 1, width), jnp.int32)
    starts = seen.answer.shape[1]
    answer = jnp.broadcast_to(seen.answer[:, None], (rows, count, starts))
    place = jnp.arange(starts + width, dtype=jnp.int32)[None]
    past = place - seen.length[:, None] - 1  # i32[B, starts + W]
    behind = jax.vmap(lambda row, at: row[:, at])(tail, jnp.clip(past, 0, width - 1))
    line = jnp.pad(answer, ((0, 0), (0, 0), (0, width)))
    line = jnp.where((past < 0)[:, None], line, behind)  # i32[B, K, starts + W]

    start = jnp.arange(starts, dtype=jnp.int32)
    at = start[:, None] + 1 + jnp.arange(width, dtype=jnp.int32)[None]
    inside = (start + width)[None] <= seen.length[:, None]  # bool[B, starts]
    once = jnp.arange(count) == 0
    valid = jnp.where(inside[:, None], once[None, :, None], whole[:, :, None])
    tried = (start[None] >= seen.kept[:, None]) & (start[None] <= seen.length[:, None])
    tried = tried & (seen.kept < seen.length)[:, None]
    found = Found(line[:, :, :starts], line[:, :, at], valid & tried[:, None])
    return jax.tree.map(  # by start, then by suffix
        lambda x: jnp.swapaxes(x, 1, 2).reshape(rows, starts * count, *x.shape[3:]),
        found,
    )


def corrected(seen: Seen, *, agree: bool) -> tuple[Found, Found]:
    """Suffixes and what the target answered in their place, the newest last.

    Args:
      seen: the round.
      agree: only where a suffix but for its last token is what was answered, so that
        the answers are one text; else wherever it was scored.
    """
    new = jnp.concatenate(
        [seen.key_answer[:, :, None], seen.suffix_answer[:, :, :-1]], axis=2
    )
    valid = seen.whole
    if agree:
        same = seen.suffix[:, :, :-1] == new[:, :, :-1]
        valid = valid & jnp.all(same, axis=2)
    found = (Found(seen.key, seen.suffix, valid), Found(seen.key, new, valid))
    return jax.tree.map(lambda x: x[:, ::-1], found)
