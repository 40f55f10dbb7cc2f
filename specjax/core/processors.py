"""Logit processors, carried down the emitted path.

``apply`` gives the logits that a token is drawn from; ``advance`` notes the token
that was emitted. Plain decoding and the walk down a tree call these two in the same
order, so any processor is exact under speculation.

Order (that of transformers): penalties, grammar, biases and bans, min_new_tokens,
then temperature, top-k, top-p, min-p. Masks come of thresholds, never of a sort of the
vocabulary; equal values at a threshold are kept together.
"""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from pallas_kernels import threshold
from specjax.core import history as history_lib
from specjax.core import sampling as sampling_lib


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ProcessorState:
    """What processors remember: a memo of the history.

    Attributes:
      in_prompt: bool[B, V], ids of the prompt.
      output_count: i32[B, V], how often each id was emitted.
      num_emitted: i32[B], tokens emitted in this turn.
      grammar: i32[B], automaton state (0 without a grammar).
    """

    AXES: ClassVar = {
        "in_prompt": ("batch", "vocab"),
        "output_count": ("batch", "vocab"),
    }

    in_prompt: jax.Array  # bool[B, V]
    output_count: jax.Array  # i32[B, V]
    num_emitted: jax.Array  # i32[B]
    grammar: jax.Array  # i32[B]


def start(
    history: history_lib.History, sampling: sampling_lib.Sampling, vocab_size: int
) -> ProcessorState:
    """The state before the first new token of a prompt.

    Args:
      history: the prompts.
      sampling: parameters of the rows.
      vocab_size: V, static.

    Returns:
      The state of B rows, nothing emitted.
    """
    rows, slots = history.tokens.shape
    slot = jnp.arange(slots, dtype=jnp.int32)[None, :]
    at = jnp.where(slot < history.length[:, None], history.tokens, vocab_size)
    blank = jnp.zeros((rows, vocab_size), jnp.bool_)
    in_prompt = jax.vmap(lambda row, ids: row.at[ids].set(True, mode="drop"))(blank, at)
    zeros = jnp.zeros((rows,), jnp.int32)
    return ProcessorState(
        in_prompt=in_prompt,
        output_count=jnp.zeros((rows, vocab_size), jnp.int32),
        num_emitted=zeros,
        grammar=zeros if sampling.grammar is None else sampling.grammar.start,
    )


def advance(
    state: ProcessorState,
    sampling: sampling_lib.Sampling,
    token: jax.Array,
    emitted: jax.Array,
) -> ProcessorState:
    """Notes one emitted token a row.

    Args:
      state: before the token.
      sampling: parameters of the rows.
      token: i32[B].
      emitted: bool[B], rows that emit; others stay as they are.

    Returns:
      The state after it.
    """
    one = emitted.astype(jnp.int32)
    counts = jax.vmap(lambda row, at, n: row.at[at].add(n))(
        state.output_count, token, one
    )
    grammar = state.grammar
    if sampling.grammar is not None:
        after = sampling.grammar.shared["next"][grammar, token]
        # -1 comes of a state that allows no token at all, and is no index.
        grammar = jnp.where(emitted & (after >= 0), after, grammar)
    return dataclasses.replace(
        state,
        output_count=counts,
        num_emitted=state.num_emitted + one,
        grammar=grammar,
    )


def apply(
    state: ProcessorState, sampling: sampling_lib.Sampling, logits: jax.Array
) -> jax.Array:
    """Logits f32[B, V] to draw from: -inf where a token is not allowed.

    Temperature is not divided out (the draw scales the noise instead, which is
    greedy at 0 without a division), but the masks of top-k, top-p and min-p are
    those of the distribution at the row's temperature.

    Args:
      state: at the end of what was emitted.
      sampling: parameters of the rows.
      logits: f32[B, V], the target's own.
    """
    logits = _skip(_any_penalty(sampling), _penalise, state, sampling, logits)
    if sampling.grammar is not None:
        after = sampling.grammar.shared["next"][state.grammar]  # i32[B, V]
        logits = jnp.where(after < 0, -jnp.inf, logits)
    logits = _skip(jnp.any(sampling.bias_ids >= 0), _bias, state, sampling, logits)
    early = state.num_emitted < sampling.min_new_tokens
    logits = _skip(jnp.any(early), _ban_stops, state, sampling, logits)
    truncates = (sampling.top_k > 0) | (sampling.top_p < 1) | (sampling.min_p > 0)
    sampled = sampling.temperature > 0
    return _skip(jnp.any(truncates & sampled), _truncate, state, sampling, logits)


