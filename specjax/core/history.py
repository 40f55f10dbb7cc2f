"""The committed tokens of each row: the truth that every cache is a memo of."""

import dataclasses

import jax
import jax.numpy as jnp


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class History:
    """Prompt and emitted tokens, padded to a fixed number of slots.

    Attributes:
      tokens: i32[B, S]; slots at or past ``length`` hold no meaning.
      length: i32[B], tokens present.
      prompt_length: i32[B], how many of them were given, not generated.
    """

    tokens: jax.Array  # i32[B, S]
    length: jax.Array  # i32[B]
    prompt_length: jax.Array  # i32[B]


def empty(rows: int, capacity: int) -> History:
    """A history of ``rows`` rows without tokens."""
    return History(
        tokens=jnp.zeros((rows, capacity), jnp.int32),
        length=jnp.zeros((rows,), jnp.int32),
        prompt_length=jnp.zeros((rows,), jnp.int32),
    )


def create(tokens: jax.Array, lengths: jax.Array, capacity: int) -> History:
    """A history of prompts.

    Args:
      tokens: i32[B, T], T <= capacity, padded on the right.
      lengths: i32[B], prompt lengths.
      capacity: slots S, static.
    """
    padded = jnp.pad(tokens, ((0, 0), (0, capacity - tokens.shape[1])))
    return History(tokens=padded, length=lengths, prompt_length=lengths)


def append(history: History, tokens: jax.Array, count: jax.Array) -> History:
    """Adds the first ``count`` of ``tokens`` to each row.

    Args:
      history: the rows.
      tokens: i32[B, M].
      count: i32[B], 0 to M.
    """
    slots, width = history.tokens.shape[1], tokens.shape[1]
    step = jnp.arange(width, dtype=jnp.int32)[None, :]
    target = jnp.where(
        step < count[:, None], history.length[:, None] + step, slots
    )  # i32[B, M], slots = dropped
    written = jax.vmap(lambda row, at, new: row.at[at].set(new, mode="drop"))(
        history.tokens, target, tokens
    )
    return dataclasses.replace(history, tokens=written, length=history.length + count)


def common_prefix(first: History, second: History) -> jax.Array:
    """Length i32[B] of the longest common prefix of two histories' rows."""
    slot = jnp.arange(first.tokens.shape[1], dtype=jnp.int32)[None, :]
    limit = jnp.minimum(first.length, second.length)[:, None]
    differs = (first.tokens != second.tokens) | (slot >= limit)
    padded = jnp.pad(differs, ((0, 0), (0, 1)), constant_values=True)
    return jnp.argmax(padded, axis=1).astype(jnp.int32)
