"""Ouroboros: phrases for the draft model and for the target, out of one pool.

    draft model:  lookahead() decodes it phrase by phrase    ,-- reads and fills
    target:       phrase_pool() lengthens its chain        pool
                  and learns from what is rejected           `-- reads and fills

The pool is held once, beside the two drafters' states, and lent to each of them in
turn: where a state had its own, a mark is left.
"""

import dataclasses
from typing import Any

import jax

from specjax.core import contracts
from specjax.drafters import equipped
from specjax.drafters.compose import family
from specjax.drafters.compose import with_suffixes as suffixes_lib
from specjax.drafters.lookup import table as table_lib


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Lent:
    """The mark where a pool belongs in a state that has none at the moment."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class OuroborosState:
    """What both drafters remember.

    Attributes:
      pool: the phrases that they share.
      children: their states, with marks in its place.
    """

    pool: table_lib.Table
    children: tuple[contracts.DrafterState, contracts.DrafterState]


def pools(state: contracts.DrafterState) -> list[table_lib.Table]:
    """The pools that a drafter's state holds, wherever in it."""
    leaves = jax.tree.leaves(state, is_leaf=_is_pool)
    return [leaf for leaf in leaves if isinstance(leaf, table_lib.Table)]


def put(
    state: contracts.DrafterState, pool: table_lib.Table | Lent
) -> contracts.DrafterState:
    """The state with this in the place of its pool, or of the mark there."""
    return jax.tree.map(lambda x: pool if _is_pool(x) else x, state, is_leaf=_is_pool)


def _is_pool(x: Any) -> bool:
    return isinstance(x, (table_lib.Table, Lent))


@equipped.combinator
def ouroboros(
    drafter: contracts.Drafter, pool: contracts.Drafter, *, min_chance: float = 0.0
) -> contracts.Drafter:
    """``with_suffixes(drafter, pool)`` whose two drafters share one pool.

    As published, ``ouroboros(speculate(model, drafter=lookahead()), phrase_pool())``:
    what the draft model's lookahead spells becomes suffixes for the target, what the
    target answers speeds the draft model up. To carry it over to the next request,
    carry the state over.

    Args:
      drafter: what drafts first; its state holds one pool, however deep.
      pool: what hangs suffixes behind it, with a pool of the same sizes.
      min_chance: as for ``with_suffixes``.

    Raises:
      ValueError: ``min_chance`` is not in [0, 1]; or, from ``init``, the two do not
        have one pool each, or pools of different sizes.

    Source: Ouroboros (Zhao et al. 2024).
    """
    suffixes_lib.check_chance("ouroboros", min_chance)
    children = (drafter, pool)

    def init(params, rows, capacity):
        states = family.init(children, params, rows, capacity)
        first, second = states
        _check_pools(pools(first), pools(second))
        return OuroborosState(
            pool=pools(second)[0], children=(put(first, Lent()), put(second, Lent()))
        )

    def propose(params, state, view, tree):
        shared, kept = state.pool, []
        for index, child in enumerate(state.children):
            if index == 1:
                view = suffixes_lib.only_likely(view, tree, min_chance)
            tree, after = family.propose(
                children, index, params, put(child, shared), view, tree
            )
            (shared,) = pools(after)
            kept.append(put(after, Lent()))
        return tree, OuroborosState(pool=shared, children=tuple(kept))

    def observe(params, state, view, tree, outcome):
        shared, kept = state.pool, list(state.children)
        for index in range(2):
            kept[index] = put(kept[index], shared)
            after = family.observe(
                _listening(children, index), params, tuple(kept), view, tree, outcome
            )[index]
            (shared,) = pools(after)
            kept[index] = put(after, Lent())
        return OuroborosState(pool=shared, children=tuple(kept))

    made = family.drafter(children, propose, suffixes_lib.bounds(drafter, pool))
    return made._replace(init=init, observe=observe)


def _check_pools(first: list[table_lib.Table], second: list[table_lib.Table]) -> None:
    """Refuses drafters that can't share a pool."""
    shapes = [
        [jax.tree.map(lambda x: x.shape, pool) for pool in held]
        for held in (first, second)
    ]
    if len(first) != 1 or shapes[0] != shapes[1]:
        raise ValueError(
            "ouroboros: both drafters must hold one phrase pool of the same ngram, "
            f"max_phrases and buckets, got pools of shapes {shapes[0]} and {shapes[1]}"
        )


def _listening(children: family.Children, index: int) -> family.Children:
    """The family with all children deaf but one."""

    def deaf(params, state, view, tree, outcome):
        del params, view, tree, outcome
        return state

    return tuple(
        child if at == index else child._replace(observe=deaf)
        for at, child in enumerate(children)
    )