def tempered(logits: jax.Array, temperature: jax.Array) -> jax.Array:
    """Logits f32[B, V] at a temperature, 0 at the best.

    The best is taken away first: divided by a tiny temperature, two could both be
    infinite and their difference NaN. Rows at temperature 0 count as at 1.

    Args:
      logits: f32[B, V], as ``apply`` gives them.
      temperature: f32[B].
    """
    temperature = jnp.where(temperature > 0, temperature, 1.0)[:, None]
    best = jnp.max(logits, axis=1, keepdims=True)
    return (logits - best) / temperature


def _skip(wanted, function, state, sampling, logits):
    """Runs a processor only when some row wants it."""
    return jax.lax.cond(
        wanted, lambda x: function(state, sampling, x), lambda x: x, logits
    )


def _any_penalty(sampling: sampling_lib.Sampling) -> jax.Array:
    return jnp.any(
        (sampling.repetition_penalty != 1)
        | (sampling.presence_penalty != 0)
        | (sampling.frequency_penalty != 0)
    )


def _penalise(state, sampling, logits):
    seen = state.in_prompt | (state.output_count > 0)
    penalty = sampling.repetition_penalty[:, None]
    scaled = jnp.where(logits > 0, logits / penalty, logits * penalty)
    logits = jnp.where(seen, scaled, logits)
    count = state.output_count.astype(jnp.float32)
    logits = logits - sampling.frequency_penalty[:, None] * count
    return logits - sampling.presence_penalty[:, None] * jnp.minimum(count, 1.0)


def _bias(state, sampling, logits):
    """Adds biases; a row that they would leave without any token keeps its logits."""
    del state
    at = jnp.where(sampling.bias_ids < 0, logits.shape[1], sampling.bias_ids)
    biased = jax.vmap(lambda row, ids, x: row.at[ids].add(x, mode="drop"))(
        logits, at, sampling.bias
    )
    return _unless_empty(biased, logits)


def _ban_stops(state, sampling, logits):
    early = state.num_emitted < sampling.min_new_tokens
    banned = early[:, None] & (sampling.stop_ids >= 0)
    at = jnp.where(banned, sampling.stop_ids, logits.shape[1])
    banned = jax.vmap(lambda row, ids: row.at[ids].set(-jnp.inf, mode="drop"))(
        logits, at
    )
    return _unless_empty(banned, logits)


def _unless_empty(masked: jax.Array, logits: jax.Array) -> jax.Array:
    """``masked``, but ``logits`` in rows where no token would be left."""
    left = jnp.max(masked, axis=1, keepdims=True) > -jnp.inf
    return jnp.where(left, masked, logits)


def _truncate(state, sampling, logits):
    del state
    scaled = tempered(logits, sampling.temperature)
    keep = scaled >= threshold.top_k(scaled, sampling.top_k)[:, None]
    weight = jnp.where(keep, jnp.exp(scaled), 0.0)  # f32[B, V], 1 at the best
    keep &= weight >= threshold.top_p(weight, sampling.top_p)[:, None]
    kept_total = jnp.where(keep, weight, 0.0)
    keep &= kept_total >= sampling.min_p[:, None]
    greedy = (sampling.temperature <= 0)[:, None]
    return jnp.where(keep | greedy | (scaled == 0), logits, -jnp.inf)
