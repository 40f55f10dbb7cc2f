"""Windows of committed tokens: what a table learns from a round."""

import jax
import jax.numpy as jnp

from specjax.core import contracts
from specjax.core import outcome as outcome_lib


def new_windows(
    view: contracts.View, outcome: outcome_lib.Outcome, width: int
) -> tuple[jax.Array, jax.Array]:
    """The windows of ``width`` tokens that end at a token made known by a round.

    A round makes the tokens after its path known: those it emitted, and in a prompt
    those of the next position on. So no window is missed or seen twice.

    Args:
      view: as ``observe`` gets it, the new history in it.
      outcome: of the round.
      width: W, static.

    Returns:
      (i32[B, L, W] windows by their end, bool[B, L] which of them are whole and new).
    """
    slots = view.history.tokens.shape[1]
    step = jnp.arange(outcome.path_slot.shape[1], dtype=jnp.int32)[None]
    end = view.start[:, None] + 1 + step  # i32[B, L], position of a window's last token
    whole = (step < outcome.num_path[:, None]) & (end >= width - 1)
    whole = whole & (end < view.history.length[:, None])
    back = jnp.arange(width, dtype=jnp.int32) - (width - 1)  # -W+1 .. 0
    at = jnp.clip(end[:, :, None] + back[None, None], 0, slots - 1)
    windows = jax.vmap(lambda tokens, at: tokens[at])(view.history.tokens, at)
    return windows, whole


def last_tokens(tokens: jax.Array, length: jax.Array, count: int) -> jax.Array:
    """The last tokens of rows.

    Args:
      tokens: i32[B, S].
      length: i32[B], how many of them there are.
      count: static.

    Returns:
      i32[B, count], -1 before the first.
    """
    at = length[:, None] - count + jnp.arange(count, dtype=jnp.int32)[None]
    last = jnp.take_along_axis(tokens, jnp.maximum(at, 0), axis=1)
    return jnp.where(at >= 0, last, -1)
