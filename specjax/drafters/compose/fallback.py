"""One drafter, and another where it has nothing to say."""

import dataclasses

import jax.numpy as jnp

from specjax.core import contracts
from specjax.drafters import equipped
from specjax.drafters.compose import family


@equipped.combinator
def fallback(*children: contracts.Drafter) -> contracts.Drafter:
    """Asks drafters in order; a row is done with the first that drafts for it.

    Rows that have drafts already offer later children no room, so a draft model
    whose turn never comes runs no step. All children observe every round.

    Args:
      *children: two or more drafters, the preferred ones first.

    Raises:
      ValueError: fewer than two children.

    Source: our own; SAM-Decoding falls back on a tree drafter in the same way where
    its match is short.
    """
    family.check("fallback", children, least=2)
    bounds = [child.bounds for child in children]

    def propose(params, states, view, tree):
        before, kept = tree.num_nodes, []
        for index in range(len(children)):
            waiting = tree.num_nodes == before
            asked = dataclasses.replace(view, room=jnp.where(waiting, view.room, 0))
            tree, state = family.propose(
                children, index, params, states[index], asked, tree
            )
            kept.append(state)
        return tree, tuple(kept)

    limits = contracts.Bounds(
        nodes=max(bound.nodes for bound in bounds),
        depth=max(bound.depth for bound in bounds),
        branching=max(bound.branching for bound in bounds),
    )
    return family.drafter(children, propose, limits)
