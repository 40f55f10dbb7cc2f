"""Drafters that remember nothing: what they draft follows from params and text."""

from collections.abc import Callable

from specjax.core import contracts
from specjax.core import tree as tree_lib


def stateless(
    propose: Callable[..., tree_lib.TokenTree],
    *,
    bounds: contracts.Bounds,
    sources: tuple[contracts.Source, ...],
) -> contracts.Drafter:
    """A drafter without a state, which needs nothing of the target.

    Args:
      propose: (params, view, tree) -> tree with its nodes.
      bounds: of what it appends.
      sources: names of its tags.
    """

    def init(params, rows, capacity):
        del params, rows, capacity
        return ()

    def propose_only(params, state, view, tree):
        return propose(params, view, tree), state

    def observe(params, state, view, tree, outcome):
        del params, view, tree, outcome
        return state

    return contracts.Drafter(
        init=init,
        propose=propose_only,
        observe=observe,
        bounds=bounds,
        needs=contracts.Needs(),
        sources=sources,
    )
