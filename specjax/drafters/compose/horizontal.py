"""Drafters one behind the other: each continues the chain of the one before.

Early tokens of a draft are the likeliest to be reached, so the better drafter goes
first and cheaper ones take over::

    tokens (2, 3)    the - cat - sat - on - the
                     `- first -'   `-- second --'

A drafter's *segment* ends at the cumulated number of tokens, 2 and 5 here. It is
asked again and again until then, and not at all if the one before went that far.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

from specjax.core import contracts
from specjax.core import outcome as outcome_lib
from specjax.core import sampling as sampling_lib
from specjax.core import tree as tree_lib
from specjax.drafters import equipped
from specjax.drafters.compose import family


class _Start(NamedTuple):
    """Where the draft of a round begins.

    Attributes:
      nodes: i32[B], slots of the tree before it.
      depth: i32[B], drafts on the spine before it.
    """

    nodes: jax.Array
    depth: jax.Array


@equipped.combinator
def horizontal(
    *children: contracts.Drafter, tokens: tuple[int, ...] = (5, 10), trim: bool = True
) -> contracts.Drafter:
    """Chains drafters; each adds its number of tokens to what is there.

    A row is done with a segment when its goal is reached or a call adds nothing, and
    with all of them when its chain ends in a stop id. Laws of children are dropped.

    Args:
      *children: one or more drafters of chains, the best first. Only the last may
        branch, and is asked once.
      tokens: what each child adds, at least 1 each.
      trim: whether a segment is cut at its goal; if not it may go beyond by all but
        one token of a call.

    Raises:
      ValueError: there are no children, another number of ``tokens``, one below 1, or
        a child that branches before the last.

    Source: Cascade Speculative Drafting (Chen et al. 2023), the horizontal cascade. The
    reference never trims.
    """
    family.check("horizontal", children, least=1)
    _check(children, tokens)
    goals = [sum(tokens[: index + 1]) for index in range(len(tokens))]
    numbered = tuple(
        _numbered(child, calls) for child, calls in zip(children, goals, strict=True)
    )

    def propose(params, states, view, tree):
        start, kept = _start(tree), []
        for index, goal in enumerate(goals):
            segment = numbered[index]._replace(
                propose=_segment(children[index], goal, trim, start)
            )
            several = (*numbered[:index], segment)
            tree, state = family.propose(
                several, index, params, states[index], view, tree
            )
            kept.append(state)
        return tree, tuple(kept)

    limits = _bounds(children, goals, trim)
    return family.drafter(numbered, propose, limits, laws=False)


def _check(children: family.Children, tokens: tuple[int, ...]) -> None:
    if len(tokens) != len(children) or min(tokens) < 1:
        raise ValueError(
            f"horizontal: tokens must be {len(children)} numbers of at least 1, one a "
            f"drafter, got {tokens}"
        )
    for child in children[:-1]:
        if child.bounds.branching > 1:
            names = ", ".join(source.name for source in child.sources)
            raise ValueError(
                f"horizontal: only the last drafter may branch, but {names} has up to "
                f"{child.bounds.branching} children of a node"
            )


def _bounds(
    children: family.Children, goals: list[int], trim: bool
) -> contracts.Bounds:
    """Most tokens after each segment: its goal, or what the last call makes of it."""
    nodes = depth = 0
    for child, goal in zip(children, goals, strict=True):
        if not child.bounds.nodes:
            continue
        before, beyond = depth, goal - 1 + child.bounds.depth
        if child.bounds.branching > 1:
            beyond = before + child.bounds.depth
        depth = max(before, min(goal, beyond) if trim else beyond)
        branches = child.bounds.branching > 1
        nodes = before + child.bounds.nodes if branches else depth
    return contracts.Bounds(
        nodes=nodes,
        depth=depth,
        branching=max(child.bounds.branching for child in children),
    )


def _start(tree: tree_lib.TokenTree) -> _Start:
    end = tree_lib.spine_end(tree)[:, None]
    depth = jnp.take_along_axis(tree.depth, end, axis=1)[:, 0]
    return _Start(tree.num_nodes, depth - jnp.maximum(tree.num_trunk - 1, 0))


def _segment(child: contracts.Drafter, goal: int, trim: bool, start: _Start):
    """A propose that calls the child's until ``goal`` tokens stand behind ``start``."""
    branches = child.bounds.branching > 1

    def propose(params, state, view, tree):
        room = view.room - 1 - start.depth  # i32[B], tokens that are of use
        most = jnp.minimum(room, goal) if trim else room
        most = jnp.maximum(most, 0)
        offered = jnp.minimum(view.room, start.depth + most + 1)

        def waiting(tree):
            count = tree.num_nodes - start.nodes
            at = jnp.maximum(tree.num_nodes - 1, 0)[:, None]
            last = jnp.take_along_axis(tree.token, at, axis=1)[:, 0]
            ended = (count > 0) & sampling_lib.is_stop(view.sampling, last)
            return (count < jnp.minimum(most, goal)) & ~ended

        def call(carry):
            index, going, tree, state = carry
            asked = dataclasses.replace(view, room=jnp.where(going, offered, 0))
            grown, state = child.propose(params, state, asked, tree)
            grown = _without_new_laws(grown, tree)
            grown = _cut(grown, tree, start, most, branches)
            grown = _renumber(child, goal, index, grown, tree.num_nodes)
            going = going & (grown.num_nodes > tree.num_nodes) & waiting(grown)
            return index + 1, going, grown, state

        carry = jnp.int32(0), waiting(tree), tree, state
        if branches:
            return call(carry)[2:]
        return jax.lax.while_loop(lambda carry: jnp.any(carry[1]), call, carry)[2:]

    return propose


