"""One round of drafting, scoring, verifying and committing, and its state.

    tree    = trunk(history, num_cached)          tokens that the cache lacks
    tree    = propose(tree)                       drafts
    scored  = forward(tree, cache)                reads the cache only
    verdict = verify(tree, scored)                walks the emitted path
    cache   = commit(cache, rows of the path)     the only write
    history = extend(history, emitted tokens)
    drafter = observe(tree, outcome)

Prefill, decoding, a row that joins, a second turn and a draft model that
catches up are all this function; they differ in the static ``Plan`` alone.
The forward runs inside a `lax.switch` over the widths of the ladder; the cache is
written outside, because a switch whose branches write it would copy it, and the walk
stands outside too, so that it is compiled once and not once a width.
"""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from specjax.core import contracts, reading
from specjax.core import history as history_lib
from specjax.core import outcome as outcome_lib
from specjax.core import processors as processors_lib
from specjax.core import sampling as sampling_lib
from specjax.core import stats as stats_lib
from specjax.core import tree as tree_lib

RUNNING, STOPPED, OUT_OF_LENGTH = 0, 1, 2
_TOP_SLOTS = 16  # slots whose logits are held at once, to find the best ids


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class State:
    """All that a generation carries from round to round.

    Attributes:
      history: prompt and emitted tokens.
      cache: the target's, opaque.
      num_cached: i32[B], leading tokens of the history that the cache holds.
      drafter: the drafter's state, opaque.
      processors: logit processors at the end of the history.
      log_prob: f32[B, S], of each emitted token, at its history position.
      rounds: i32[B], rounds that the row went through.
      finish: i32[B], RUNNING, STOPPED or OUT_OF_LENGTH.
      stats: counters.
    """

    history: history_lib.History
    cache: contracts.Cache
    num_cached: jax.Array  # i32[B]
    drafter: contracts.DrafterState
    processors: processors_lib.ProcessorState
    log_prob: jax.Array  # f32[B, S]
    rounds: jax.Array  # i32[B]
    finish: jax.Array  # i32[B]
    stats: stats_lib.Stats


class Parts(NamedTuple):
    """The three things that a round is made of."""

    target: contracts.Target
    drafter: contracts.Drafter
    verifier: contracts.Verifier


class Plan(NamedTuple):
    """Static shape of a round.

    Attributes:
      widths: the ladder, ascending: the smallest width that holds the longest tree
        of the batch is scored.
      trunk: most committed tokens that a round takes in.
      decoding: whether the drafter proposes and the round is counted; prompts go in
        without.
    """

    widths: tuple[int, ...]
    trunk: int
    decoding: bool


def decode_plan(
    drafter: contracts.Drafter, widths: tuple[int, ...], trunk: int
) -> Plan:
    """The plan of decode rounds: the ladder cut to what the drafter can fill.

    Args:
      drafter: for its bounds.
      widths: the ladder wished for, in any order.
      trunk: most committed tokens that a round takes in.
    """
    slots = trunk + drafter.bounds.nodes
    rungs = sorted({min(width, slots) for width in widths} | {trunk})
    if rungs[-1] < slots:
        rungs.append(slots)
    return Plan(widths=tuple(rungs), trunk=trunk, decoding=True)


def prompt_plan(widths: tuple[int, ...]) -> Plan:
    """The plan of rounds that take prompts in, in chunks of these widths."""
    return Plan(widths=tuple(sorted(widths)), trunk=max(widths), decoding=False)


