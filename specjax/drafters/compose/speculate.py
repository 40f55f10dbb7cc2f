"""A decoder is a drafter: a second model decodes ahead, itself speculating.

The inner decoder runs the same round as the outer one, over a cache of its own.
Its state is a memo of the history: before it drafts it is cut back to the common
prefix with what was really committed, and whatever it lacks it takes in as trunk.
"""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from specjax.core import contracts, noise
from specjax.core import history as history_lib
from specjax.core import processors as processors_lib
from specjax.core import round as round_lib
from specjax.core import sampling as sampling_lib
from specjax.core import stats as stats_lib
from specjax.core import tree as tree_lib
from specjax.drafters.compose import emission
from specjax.drafters.none import none
from specjax.verify.exact import exact
from specjax.verify.lenient import check_lenience, lenient

_WIDTHS = (1, 2, 8)  # ladder of the inner decoder
_PROMPT_WIDTHS = (64,)
_LEAST = 1e-6  # of a confidence


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SpeculateState:
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


class _Ahead(NamedTuple):
    """Where the inner decoder begins, and how far it may go.

    Attributes:
      text: history and spine.
      processors: at the end of the text.
      wanted: i32[B], tokens to draft, 0 in idle rows.
    """

    text: history_lib.History
    processors: processors_lib.ProcessorState
    wanted: jax.Array


