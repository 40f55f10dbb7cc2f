"""The two programs of a generation, prompt and decode, as pure functions.

``blank`` makes an empty state, ``prompt`` takes a prompt in (or the next turn of a
conversation) up to the first new token, ``decode`` runs rounds until every row has
finished or a limit of rounds is reached. ``generate``, ``stream`` and a user's own
``build`` are made of these.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from specjax import checks
from specjax.core import axes, contracts
from specjax.core import history as history_lib
from specjax.core import processors as processors_lib
from specjax.core import round as round_lib
from specjax.core import sampling as sampling_lib
from specjax.core import stats as stats_lib

WIDTHS = (1, 4, 16)
PROMPT_WIDTHS = (16, 64, 128)


class Recipe(NamedTuple):
    """All that is static about a generation, sizes of arrays apart.

    Programs are split over the mesh, if there is one.
    """

    parts: round_lib.Parts
    decode_plan: round_lib.Plan
    prompt_plan: round_lib.Plan
    mesh: jax.sharding.Mesh | None = None


def recipe(
    target: contracts.Target,
    drafter: contracts.Drafter,
    verifier: contracts.Verifier,
    *,
    widths: tuple[int, ...] = WIDTHS,
    prompt_widths: tuple[int, ...] = PROMPT_WIDTHS,
    mesh: jax.sharding.Mesh | None = None,
) -> Recipe:
    """Puts target, drafter and verifier together.

    Args:
      target: the model.
      drafter: what drafts.
      verifier: what decides.
      widths: ladder of decode rounds; a rung that holds the drafter's whole tree is
        added and wider ones are left out.
      prompt_widths: chunks that prompts go in by.
      mesh: that programs are split over, its axes automatic.

    Raises:
      ValueError: the verifier needs laws that the drafter does not give or tests
        fewer children of a node than it proposes, or a width is below 1.
      TypeError: widths are no integers.
    """
    if verifier.needs_laws and drafter.bounds.nodes and not drafter.needs.laws:
        raise ValueError(
            "verifier: this rule tests drafts against the laws that they were drawn "
            "from, and this drafter gives none; use the verifier 'exact', or a draft "
            "model with laws (draft_model:...:laws=true)"
        )
    branching = drafter.bounds.branching
    if verifier.branching is not None and branching > verifier.branching:
        raise ValueError(
            f"verifier: this rule tests at most {verifier.branching} children of a "
            f"node and the drafter proposes up to {branching}; use "
            "'without_replacement' or 'exact'"
        )
    for name, values in (("widths", widths), ("prompt_widths", prompt_widths)):
        if not isinstance(values, Sequence):
            raise TypeError(f"{name} must be a list of integers, got {values!r}")
        if not values:
            raise ValueError(f"{name} must be one or more integers, got none")
        for value in values:
            checks.integer("", name, value, 1)
    return Recipe(
        parts=round_lib.Parts(target, drafter, verifier),
        decode_plan=round_lib.decode_plan(drafter, tuple(widths), trunk=1),
        prompt_plan=round_lib.prompt_plan(tuple(prompt_widths)),
        mesh=mesh,
    )


def _on_mesh(function: Callable[..., round_lib.State]):
    """Traces the function on its recipe's mesh and splits the state it returns."""

    @functools.wraps(function)
    def run(recipe: Recipe, *arguments, **named) -> round_lib.State:
        with axes.on(recipe.mesh):
            return axes.constrain_state(
                recipe.mesh, function(recipe, *arguments, **named)
            )

    return run


@_on_mesh
def blank(
    recipe: Recipe, params: contracts.Params, rows: int, capacity: int
) -> round_lib.State:
    """An empty state of ``rows`` rows that have nothing to do.

    No two leaves share a buffer, so the state can be donated.

    Args:
      recipe: static.
      params: {"target", "drafter", "verifier"}.
      rows: B, static.
      capacity: S, slots of history and cache, static.
    """
    vocab = recipe.parts.target.vocab_size

    def zeros(*shape: int, dtype: type = jnp.int32) -> jax.Array:
        return jnp.zeros((rows, *shape), dtype)

    return round_lib.State(
        history=history_lib.empty(rows, capacity),
        cache=recipe.parts.target.init(rows, capacity),
        num_cached=zeros(),
        drafter=recipe.parts.drafter.init(params, rows, capacity),
        processors=processors_lib.ProcessorState(
            in_prompt=zeros(vocab, dtype=jnp.bool_),
            output_count=zeros(vocab),
            num_emitted=zeros(),
            grammar=zeros(),
        ),
        log_prob=zeros(capacity, dtype=jnp.float32),
        rounds=zeros(),
        finish=jnp.full((rows,), round_lib.STOPPED, jnp.int32),
        stats=stats_lib.zeros(
            rows, recipe.parts.drafter, len(recipe.decode_plan.widths)
        ),
    )