def run(
    parts: Parts,
    plan: Plan,
    params: contracts.Params,
    state: State,
    sampling: sampling_lib.Sampling,
) -> State:
    """Runs one round.

    Args:
      parts: target, drafter, verifier; static.
      plan: static shape.
      params: {"target", "drafter", "verifier"}.
      state: before the round; its cache should be donated by the caller's jit.
      sampling: parameters of the rows.

    Returns:
      The state after it.
    """
    view = _view(plan, state, sampling)
    count, ready = _trunk_size(plan, state)
    slots = plan.widths[-1]
    tree = tree_lib.trunk(state.history, state.num_cached, count, slots)
    drafter_state = state.drafter
    view = dataclasses.replace(view, room=jnp.where(ready, view.room, 0))
    if plan.decoding:
        grown, drafter_state = parts.drafter.propose(params, drafter_state, view, tree)
        nodes = jnp.where(ready, grown.num_nodes, count)
        tree = dataclasses.replace(grown, num_nodes=nodes)

    scored, top_ids, rung = _score(parts, plan, params, tree, state)
    depth = parts.drafter.bounds.depth if plan.decoding else 0
    logits_at = reading.logits_at(
        functools.partial(parts.target.head, params["target"]),
        scored.hidden,
        tree,
        parts.target.head_rows(params["target"]) if depth else 1,
    )
    verdict = parts.verifier.verify(logits_at, tree, view, ready, depth)
    length = plan.trunk + depth
    outcome = _complete(verdict.outcome, scored, top_ids, length, state, tree)
    verdict = verdict._replace(outcome=outcome)
    branched = plan.decoding and parts.drafter.bounds.branching > 1
    cache = parts.target.commit(
        state.cache,
        scored.rows,
        outcome.path_slot if branched else None,  # a chain lies in order
        state.num_cached,
        outcome.num_path,
    )
    after = _advance(state, cache, verdict, tree, sampling)
    if plan.decoding:
        counted = stats_lib.record(state.stats, tree, outcome, parts.drafter, rung)
        after = dataclasses.replace(after, stats=counted)
    seen = dataclasses.replace(_view(plan, after, sampling), start=state.num_cached)
    drafter_state = parts.drafter.observe(params, drafter_state, seen, tree, outcome)
    return dataclasses.replace(after, drafter=drafter_state)


def _view(plan: Plan, state: State, sampling: sampling_lib.Sampling) -> contracts.View:
    """What the drafter and the verifier may read of the state."""
    budget = sampling.max_new_tokens - state.processors.num_emitted
    free = state.history.tokens.shape[1] - state.history.length
    running = state.finish == RUNNING
    room = jnp.where(running, jnp.maximum(jnp.minimum(budget, free), 0), 0)
    return contracts.View(
        history=state.history,
        sampling=sampling,
        processors=state.processors,
        start=state.num_cached,
        room=room,
        rounds=state.rounds,
        decoding=plan.decoding,
    )


def _trunk_size(plan: Plan, state: State) -> tuple[jax.Array, jax.Array]:
    """How many tokens each row feeds, and whether that reaches its history's end.

    Rows are aligned at the end: a short prompt waits while longer ones go in, so
    that all of them draw their first token in the same round.
    """
    running = state.finish == RUNNING
    lacking = jnp.where(running, state.history.length - state.num_cached, 0)
    later = jnp.maximum(jnp.max(lacking) - plan.trunk, 0)
    count = jnp.clip(lacking - later, 0, plan.trunk)
    return count, running & (count == lacking) & (count > 0)


def _score(parts, plan, params, tree, state):
    """One forward over the smallest width that holds the nodes.

    Returns:
      Scored and top ids (or None), padded to all slots, and the rung that ran.
    """
    needs, slots = parts.drafter.needs, plan.widths[-1]
    top_k = needs.top_k if plan.decoding or needs.prompt_top_k else 0

    def branch(width: int):
        def forward(tree, cache):
            small = tree_lib.cut(tree, width)
            scored = parts.target.forward(
                params["target"], small, cache, state.num_cached, needs.features
            )
            top_ids = None
            if top_k:
                head = functools.partial(parts.target.head, params["target"])
                top_ids = _top_ids(head, scored.hidden, top_k)
            rows = parts.target.pad(scored.rows, slots)
            dense = (scored.hidden, scored.features, top_ids)
            dense = jax.tree.map(lambda x: _pad_slots(x, slots), dense)
            return contracts.Scored(dense[0], dense[1], rows), dense[2]

        return forward

    branches = [branch(width) for width in plan.widths]
    if len(branches) == 1:
        return *branches[0](tree, state.cache), jnp.int32(0)
    widths = jnp.asarray(plan.widths, jnp.int32)
    rung = jnp.searchsorted(widths, jnp.max(tree.num_nodes)).astype(jnp.int32)
    return *jax.lax.switch(rung, branches, tree, state.cache), rung


