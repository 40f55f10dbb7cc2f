"""No drafts: plain decoding, the baseline and the first rung of everything."""

import functools

from specjax.core import contracts


@functools.cache
def none() -> contracts.Drafter:
    """A drafter that never drafts."""

    def init(params, rows, capacity):
        del params, rows, capacity
        return ()

    def propose(params, state, view, tree):
        del params, view
        return tree, state

    def observe(params, state, view, tree, outcome):
        del params, view, tree, outcome
        return state

    return contracts.Drafter(
        init=init,
        propose=propose,
        observe=observe,
        bounds=contracts.Bounds(nodes=0, depth=0, branching=0),
        needs=contracts.Needs(),
        sources=(),
    )
