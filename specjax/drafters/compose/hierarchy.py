"""Databases in order of locality: ask the next one only where chains are missing.

A chain is a path from the spine's end to a leaf. Databases are asked one after the
other until a row has ``quota`` distinct chains::

    the text itself   a b c, a b d      2 chains        the tree    a - b - c
    the model's past  a b, a e f        1 more, 3            quota 3    |   `- d
    a large corpus    not asked                                         `- e - f
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

from specjax import checks
from specjax.core import contracts
from specjax.core import tree as tree_lib
from specjax.core import union as union_lib
from specjax.drafters import equipped
from specjax.drafters.compose import family


@equipped.combinator
def hierarchy(
    *children: contracts.Drafter,
    quota: int = 7,
    max_nodes: int = 0,
    compat: bool = False,
) -> contracts.Drafter:
    """Fills a quota of distinct chains from drafters in order.

    All children continue the tree as it was found. What they draft becomes one trie,
    so that chains that repeat others or begin like them take no place twice. Of the
    chains of one child the longest go first, and equally long ones as it drafted
    them. A chain that goes on where one of an earlier child ends lengthens that one
    and takes no place of its own; a second that does so takes one.

    A row whose quota is met offers later children no room, and where that holds for
    all rows a child is not run at all. All children observe every round.

    Args:
      *children: one or more drafters, the most local and cheapest first.
      quota: chains a row.
      max_nodes: most nodes of all chains together, those of later chains are left out
        first; 0 for ``quota`` times the longest chain that a child drafts.
      compat: as the reference does it: every chain counts, whether or not others are
        equal to it.

    Raises:
      ValueError: no children, or an option is out of range.

    Source: Hierarchy Drafting (Cho et al. 2025). There 7 sequences of one length are
    scored side by side, repeats across databases included; the trie is our own.
    """
    family.check("hierarchy", children, least=1)
    _check(quota, max_nodes)
    bounds = [child.bounds for child in children]
    depth = max(bound.depth for bound in bounds)
    total = sum(bound.nodes for bound in bounds)
    nodes = min(max_nodes or quota * depth, total)

    def propose(params, states, view, tree):
        united, kept = tree, []
        for index, child in enumerate(children):
            free = _free(united, tree.num_nodes, view, quota, nodes)

            def ask(united, state, child=child, index=index, free=free):
                wide = tree_lib.widen(tree, tree.slots + child.bounds.nodes)
                room = jnp.where(free.chains > 0, view.room, 0)
                asked = dataclasses.replace(view, room=room)
                grown, state = family.propose(
                    children, index, params, state, asked, wide
                )
                return _unite(united, grown, wide, free, compat), state

            united, state = jax.lax.cond(
                jnp.any(free.chains > 0), ask, lambda *same: same, united, states[index]
            )
            kept.append(state)
        return united, tuple(kept)

    limits = contracts.Bounds(
        nodes=nodes,
        depth=min(depth, nodes),
        branching=min(quota, sum(bound.branching for bound in bounds)),
    )
    return family.drafter(children, propose, limits, laws=False)


class _Free(NamedTuple):
    """What a row may still take up, 0 where it is done or idle.

    Attributes:
      chains: i32[B].
      nodes: i32[B].
    """

    chains: jax.Array
    nodes: jax.Array


def _free(tree, base, view, quota: int, nodes: int) -> _Free:
    """What is left of quota and nodes; ``base`` i32[B] slots are not ours."""
    chains = quota - jnp.sum(_ends(tree, base), axis=1, dtype=jnp.int32)
    spare = nodes - (tree.num_nodes - base)
    waiting = (chains > 0) & (spare > 0) & (view.room > 1)
    return _Free(jnp.where(waiting, chains, 0), jnp.where(waiting, spare, 0))


def _ends(tree: tree_lib.TokenTree, base: jax.Array) -> jax.Array:
    """bool[B, N]: drafts from slot ``base`` i32[B] on that nothing hangs under."""
    slot = jnp.arange(tree.slots, dtype=jnp.int32)
    used = tree_lib.node_mask(tree)
    hangs = (tree.parent[:, :, None] == slot[None, None]) & used[:, :, None]
    return used & (slot[None] >= base[:, None]) & ~jnp.any(hangs, axis=1)


def _unite(
    tree: tree_lib.TokenTree,
    grown: tree_lib.TokenTree,
    found: tree_lib.TokenTree,
    free: _Free,
    compat: bool,
) -> tree_lib.TokenTree:
    """Adds as many chains of a child as fit.

    Args:
      tree: with the chains of the children before it.
      grown: with the child's own, grown from ``found``.
      found: the tree before all of them, as wide as ``grown``.
      free: what fits.
      compat: whether equal chains stay apart.
    """
    base, old = found.num_nodes, tree.num_nodes
    # Laws are dropped: equal tokens become one node, whatever they were drawn from.
    grown = dataclasses.replace(grown, law=found.law, laws=found.laws)
    wide = tree_lib.widen(tree, found.slots)
    united = tree_lib.graft(wide, grown, base)
    if not compat:
        united = union_lib.fold(united, base)
    keep = _chosen(united, _ends(wide, base), old, free)
    return tree_lib.cut(tree_lib.pack(united, keep), tree.slots)


def _chosen(
    tree: tree_lib.TokenTree, ended: jax.Array, old: jax.Array, free: _Free
) -> jax.Array:
    """The nodes bool[B, N] to keep.

    Args:
      tree: the tree, the new nodes last.
      ended: bool[B, N], where older chains ended before the new ones were added.
      old: i32[B], slots before the new nodes.
      free: what may be kept of these.
    """
    slots = tree.slots
    slot = jnp.arange(slots, dtype=jnp.int32)[None]
    ends = _ends(tree, old)
    before = _ahead(ends, slots * (slots - tree.depth) + slot)
    # The first chain to lengthen an older one takes its place, all others a new one.
    older = _above(tree, ended)
    rivals = before & (older[:, None] == older[:, :, None])
    takes = (older == slots) | jnp.any(rivals, axis=2)
    taken = takes.astype(jnp.int32)  # places up to and including this chain's
    taken = taken + jnp.sum(before & takes[:, None], axis=2, dtype=jnp.int32)
    kept = ends & (taken <= free.chains[:, None])
    # Nodes go by the first chain that they are on, and along it.
    rank = jnp.sum(before, axis=2, dtype=jnp.int32)
    first = _least_below(tree, jnp.where(kept, rank, slots))
    new = (slot >= old[:, None]) & (first < slots)
    ahead = _ahead(new, slots * first + tree.depth)
    place = jnp.sum(ahead, axis=2, dtype=jnp.int32)
    return (slot < old[:, None]) | (new & (place < free.nodes[:, None]))


def _above(tree: tree_lib.TokenTree, marked: jax.Array) -> jax.Array:
    """Slot i32[B, N] of the marked draft above each node, N where there is none.

    No two of the ``marked`` bool[B, N] lie on one path.
    """
    slot = jnp.arange(tree.slots, dtype=jnp.int32)[None]
    up = jnp.where(tree_lib.draft_mask(tree) & ~marked, tree.parent, slot)
    rounds = max(tree.slots - 1, 1).bit_length()
    up = jax.lax.fori_loop(
        0, rounds, lambda _, up: jnp.take_along_axis(up, up, axis=1), up
    )
    return jnp.where(jnp.take_along_axis(marked, up, axis=1), up, tree.slots)


def _least_below(tree: tree_lib.TokenTree, value: jax.Array) -> jax.Array:
    """Least value i32[B, N] of each draft and of all that hangs under it."""
    slot = jnp.arange(tree.slots, dtype=jnp.int32)
    up = jnp.where(tree_lib.draft_mask(tree), tree.parent, slot[None])
    most = jnp.iinfo(value.dtype).max

    def step(_, carry):
        up, value = carry
        under = up[:, None] == slot[None, :, None]  # bool[B, N, N]
        below = jnp.min(jnp.where(under, value[:, None], most), axis=2)
        return jnp.take_along_axis(up, up, axis=1), jnp.minimum(value, below)

    rounds = max(tree.slots - 1, 1).bit_length()  # twice as far up in each
    return jax.lax.fori_loop(0, rounds, step, (up, value))[1]


def _ahead(among: jax.Array, key: jax.Array) -> jax.Array:
    """bool[B, N, N]: [n, m] is True where m is one of ``among`` with a lower key."""
    return among[:, None] & (key[:, None] < key[:, :, None])


def _check(quota: int, max_nodes: int) -> None:
    checks.at_least("hierarchy", 1, quota=quota)
    if max_nodes < 0:
        raise ValueError(
            "hierarchy: max_nodes must be at least 1, or 0 for quota times the longest "
            f"chain, got {max_nodes}"
        )