def _pad_slots(x: jax.Array, slots: int) -> jax.Array:
    return jnp.pad(x, ((0, 0), (0, slots - x.shape[1]), (0, 0)))


def _complete(outcome, scored, top_ids, length, state, tree) -> outcome_lib.Outcome:
    """Cuts the path axis to ``length`` and adds what the drafter asked for.

    Where a prompt goes on in the next chunk, the token after the last trunk node is
    the prompt's own.
    """
    path = jnp.arange(length, dtype=jnp.int32)[None]
    after = jnp.minimum(
        state.num_cached + tree.num_trunk, state.history.tokens.shape[1] - 1
    )
    known = jnp.take_along_axis(state.history.tokens, after[:, None], axis=1)
    cut_off = (outcome.num_new == 0)[:, None] & (path == tree.num_trunk[:, None] - 1)
    cut_off &= (after < state.history.length)[:, None]
    outcome = dataclasses.replace(
        outcome,
        path_slot=outcome.path_slot[:, :length],
        token=jnp.where(cut_off, known, outcome.token[:, :length]),
        log_prob=outcome.log_prob[:, :length],
        top_ids=top_ids,
    )
    if scored.features is None:
        return outcome
    at = outcome.path_slot[:, :, None]
    features = jnp.take_along_axis(scored.features, at, axis=1)
    return dataclasses.replace(outcome, features=features)


def _top_ids(head, hidden: jax.Array, count: int) -> jax.Array:
    """The target's best ids i32[B, N, K] after every slot."""

    def best(block: jax.Array) -> jax.Array:  # f[B, n, E] -> i32[B, n, K]
        rows, slots, width = block.shape
        logits = head(block.reshape(rows * slots, width))
        ids = jax.lax.top_k(logits, count)[1].astype(jnp.int32)
        return ids.reshape(rows, slots, count)

    blocks = range(0, hidden.shape[1], _TOP_SLOTS)
    return jnp.concatenate(
        [best(hidden[:, at : at + _TOP_SLOTS]) for at in blocks], axis=1
    )


def _advance(state, cache, verdict, tree, sampling) -> State:
    """The state after a verdict: history, finish, log-probabilities, counts."""
    outcome = verdict.outcome
    length = outcome.token.shape[1]
    step = jnp.arange(length, dtype=jnp.int32)[None]
    at = jnp.minimum(tree.num_trunk[:, None] - 1 + step, length - 1)
    at = jnp.maximum(at, 0)
    emitted = jnp.take_along_axis(outcome.token, at, axis=1)
    log_prob = jnp.take_along_axis(outcome.log_prob, at, axis=1)
    slots = state.log_prob.shape[1]
    where = jnp.where(
        step < outcome.num_new[:, None], state.history.length[:, None] + step, slots
    )
    log_probs = jax.vmap(lambda row, at, x: row.at[at].set(x, mode="drop"))(
        state.log_prob, where, log_prob
    )
    history = history_lib.append(state.history, emitted, outcome.num_new)
    last = jnp.take_along_axis(
        emitted, jnp.maximum(outcome.num_new - 1, 0)[:, None], axis=1
    )[:, 0]
    spoke = outcome.num_new > 0
    stopped = spoke & sampling_lib.is_stop(sampling, last)
    full = verdict.processors.num_emitted >= sampling.max_new_tokens
    full |= history.length >= history.tokens.shape[1]
    ended = jnp.where(stopped, STOPPED, jnp.where(spoke & full, OUT_OF_LENGTH, RUNNING))
    ended = ended.astype(jnp.int32)
    return dataclasses.replace(
        state,
        history=history,
        cache=cache,
        num_cached=state.num_cached + outcome.num_path,
        processors=verdict.processors,
        log_prob=log_probs,
        rounds=state.rounds + (tree.num_trunk > 0).astype(jnp.int32),
        finish=jnp.where(state.finish == RUNNING, ended, state.finish),
    )