def resume(
    recipe: Recipe,
    state: round_lib.State,
    tokens: jax.Array,
    lengths: jax.Array,
    sampling: sampling_lib.Sampling,
) -> round_lib.State:
    """The state at the start of a turn: memos cut back to what still holds.

    Arguments are those of ``prompt``.
    """
    capacity = state.history.tokens.shape[1]
    history = history_lib.create(tokens, lengths, capacity)
    known = history_lib.common_prefix(state.history, history)
    # The last token is always scored again: its logits give the next one.
    num_cached = jnp.minimum(state.num_cached, jnp.minimum(known, lengths - 1))
    num_cached = jnp.maximum(num_cached, 0)
    room = jnp.minimum(sampling.max_new_tokens, capacity - lengths)
    finish = jnp.where(room > 0, round_lib.RUNNING, round_lib.OUT_OF_LENGTH)
    finish = jnp.where(lengths > 0, finish, round_lib.STOPPED).astype(jnp.int32)
    target = recipe.parts.target
    return dataclasses.replace(
        state,
        history=history,
        cache=target.rewind(state.cache, num_cached),
        num_cached=num_cached,
        processors=processors_lib.start(history, sampling, target.vocab_size),
        log_prob=jnp.zeros_like(state.log_prob),
        rounds=jnp.zeros_like(state.rounds),
        finish=finish,
        stats=jax.tree.map(jnp.zeros_like, state.stats),
    )


@_on_mesh
def prompt(
    recipe: Recipe,
    params: contracts.Params,
    state: round_lib.State,
    tokens: jax.Array,
    lengths: jax.Array,
    sampling: sampling_lib.Sampling,
) -> round_lib.State:
    """Takes a turn in: rounds over chunks until each row has one new token.

    What the state's cache already holds of the new tokens is not computed again.

    Args:
      recipe: static.
      params: {"target", "drafter", "verifier"}.
      state: blank, or left by an earlier turn.
      tokens: i32[B, S], whole conversations, padded on the right.
      lengths: i32[B]; 0 leaves a row idle. A row without room for a new token ends
        at once, out of length.
      sampling: parameters of the rows.

    Returns:
      The state after the first new token of each row.
    """
    state = resume(recipe, state, tokens, lengths, sampling)

    def waiting(state):
        running = state.finish == round_lib.RUNNING
        return jnp.any(running & (state.processors.num_emitted == 0))

    return jax.lax.while_loop(
        waiting,
        lambda state: _round(recipe, recipe.prompt_plan, params, state, sampling),
        axes.constrain_state(recipe.mesh, state),
    )


def _round(recipe: Recipe, plan: round_lib.Plan, *arguments) -> round_lib.State:
    after = round_lib.run(recipe.parts, plan, *arguments)
    return axes.constrain_state(recipe.mesh, after)


@_on_mesh
def decode(
    recipe: Recipe,
    params: contracts.Params,
    state: round_lib.State,
    sampling: sampling_lib.Sampling,
    limit: jax.Array,
) -> round_lib.State:
    """Runs rounds until every row has finished or ``limit`` is reached.

    Args:
      recipe: static.
      params: {"target", "drafter", "verifier"}.
      state: left by ``prompt``, or by an earlier ``decode``.
      sampling: parameters of the rows.
      limit: i32[], most rounds.

    Returns:
      The state after them.
    """

    def going(carry):
        count, state = carry
        return (count < limit) & jnp.any(state.finish == round_lib.RUNNING)

    def step(carry):
        count, state = carry
        return count + 1, _round(recipe, recipe.decode_plan, params, state, sampling)

    return jax.lax.while_loop(going, step, (jnp.int32(0), state))[1]
