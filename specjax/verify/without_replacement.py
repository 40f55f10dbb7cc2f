"""Recursive rejection over siblings that were drawn without replacement."""

import functools

from specjax import cached
from specjax.core import contracts
from specjax.verify import candidates, walk


@cached.cached
def without_replacement() -> contracts.Verifier:
    """The rule for trees of sampled drafts; lossless in law.

    The children of a node are tried in slot order. Those of one row of ``laws`` must
    stand in the order in which they were drawn from it without replacement
    (``draw_without_replacement``); rows of other drafters may follow, if their noise
    is independent, and point masses may stand anywhere. With one child it is
    `rejection`.

    Source: Jeon et al. 2024, "Recursive speculative decoding", section 3.2; the
    same test stands in the code of EAGLE-1.
    """
    rule = functools.partial(candidates.decide, first_only=False)
    return contracts.Verifier(
        verify=functools.partial(walk.walk, rule),
        lossless=True,
        same_tokens=False,
        needs_laws=True,
    )
