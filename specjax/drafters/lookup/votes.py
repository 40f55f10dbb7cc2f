"""Votes: what followed earlier matches, counted as a trie, and its likeliest nodes.

Every earlier place that reads like the end of the text votes for what came after it::

    matched  continuation        trie of all three         of the first alone
    3        1 2 4               1 (2/3) -- 2 -- 4         1 -- 2 -- 4
    1        7 7 7                       `- 9 -- 9
    1        1 9 9               7 (1/3) -- 7 -- 7

Votes are sorted by match, so those of a match length and longer are the first so many,
and one table of counts has the tries of all match lengths. Unbatched throughout.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specjax.core import tree as tree_lib
from specjax.drafters.lookup import match

_STEPS = 2**14  # chances are compared in these parts of 1, whatever the rounding


class Votes(NamedTuple):
    """Continuations, those of the longest matches first.

    Attributes:
      matched: i32[C], tokens before a continuation that agree; 0 for no vote.
      token: i32[C, D].
      length: i32[C], tokens of a continuation that are known, 0 for no vote.
    """

    matched: jax.Array  # i32[C]
    token: jax.Array  # i32[C, D]
    length: jax.Array  # i32[C]


class Nodes(NamedTuple):
    """A small tree, likeliest nodes first and so parents first.

    Attributes:
      token: i32[K].
      parent: i32[K], index of a node, NO_PARENT for those on top.
      confidence: f32[K], estimated acceptance given the parent's.
      count: i32[], nodes in use.
    """

    token: jax.Array  # i32[K]
    parent: jax.Array  # i32[K]
    confidence: jax.Array  # f32[K]
    count: jax.Array  # i32[]


class Rules(NamedTuple):
    """How votes become a tree; static.

    Attributes:
      max_nodes: K.
      limits: most depth for each number of matched tokens, from 0 up.
      min_chance: least product of confidences along a path.
      chain: only the most frequent child of each node.
      count_self: see ``confidences``.
    """

    max_nodes: int
    limits: tuple[int, ...]
    min_chance: float
    chain: bool
    count_self: bool


def first(votes: Votes, count: int) -> Votes:
    """The ``count`` (static) votes of the longest matches; the earlier go first."""
    # The fast top_k is that of floats, which hold these small integers exactly.
    _, at = jax.lax.top_k(votes.matched.astype(jnp.float32), count)
    return jax.tree.map(lambda x: x[at], votes)


def grow(votes: Votes, levels: jax.Array, rules: Rules) -> Nodes:
    """The tree of the match length that lets one expect most accepted tokens.

    For each match length the trie of its votes is grown by its likeliest nodes; its
    score is the sum of their chances, the products of confidences along their paths.
    The best score wins, on ties the longer match; nodes are ordered by chance, then
    the shallower, then those of the longer match.

    Args:
      votes: C of them.
      levels: i32[], no node lies deeper.
      rules: static.
    """
    size, depth = votes.token.shape
    common = _common(votes)  # i32[C, C]
    chance, confidence = confidences(votes, common, rules.count_self)
    chance = jnp.round(chance * _STEPS)
    deep = jnp.asarray(rules.limits, jnp.int32)[votes.matched]  # i32[C], by trie
    deep = jnp.minimum(deep, levels)
    after = jnp.pad(votes.matched, (0, 1))[1:]
    whole = votes.matched > after  # bool[C]: all votes of a match length are in
    level = jnp.arange(depth, dtype=jnp.int32)[None]
    wanted = _begins(votes, common)[None] & (level < deep[:, None])[:, None]
    wanted = wanted & jnp.tri(size, dtype=jnp.bool_)[:, :, None] & whole[:, None, None]
    wanted = wanted & (chance >= max(round(rules.min_chance * _STEPS), 1))
    if rules.chain:
        wanted = wanted & _most_frequent(votes, common, confidence)
    flat = jnp.where(wanted, chance, 0.0).transpose(0, 2, 1)  # f32[C, D, C]
    best, node = jax.lax.top_k(flat.reshape(size, -1), rules.max_nodes)
    winner = jnp.argmax(jnp.sum(best, axis=1))
    best, node = best[winner], node[winner].astype(jnp.int32)
    row, down = node % size, node // size  # i32[K]
    above = jnp.argmax(common[:, row] >= down[None], axis=0).astype(jnp.int32)
    parent = jnp.argmax(node[None] == (size * (down - 1) + above)[:, None], axis=1)
    return Nodes(
        token=votes.token[row, down],
        parent=jnp.where(down == 0, tree_lib.NO_PARENT, parent.astype(jnp.int32)),
        confidence=confidence[winner, row, down],
        count=jnp.sum(best > 0, dtype=jnp.int32),
    )


def confidences(
    votes: Votes, common: jax.Array, count_self: bool
) -> tuple[jax.Array, jax.Array]:
    """Chance and confidence of every node in the trie of the first n + 1 votes.

    Confidence is (votes for the node - discount) / (votes for its parent). With c what
    one match of as many tokens is worth (``match.confidence_after``, the tokens above
    the node counted in) the discount is 1 - c: a lone vote gets c, votes that agree
    get more, and one of several that disagree gets less than its share.

    Args:
      votes: C of them.
      common: i32[C, C], tokens that two continuations begin with alike.
      count_self: instead of a discount the end of the text is counted as one of its
        own occurrences, which was followed by nothing yet.

    Returns:
      (f32[C, C, D], f32[C, C, D]): at [n, c, d] of the node of the first d + 1 tokens
      of continuation c; the chance is the product of confidences along its path.

    Source: absolute discounting (Ney et al. 1994), chosen over ``count / (total +
    constant)`` on the words of meeting transcripts and prompts and tried on abstracts
    and code, for the first word after the longest match: single votes among others
    were stated at 1.2 to 1.5 times what came true (the other way 1.9 to 2.9), other
    groups of votes at 1.0 to 1.6. Written text, not a model's output.
    """
    size, depth = votes.token.shape
    level = jnp.arange(depth, dtype=jnp.int32)[None]
    shares = (common[:, :, None] > level[None]).astype(jnp.float32)  # f32[C, C, D]
    upto = jnp.tri(size, dtype=jnp.float32)
    count = (upto @ shares.reshape(size, -1)).reshape(size, size, depth)
    total = jnp.cumsum((votes.matched > 0).astype(jnp.float32))  # f32[C]
    total = jnp.broadcast_to(total[:, None, None], (size, size, 1))
    parents = jnp.concatenate([total, count[:, :, :-1]], axis=2)
    if count_self:
        parents = parents + (level == 0).astype(jnp.float32)[None]
        discount = jnp.zeros((size, depth), jnp.float32)
    else:
        behind = jnp.maximum(votes.matched, 1)[:, None] + level
        discount = 1.0 - match.confidence_after(behind)  # f32[C, D]
    confidence = (count - discount[:, None]) / jnp.maximum(parents, 1.0)
    path, chance = jnp.ones((size, size), jnp.float32), []
    for down in range(depth):
        path = path * confidence[:, :, down]
        chance.append(path)
    return jnp.stack(chance, axis=2), confidence


def _common(votes: Votes) -> jax.Array:
    """Tokens i32[C, C] that two continuations begin with alike."""
    differs = votes.token[:, None] != votes.token[None]
    alike = jnp.argmax(
        jnp.pad(differs, ((0, 0), (0, 0), (0, 1)), constant_values=True), axis=2
    )
    known = jnp.minimum(votes.length[:, None], votes.length[None])
    return jnp.minimum(alike.astype(jnp.int32), known)


def _begins(votes: Votes, common: jax.Array) -> jax.Array:
    """bool[C, D]: nodes that no earlier vote has; a node is named by its first one."""
    size, depth = votes.token.shape
    earlier = jnp.tri(size, k=-1, dtype=jnp.bool_)  # [c, c'] with c' before c
    seen = jnp.max(jnp.where(earlier, common.T, 0), axis=1)[:, None]
    level = jnp.arange(depth, dtype=jnp.int32)[None]
    return (level >= seen) & (level < votes.length[:, None])


def _most_frequent(votes: Votes, common: jax.Array, confidence: jax.Array) -> jax.Array:
    """bool[C, C, D]: nodes met on the way down each trie by its most frequent child."""
    size, depth = votes.token.shape

    def step(on_path, level):  # bool[C, C], votes of a trie that agree with the way
        known = on_path & (level < votes.length)[None]
        count = jnp.where(known, confidence[:, :, level], 0.0)
        best = jnp.argmax(count, axis=1)
        chosen = known & (best[:, None] == jnp.arange(size)[None])
        return known & (common[best] > level), chosen

    start = jnp.tri(size, dtype=jnp.bool_) & (votes.matched > 0)[None]
    chosen = jax.lax.scan(step, start, jnp.arange(depth, dtype=jnp.int32))[1]
    return jnp.moveaxis(chosen, 0, 2)


def limits(
    max_match: int, max_depth: int, factor: float, offset: float
) -> tuple[int, ...]:
    """Most depth for 0 .. max_match matched tokens: floor(factor * n + offset)."""
    matched = np.arange(max_match + 1)
    depth = np.floor(factor * matched + offset + 1e-6)
    return tuple(int(x) for x in np.clip(depth, 0, max_depth))
