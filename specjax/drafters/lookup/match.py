"""Where the end of a text occurs earlier in it."""

import jax
import jax.numpy as jnp

from specjax.core import history as history_lib


def match_lengths(history: history_lib.History, max_ngram: int) -> jax.Array:
    """How long each position's context agrees with the end of the history.

    Args:
      history: the rows.
      max_ngram: longest agreement that counts, static.

    Returns:
      i32[B, S]: at position j, the number n <= max_ngram of tokens up to and
      including j that equal the last n tokens; 0 at the last position and past it.
    """
    slots = history.tokens.shape[1]
    slot = jnp.arange(slots, dtype=jnp.int32)[None]
    last = history.length[:, None] - 1
    agrees = slot < last  # bool[B, S]
    length = jnp.zeros_like(history.tokens)
    for n in range(max_ngram):
        shifted = jnp.pad(history.tokens, ((0, 0), (n, 0)))[:, :slots]
        wanted = jnp.take_along_axis(history.tokens, jnp.maximum(last - n, 0), axis=1)
        agrees = agrees & (slot >= n) & (shifted == wanted)
        length = length + agrees.astype(jnp.int32)
    return length


def longest(length: jax.Array, *, recent: bool) -> tuple[jax.Array, jax.Array]:
    """Where the longest match of each row ends, and how long it is.

    Args:
      length: i32[B, S], of ``match_lengths``.
      recent: of equally long ones the last, else the first; static.

    Returns:
      (i32[B] position of its last token, i32[B] its length; some position and 0 where
      nothing matches).
    """
    best = jnp.max(length, axis=1, keepdims=True)
    hits = length == best
    if recent:
        at = length.shape[1] - 1 - jnp.argmax(hits[:, ::-1], axis=1)
    else:
        at = jnp.argmax(hits, axis=1)
    return at.astype(jnp.int32), best[:, 0]


def confidence_after(length: jax.Array) -> jax.Array:
    """How likely the token that followed an earlier match is to follow again.

    ``(n - 1/2) / (n + 0.9)`` after n matched tokens, those drafted on the way
    included: 0.26, 0.52, 0.64, 0.71, ... A fit to what SmolLM2 answered to 40
    instructions, questions and texts (0.25, 0.53, 0.66, 0.69 after 1 to 4 tokens, 0.93
    after 12 and more; nearly the same for the d-th draft after n tokens and the first
    after n + d).

    Args:
      length: i32[...], matched tokens, 1 or more.
    """
    n = length.astype(jnp.float32)
    return (n - 0.5) / (n + 0.9)
