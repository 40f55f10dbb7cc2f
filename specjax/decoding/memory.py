"""What a drafter learnt in one request, handed on to the next."""

import dataclasses

import jax
import jax.numpy as jnp

from specjax.core import contracts


@dataclasses.dataclass
class Memory:
    """A drafter's state between requests.

    Tables that grow with use (token recycling, phrase pools) start empty in every
    request unless the caller hands on what the last one left. The tokens that come
    out are the same either way; only the number of rounds changes. A memory belongs to
    one drafter, one number of rows and one capacity (fix it by ``max_context``).

    Whoever hands a memory on hands on what was drafted for others: keep one a user
    where that matters.

    Attributes:
      state: the state, None before the first request.
    """

    state: contracts.DrafterState | None = None

    def fitting(self, blank: contracts.DrafterState) -> contracts.DrafterState:
        """A copy of the state, which the next request may use up.

        Args:
          blank: a new state of the same drafter and sizes.

        Raises:
          ValueError: the state has other leaves, shapes or dtypes.
        """
        if self.state is None:
            return blank
        check(self.state, blank)
        return jax.tree.map(jnp.copy, self.state)


def check(state: contracts.DrafterState, blank: contracts.DrafterState) -> None:
    """Refuses a state that is not of the shapes of a blank one.

    Args:
      state: of some drafter.
      blank: a new state of the drafter that is to go on with it.

    Raises:
      ValueError: it has other leaves, shapes or dtypes.
    """
    ours, theirs = jax.eval_shape(lambda: (state, blank))
    if ours != theirs:
        raise ValueError(
            "memory: left by another drafter, number of rows or capacity than this "
            "request has; fix the capacity (max_context), or begin without a memory"
        )