@functools.cache
def speculate(
    model: contracts.Target,
    *,
    drafter: contracts.Drafter | None = None,
    max_draft: int = 4,
    lenience: float = 1.0,
    laws: bool = False,
    once: bool = False,
    name: str = "draft_model",
) -> contracts.Drafter:
    """Drafts a chain by decoding with another model.

    Tokens are drawn with the target's own noise, so that at any temperature both
    models pick the same token wherever their laws agree (Gumbel coupling). However
    they are drawn and reviewed in here, the review by the target decides.

    Args:
      model: the inner target; same vocabulary as the outer one.
      drafter: the inner drafter, ``none()`` by default.
      max_draft: most tokens drafted a call.
      lenience: what the inner review allows its drafts, see ``verify.lenient``; with 1
        it is exact.
      laws: hands on the law of every token, for rules that need laws. Tokens are
        then drawn in a lane of noise of their own; the law takes the inner drafts as
        given, whatever drafter makes them.
      once: a call is one review, which adds at least one token, not as many as it
        takes to draft ``max_draft``.
      name: of the source in the statistics.

    Params: {"model": params of ``model``, "drafter": params of the inner drafter}.

    Raises:
      ValueError: ``max_draft`` or ``lenience`` is below 1, or the latter not finite.

    Source: speculative decoding (Leviathan et al. 2023); nested, the vertical cascade
    of Cascade Speculative Drafting (Chen et al. 2023), which knows lenient reviews at
    temperature 0 alone.
    """
    if max_draft < 1:
        raise ValueError(f"speculate: max_draft must be at least 1, got {max_draft}")
    check_lenience("speculate", lenience)
    inner = none() if drafter is None else drafter
    if once:
        max_draft = min(max_draft, inner.bounds.depth + 1)
    if laws:
        rule, decoding = emission.lawful(lenience), emission.recorded(inner)
    else:
        rule = exact() if lenience == 1 else lenient(lenience, coupled=True)
        decoding = inner
    parts = round_lib.Parts(model, decoding, rule)
    prompt_parts = round_lib.Parts(model, inner, exact())
    decode_plan = round_lib.decode_plan(inner, _WIDTHS, trunk=max(_WIDTHS))
    prompt_plan = round_lib.prompt_plan(_PROMPT_WIDTHS)
    rungs = len(decode_plan.widths)

    def inner_params(params):
        own = params["drafter"]
        return {"target": own["model"], "drafter": own["drafter"]}

    def init(params, rows, capacity):
        return SpeculateState(
            history=history_lib.empty(rows, capacity),
            cache=model.init(rows, capacity),
            num_cached=jnp.zeros((rows,), jnp.int32),
            drafter=inner.init(inner_params(params), rows, capacity),
        )

    def propose(params, state, view, tree):
        ahead = _look_ahead(model, view, tree, max_draft)
        start = ahead.text.length
        sampling = dataclasses.replace(
            view.sampling, max_new_tokens=ahead.processors.num_emitted + ahead.wanted
        )
        if laws:
            key = noise.lane(view.sampling.key, noise.LANE_DRAFT, view.rounds)
            sampling = dataclasses.replace(sampling, key=key)
            state = _begin_record(model, state, view, start, max_draft)

        def step(run):
            run = round_lib.run(parts, decode_plan, inner_params(params), run, sampling)
            done = once & (run.history.length > start)
            finish = jnp.where(done, round_lib.STOPPED, run.finish)
            return dataclasses.replace(run, finish=finish.astype(jnp.int32))

        run = jax.lax.while_loop(
            lambda run: jnp.any(run.finish == round_lib.RUNNING),
            step,
            # The last token is scored again: a row that lacks none is never ready.
            _follow(parts, rungs, state, view, ahead, start - 1),
        )
        at = start[:, None] + jnp.arange(max_draft, dtype=jnp.int32)[None]
        at = jnp.minimum(at, run.history.tokens.shape[1] - 1)
        chance = jnp.exp(jnp.take_along_axis(run.log_prob, at, axis=1))
        tree = tree_lib.append_chain(
            tree,
            token=jnp.take_along_axis(run.history.tokens, at, axis=1),
            count=run.history.length - start,
            confidence=jnp.clip(chance, _LEAST, 1.0),
            anchor=tree_lib.spine_end(tree),
            law=jnp.arange(max_draft, dtype=jnp.int32) if laws else None,
            laws=run.drafter.laws if laws else None,
        )
        return tree, _remember(run, run.drafter.child if laws else run.drafter)

    def observe(params, state, view, tree, outcome):
        """Takes prompts in; decode rounds are left to the next ``propose``."""
        del tree, outcome
        if view.decoding:
            return state
        text = view.history
        ahead = _Ahead(text, view.processors, jnp.ones_like(text.length))
        run = _follow(prompt_parts, rungs, state, view, ahead, text.length)
        silent = dataclasses.replace(
            view.sampling, max_new_tokens=jnp.zeros_like(view.sampling.max_new_tokens)
        )
        run = jax.lax.while_loop(
            # The last token may wait: it is in the trunk of the first draft anyway.
            lambda run: jnp.any(run.num_cached < run.history.length - 1),
            lambda run: round_lib.run(
                prompt_parts, prompt_plan, inner_params(params), run, silent
            ),
            run,
        )
        return _remember(run, run.drafter)

    return contracts.Drafter(
        init=init,
        propose=propose,
        observe=observe,
        bounds=contracts.Bounds(nodes=max_draft, depth=max_draft, branching=1),
        needs=contracts.Needs(laws=laws),
        sources=(contracts.Source(name, max_draft),),
    )


def _look_ahead(
    model: contracts.Target,
    view: contracts.View,
    tree: tree_lib.TokenTree,
    max_draft: int,
) -> _Ahead:
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
    return _Ahead(text, processors, wanted)


def _begin_record(model, state: SpeculateState, view, start, max_draft: int):
    """The state with room for the laws of what will be drafted."""
    shape = (start.shape[0], max_draft, model.vocab_size)
    record = emission.Record(
        child=state.drafter,
        key=view.sampling.key,
        start=start,
        laws=jnp.zeros(shape, jnp.float32),
    )
    return dataclasses.replace(state, drafter=record)


def _follow(
    parts: round_lib.Parts,
    rungs: int,
    state: SpeculateState,
    view: contracts.View,
    ahead: _Ahead,
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
        stats=stats_lib.zeros(rows, parts.drafter, rungs),
    )


def _remember(run: round_lib.State, drafter) -> SpeculateState:
    return SpeculateState(
        history=run.history,
        cache=run.cache,
        num_cached=run.num_cached,
        drafter=drafter,
    )
