"""Longer drafts: one drafter's chain, and another's suffixes behind its end."""

import dataclasses

import jax.numpy as jnp

from specjax.core import contracts
from specjax.core import tree as tree_lib
from specjax.core import union as union_lib
from specjax.drafters import equipped
from specjax.drafters.compose import family


@equipped.combinator
def with_suffixes(
    drafter: contracts.Drafter, pool: contracts.Drafter, *, min_chance: float = 0.0
) -> contracts.Drafter:
    """Drafts with one drafter, then hangs suffixes of another under the spine's end.

    A suffix is of use only if all of the spine is accepted. Where the first drafter
    says nothing the suffixes continue the text itself.

    Args:
      drafter: what drafts first.
      pool: what continues it, such as ``phrase_pool()``.
      min_chance: rows whose whole spine is accepted with less than this chance, by
        the product of its confidences, get no suffixes.

    Raises:
      ValueError: ``min_chance`` is not in [0, 1].

    Source: Ouroboros (Zhao et al. 2024), whose drafts always get suffixes.
    """
    check_chance("with_suffixes", min_chance)
    children = (drafter, pool)

    def propose(params, states, view, tree):
        tree, first = family.propose(children, 0, params, states[0], view, tree)
        asked = only_likely(view, tree, min_chance)
        tree, second = family.propose(children, 1, params, states[1], asked, tree)
        return tree, (first, second)

    return family.drafter(children, propose, bounds(drafter, pool))


def bounds(drafter: contracts.Drafter, pool: contracts.Drafter) -> contracts.Bounds:
    """Bounds of two drafters, the second under a leaf of the first."""
    first, second = drafter.bounds, pool.bounds
    return contracts.Bounds(
        nodes=first.nodes + second.nodes,
        depth=first.depth + second.depth,
        branching=max(first.branching, second.branching),
    )


def only_likely(
    view: contracts.View, tree: tree_lib.TokenTree, min_chance: float
) -> contracts.View:
    """The view without room for rows whose spine is too unlikely to be accepted."""
    if min_chance == 0.0:
        return view
    end = tree_lib.spine_end(tree)[:, None]
    chance = jnp.take_along_axis(union_lib.path_confidence(tree), end, axis=1)[:, 0]
    room = jnp.where(chance >= min_chance, view.room, 0)
    return dataclasses.replace(view, room=room)


def check_chance(name: str, min_chance: float) -> None:
    """Refuses a ``min_chance`` that is no chance.

    Raises:
      ValueError: it is not in [0, 1].
    """
    if not 0.0 <= min_chance <= 1.0:
        raise ValueError(f"{name}: min_chance must be in [0, 1], got {min_chance}")
