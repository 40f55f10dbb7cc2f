"""Speculative sampling: one candidate a step, tested against its law."""

import functools

from specjax import cached
from specjax.core import contracts
from specjax.verify import candidates, walk


@cached.cached
def rejection() -> contracts.Verifier:
    """The rule for chains of sampled drafts; lossless in law.

    A node has one child at most: whoever builds a decoder refuses a drafter whose
    ``bounds.branching`` is above 1. Of several children only the first would be
    tried, which is lossless but wastes the others.

    Source: Leviathan et al. 2023, "Fast inference from transformers via speculative
    decoding", algorithm 1. Deviation: the test multiplies instead of dividing, is
    strict, and falls back to p where rounding empties the residual.
    """
    rule = functools.partial(candidates.decide, first_only=True)
    return contracts.Verifier(
        verify=functools.partial(walk.walk, rule),
        lossless=True,
        same_tokens=False,
        needs_laws=True,
        branching=1,
    )
