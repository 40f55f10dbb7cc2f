"""What all combinators share: several drafters as one.

Every child keeps its own state, its own params and its own numbers of nodes. A
combinator gives each child a range of tags, asks the target for all that any child
needs, and shows each child only its own part of it.
"""

import dataclasses
from collections.abc import Callable, Sequence

import jax.numpy as jnp

from specjax.core import contracts
from specjax.core import outcome as outcome_lib
from specjax.core import tree as tree_lib

Children = tuple[contracts.Drafter, ...]
States = tuple[contracts.DrafterState, ...]


def drafter(
    children: Children,
    propose: Callable[..., tuple[tree_lib.TokenTree, contracts.DrafterState]],
    bounds: contracts.Bounds,
    *,
    laws: bool = True,
) -> contracts.Drafter:
    """Several drafters as one, whose children all observe every round.

    Args:
      children: the drafters.
      propose: (params, states, view, tree) -> (tree, states).
      bounds: of what it appends.
      laws: False where it drops the laws that children hand on.
    """
    wanted = needs(children)

    def init_all(params, rows, capacity):
        return init(children, params, rows, capacity)

    def observe_all(params, states, view, tree, outcome):
        return observe(children, params, states, view, tree, outcome)

    return contracts.Drafter(
        init=init_all,
        propose=propose,
        observe=observe_all,
        bounds=bounds,
        needs=wanted if laws else wanted._replace(laws=False),
        sources=sources(children),
    )


def sources(children: Sequence[contracts.Drafter]) -> tuple[contracts.Source, ...]:
    """The sources of all children, in order."""
    return tuple(source for child in children for source in child.sources)


def needs(children: Sequence[contracts.Drafter]) -> contracts.Needs:
    """What all children together want of the target."""
    layers = {layer for child in children for layer in child.needs.features}
    return contracts.Needs(
        features=tuple(sorted(layers)),
        top_k=max((child.needs.top_k for child in children), default=0),
        prompt_top_k=any(child.needs.prompt_top_k for child in children),
        laws=all(child.needs.laws or not child.bounds.nodes for child in children),
    )


def params_of(params: contracts.Params, index: int) -> contracts.Params:
    """The params as child ``index`` expects them.

    A combinator's own are a tuple of its children's; {} stands for children that
    all have none.
    """
    own = params["drafter"]
    return {**params, "drafter": own[index] if own else {}}


def init(
    children: Children, params: contracts.Params, rows: int, capacity: int
) -> States:
    """The children's states."""
    return tuple(
        child.init(params_of(params, index), rows, capacity)
        for index, child in enumerate(children)
    )


def propose(
    children: Children,
    index: int,
    params: contracts.Params,
    state: contracts.DrafterState,
    view: contracts.View,
    tree: tree_lib.TokenTree,
) -> tuple[tree_lib.TokenTree, contracts.DrafterState]:
    """Lets one child append to a tree; its nodes get the tags of its range."""
    child = children[index]
    grown, state = child.propose(params_of(params, index), state, view, tree)
    slot = jnp.arange(grown.slots, dtype=jnp.int32)[None]
    new = slot >= tree.num_nodes[:, None]
    tag = jnp.where(
        new & (grown.tag >= 0), grown.tag + _first(children, index), grown.tag
    )
    return dataclasses.replace(grown, tag=tag), state


def observe(
    children: Children,
    params: contracts.Params,
    states: States,
    view: contracts.View,
    tree: tree_lib.TokenTree,
    outcome: outcome_lib.Outcome,
) -> States:
    """Shows a round to all children, the tags of each counting from 0 again."""
    layers = needs(children).features
    return tuple(
        child.observe(
            params_of(params, index),
            states[index],
            view,
            own_tags(children, index, tree),
            _own_outcome(child, layers, outcome),
        )
        for index, child in enumerate(children)
    )


def own_tags(
    children: Children, index: int, tree: tree_lib.TokenTree
) -> tree_lib.TokenTree:
    """The tree as a child knows it: nodes of others have no tag."""
    first = _first(children, index)
    count = _tags(children[index])
    mine = (tree.tag >= first) & (tree.tag < first + count)
    tag = jnp.where(mine, tree.tag - first, tree_lib.NO_TAG)
    return dataclasses.replace(tree, tag=tag)


def _own_outcome(
    child: contracts.Drafter, layers: tuple[int, ...], outcome: outcome_lib.Outcome
) -> outcome_lib.Outcome:
    """The outcome with the layers and the number of top ids that a child asked for."""
    top_ids, features = outcome.top_ids, outcome.features
    if top_ids is not None:
        top_ids = top_ids[:, :, : child.needs.top_k] if child.needs.top_k else None
    if features is not None:
        parts = jnp.split(features, len(layers), axis=2)
        wanted = [parts[layers.index(layer)] for layer in child.needs.features]
        features = jnp.concatenate(wanted, axis=2) if wanted else None
    return dataclasses.replace(outcome, top_ids=top_ids, features=features)


def _first(children: Children, index: int) -> int:
    """The first tag of a child."""
    return sum(_tags(child) for child in children[:index])


def _tags(child: contracts.Drafter) -> int:
    return sum(source.num_tags for source in child.sources)


def check(name: str, children: Children, least: int) -> None:
    """Refuses a family that is too small.

    Raises:
      ValueError: there are fewer than ``least`` children.
    """
    if len(children) < least:
        raise ValueError(
            f"{name}: expected at least {least} drafters, got {len(children)}"
        )
