"""A drafter that always drafts the same token: it fixes the width of a round.

It does not claim that its drafts will be kept, so nothing is computed in their hope.
"""

import jax.numpy as jnp

from specjax.core import contracts
from specjax.core import tree as tree_lib
from specjax.drafters.stateless import stateless

_HARDLY = 1e-3


def scripted(*, count: int, token: int = 0) -> contracts.Drafter:
    """Drafts a chain of ``count`` times ``token``, which a model hardly ever says.

    Args:
      count: nodes a round.
      token: the id.
    """

    def propose(params, view, tree):
        del params, view
        rows = tree.num_nodes.shape[0]
        return tree_lib.append_chain(
            tree,
            token=jnp.full((rows, count), token, jnp.int32),
            count=jnp.full((rows,), count, jnp.int32),
            confidence=jnp.full((rows, count), _HARDLY, jnp.float32),
            anchor=tree_lib.spine_end(tree),
        )

    return stateless(
        propose,
        bounds=contracts.Bounds(nodes=count, depth=count, branching=1),
        sources=(contracts.Source("scripted", count),),
    )
