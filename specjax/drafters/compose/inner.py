"""The decoder inside a drafter: a model that decodes ahead, itself speculating.

It runs the same round as the decoder around it, over a cache of its own. Its state is
a memo of the history: before it drafts it is cut back to the common prefix with what
was really committed, and whatever it lacks it takes in as trunk.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

from specjax.core import contracts
from specjax.core import history as history_lib
from specjax.core import processors as processors_lib
from specjax.core import round as round_lib
from specjax.core import sampling as sampling_lib
from specjax.core import stats as stats_lib
from specjax.core import tree as tree_lib
from specjax.drafters.compose import emission
from specjax.drafters.none import none
from specjax.verify.exact import exact
from specjax.verify.lenient import lenient

_WIDTHS = (1, 2, 8)  # ladder of its rounds
_PROMPT_WIDTHS = (64,)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class InnerState:
    """What the inner decoder remembers.

    Attributes:
      history: tokens that it has seen, its own drafts included.
      cache: its target's cache.
      num_cached: i32[B], leading tokens of ``history`` in the cache.
      drafter: state of its own drafter.
    """

    history: history_lib.History
    cache: contracts.Cache
    num_cached: jax.Array  # i32[B]
    drafter: contracts.DrafterState


class Decoder(NamedTuple):
    """The inner decoder; static.

    Attributes:
      model: its target.
      drafter: its own drafter.
      parts: with the rule of its reviews.
      prompt_parts: for text that it only takes in.
      plan: of its rounds.
      max_draft: most tokens drafted a call.
      laws: whether the laws of its tokens are handed on.
      once: whether a call is one review.
    """

    model: contracts.Target
    drafter: contracts.Drafter
    parts: round_lib.Parts
    prompt_parts: round_lib.Parts
    plan: round_lib.Plan
    max_draft: int
    laws: bool
    once: bool


def make(
    model: contracts.Target,
    drafter: contracts.Drafter | None,
    *,
    max_draft: int,
    lenience: float,
    laws: bool,
    once: bool,
) -> Decoder:
    """The inner decoder by the options of ``speculate``."""
    drafter = none() if drafter is None else drafter
    if once:
        max_draft = min(max_draft, drafter.bounds.depth + 1)
    if laws:
        rule, decoding = emission.lawful(lenience), emission.recorded(drafter)
    else:
        rule = exact() if lenience == 1 else lenient(lenience, coupled=True)
        decoding = drafter
    return Decoder(
        model=model,
        drafter=drafter,
        parts=round_lib.Parts(model, decoding, rule),
        prompt_parts=round_lib.Parts(model, drafter, exact()),
        plan=round_lib.decode_plan(drafter, _WIDTHS, trunk=max(_WIDTHS)),
        max_draft=max_draft,
        laws=laws,
        once=once,
    )


def _params(params: contracts.Params) -> contracts.Params:
    """The params as the inner decoder's parts expect them."""
    own = params["drafter"]
    return {"target": own["model"], "drafter": own["drafter"]}


def init(
    inner: Decoder, params: contracts.Params, rows: int, capacity: int
) -> InnerState:
    """What it remembers before the first round: nothing."""
    return InnerState(
        history=history_lib.empty(rows, capacity),
        cache=inner.model.init(rows, capacity),
        num_cached=jnp.zeros((rows,), jnp.int32),
        drafter=inner.drafter.init(_params(params), rows, capacity),
    )


class Ahead(NamedTuple):
    """Where the inner decoder begins, and how far it may go.

    Attributes:
      text: history and spine.
      processors: at the end of the text.
      wanted: i32[B], tokens to draft, 0 in idle rows.
    """

    text: history_lib.History
    processors: processors_lib.ProcessorState
    wanted: jax.Array