def _cut(grown, tree, start: _Start, most, branches: bool) -> tree_lib.TokenTree:
    """The tree with at most ``most`` i32[B] tokens behind ``start`` on a path."""
    if not branches:
        limit = jnp.maximum(start.nodes + most, tree.num_nodes)
        nodes = jnp.minimum(grown.num_nodes, limit)
        return dataclasses.replace(grown, num_nodes=nodes)
    slot = jnp.arange(grown.slots, dtype=jnp.int32)[None]
    deepest = jnp.maximum(tree.num_trunk - 1, 0) + start.depth + most
    keep = (slot < tree.num_nodes[:, None]) | (grown.depth <= deepest[:, None])
    return tree_lib.pack(grown, keep)


def _without_new_laws(grown, tree) -> tree_lib.TokenTree:
    """The tree with only the laws that it had."""
    if tree.law is None:
        return dataclasses.replace(grown, law=None, laws=None)
    slot = jnp.arange(tree.slots, dtype=jnp.int32)[None]
    old = jnp.where(slot < tree.num_nodes[:, None], tree.law, tree_lib.NO_LAW)
    return dataclasses.replace(grown, law=old, laws=tree.laws)


def _numbered(child: contracts.Drafter, calls: int) -> contracts.Drafter:
    """The child with tags for ``calls`` calls a round, of which it knows the first.

    Each source's range is that many times as long, the calls one behind the other.
    """
    wider = [
        source._replace(num_tags=source.num_tags * calls) for source in child.sources
    ]

    def observe(params, state, view, tree, outcome: outcome_lib.Outcome):
        tag = jnp.full_like(tree.tag, tree_lib.NO_TAG)
        for first, count in _ranges(child):
            own = tree.tag - first * calls
            tag = jnp.where((own >= 0) & (own < count), own + first, tag)
        tree = dataclasses.replace(tree, tag=tag)
        return child.observe(params, state, view, tree, outcome)

    return child._replace(observe=observe, sources=tuple(wider))


def _renumber(child, calls: int, call: jax.Array, grown, base) -> tree_lib.TokenTree:
    """Gives the nodes from slot ``base`` i32[B] on the tags of one call."""
    slot = jnp.arange(grown.slots, dtype=jnp.int32)[None]
    new = (slot >= base[:, None]) & tree_lib.node_mask(grown)
    tag = grown.tag
    for first, count in _ranges(child):
        own = grown.tag - first
        here = new & (own >= 0) & (own < count)
        tag = jnp.where(here, first * calls + call * count + own, tag)
    return dataclasses.replace(grown, tag=tag)


def _ranges(child: contracts.Drafter) -> list[tuple[int, int]]:
    """First tag and number of tags of each source."""
    ranges, first = [], 0
    for source in child.sources:
        ranges.append((first, source.num_tags))
        first += source.num_tags
    return ranges
