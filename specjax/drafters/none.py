"""No drafts: plain decoding, the baseline and the first rung of everything."""

import functools

from specjax.core import contracts
from specjax.drafters.stateless import stateless


@functools.cache
def none() -> contracts.Drafter:
    """A drafter that never drafts."""
    return stateless(
        lambda params, view, tree: tree,
        bounds=contracts.Bounds(nodes=0, depth=0, branching=0),
        sources=(),
    )