def look_ahead(
    model: contracts.Target,
    view: contracts.View,
    tree: tree_lib.TokenTree,
    max_draft: int,
) -> Ahead:
    """The text with the spine, and how many tokens are wanted behind it.

    Rows are idle that have no room, whose spine ends in a stop id, or whose text is as
    long as the model can read.
    """
    spine, count = tree_lib.spine_tokens(tree)
    count = jnp.minimum(count, view.room)  # What is deeper is of no use.
    text = history_lib.append(view.history, spine, count)
    at = jnp.maximum(count - 1, 0)[:, None]
    last = jnp.take_along_axis(spine, at, axis=1)[:, 0]
    ended = (count > 0) & sampling_lib.is_stop(view.sampling, last)
    wanted = jnp.minimum(view.room - 1 - count, model.max_context - text.length)
    wanted = jnp.where(ended | (text.length == 0), 0, jnp.clip(wanted, 0, max_draft))

    def advance(carry):
        step, processors = carry
        here = jnp.take_along_axis(spine, jnp.full_like(at, step), axis=1)[:, 0]
        processors = processors_lib.advance(
            processors, view.sampling, here, step < count
        )
        return step + 1, processors

    _, processors = jax.lax.while_loop(
        lambda carry: jnp.any(carry[0] < count),
        advance,
        (jnp.int32(0), view.processors),
    )
    return Ahead(text, processors, wanted)


def follow(
    inner: Decoder,
    parts: round_lib.Parts,
    state: InnerState,
    view: contracts.View,
    ahead: Ahead,
    most: jax.Array,
) -> round_lib.State:
    """The inner decoder at the end of a text, cut back to what that confirms.

    Rows of which nothing is wanted are idle; no row keeps more than ``most`` i32[B]
    tokens in its cache.
    """
    text = ahead.text
    known = history_lib.common_prefix(state.history, text)
    num_cached = jnp.minimum(state.num_cached, jnp.minimum(known, most))
    num_cached = jnp.maximum(num_cached, 0)
    rows, slots = text.tokens.shape
    idle = ahead.wanted <= 0
    return round_lib.State(
        history=text,
        cache=parts.target.rewind(state.cache, num_cached),
        num_cached=num_cached,
        drafter=state.drafter,
        processors=ahead.processors,
        log_prob=jnp.zeros((rows, slots), jnp.float32),
        rounds=view.rounds,
        finish=jnp.where(idle, round_lib.STOPPED, round_lib.RUNNING).astype(jnp.int32),
        stats=stats_lib.zeros(rows, parts.drafter, len(inner.plan.widths)),
    )


def remember(run: round_lib.State, drafter: contracts.DrafterState) -> InnerState:
    """What is kept of its rounds; ``drafter`` is the state of its drafter."""
    return InnerState(
        history=run.history,
        cache=run.cache,
        num_cached=run.num_cached,
        drafter=drafter,
    )


def decode(
    inner: Decoder,
    params: contracts.Params,
    run: round_lib.State,
    sampling: sampling_lib.Sampling,
    start: jax.Array,
) -> round_lib.State:
    """Runs rounds until all rows are done; the new tokens begin at ``start`` i32[B]."""

    def step(run):
        run = round_lib.run(inner.parts, inner.plan, _params(params), run, sampling)
        done = inner.once & (run.history.length > start)
        finish = jnp.where(done, round_lib.STOPPED, run.finish)
        return dataclasses.replace(run, finish=finish.astype(jnp.int32))

    return jax.lax.while_loop(
        lambda run: jnp.any(run.finish == round_lib.RUNNING), step, run
    )


def read(
    inner: Decoder, params: contracts.Params, state: InnerState, view: contracts.View
) -> InnerState:
    """Takes in what of a prompt is missing."""
    text = view.history
    ahead = Ahead(text, view.processors, jnp.ones_like(text.length))
    run = follow(inner, inner.prompt_parts, state, view, ahead, text.length)
    plan = round_lib.prompt_plan(_PROMPT_WIDTHS)
    silent = dataclasses.replace(
        view.sampling, max_new_tokens=jnp.zeros_like(view.sampling.max_new_tokens)
    )
    run = jax.lax.while_loop(
        # The last token may wait: it is in the trunk of the first draft anyway.
        lambda run: jnp.any(run.num_cached < run.history.length - 1),
        lambda run: round_lib.run(
            inner.prompt_parts, plan, _params(params), run, silent
        ),
        run,
    )
    return remember(run, run.drafter)
