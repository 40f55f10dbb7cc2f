"""A decoder is a drafter: a second model decodes ahead, itself speculating.

The inner decoder runs the same round as the outer one, over a cache of its own.
Its state is a memo of the history: before it drafts it is cut back to the common
prefix with what was really committed, and whatever it lacks it takes in as trunk.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp

from specjax.core import contracts
from specjax.core import history as history_lib
from specjax.core import round as round_lib
from specjax.core import stats as stats_lib
from specjax.core import tree as tree_lib
from specjax.drafters.none import none
from specjax.verify.exact import exact

_WIDTHS = (1, 2, 8)  # ladder of the inner decoder
_PROMPT_WIDTHS = (64,)


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


@functools.cache
def speculate(
    model: contracts.Target,
    *,
    drafter: contracts.Drafter | None = None,
    max_draft: int = 4,
    name: str = "draft_model",
) -> contracts.Drafter:
    """Drafts a chain by decoding with another model.

    Tokens are drawn with the target's own noise, so that at any temperature both
    models pick the same token wherever their laws agree (Gumbel coupling).

    Args:
      model: the inner target; same vocabulary as the outer one.
      drafter: the inner drafter, ``none()`` by default.
      max_draft: tokens drafted a round.
      name: of the source in the statistics.

    Params: {"model": params of ``model``, "drafter": params of the inner drafter}.

    Raises:
      ValueError: ``max_draft`` is below 1.

    Source: speculative decoding (Leviathan et al. 2023); nested, the vertical cascade
    of Cascade Speculative Drafting.
    """
    if max_draft < 1:
        raise ValueError(f"speculate: max_draft must be at least 1, got {max_draft}")
    inner = none() if drafter is None else drafter
    parts = round_lib.Parts(model, inner, exact())
    decode_plan = round_lib.decode_plan(inner, _WIDTHS, trunk=max(_WIDTHS))
    prompt_plan = round_lib.prompt_plan(_PROMPT_WIDTHS)
    rungs = len(decode_plan.widths)
    bounds = contracts.Bounds(nodes=max_draft, depth=max_draft, branching=1)

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
        text = history_lib.append(view.history, *tree_lib.spine_tokens(tree))
        wanted = jnp.minimum(view.room - 1, max_draft)
        sampling = dataclasses.replace(
            view.sampling, max_new_tokens=view.processors.num_emitted + wanted
        )

        def step(run):
            return round_lib.run(
                parts, decode_plan, inner_params(params), run, sampling
            )

        run = jax.lax.while_loop(
            lambda run: jnp.any(run.finish == round_lib.RUNNING),
            step,
            _follow(parts, rungs, state, view, text),
        )
        at = text.length[:, None] + jnp.arange(max_draft, dtype=jnp.int32)[None]
        at = jnp.minimum(at, text.tokens.shape[1] - 1)
        tree = tree_lib.append_chain(
            tree,
            token=jnp.take_along_axis(run.history.tokens, at, axis=1),
            count=run.history.length - text.length,
            confidence=jnp.exp(jnp.take_along_axis(run.log_prob, at, axis=1)),
            anchor=tree_lib.spine_end(tree),
        )
        return tree, _remember(run)

    def observe(params, state, view, tree, outcome):
        """Takes prompts in; decode rounds are left to the next ``propose``."""
        del tree, outcome
        if view.decoding:
            return state
        # All but the last token, which is the trunk of the first draft.
        text = dataclasses.replace(
            view.history, length=jnp.maximum(view.history.length - 1, 0)
        )
        run = _follow(parts, rungs, state, view, text)
        running = jnp.full_like(run.finish, round_lib.RUNNING)
        run = dataclasses.replace(run, finish=running)
        silent = dataclasses.replace(
            view.sampling, max_new_tokens=jnp.zeros_like(view.sampling.max_new_tokens)
        )
        run = jax.lax.while_loop(
            lambda run: jnp.any(run.num_cached < run.history.length),
            lambda run: round_lib.run(
                parts, prompt_plan, inner_params(params), run, silent
            ),
            run,
        )
        return _remember(run)

    return contracts.Drafter(
        init=init,
        propose=propose,
        observe=observe,
        bounds=bounds,
        needs=contracts.Needs(),
        sources=(contracts.Source(name, max_draft),),
    )


def _follow(
    parts: round_lib.Parts,
    rungs: int,
    state: SpeculateState,
    view: contracts.View,
    history: history_lib.History,
) -> round_lib.State:
    """The inner decoder at the end of ``history``, cut back to what that confirms.

    Rows that the view leaves no room to draft in are idle.
    """
    known = history_lib.common_prefix(state.history, history)
    # The last committed token is always scored again: a row that lacks none of
    # its history would never be ready to draft.
    known = jnp.minimum(known, jnp.maximum(view.history.length - 1, 0))
    num_cached = jnp.minimum(state.num_cached, known)
    rows, slots = history.tokens.shape
    idle = view.room <= 1
    return round_lib.State(
        history=history,
        cache=parts.target.rewind(state.cache, num_cached),
        num_cached=num_cached,
        drafter=state.drafter,
        processors=view.processors,
        log_prob=jnp.zeros((rows, slots), jnp.float32),
        rounds=jnp.zeros((rows,), jnp.int32),
        finish=jnp.where(idle, round_lib.STOPPED, round_lib.RUNNING).astype(jnp.int32),
        stats=stats_lib.zeros(rows, parts.drafter, rungs),
    )


def _remember(run: round_lib.State) -> SpeculateState:
    return SpeculateState(
        history=run.history,
        cache=run.cache,
        num_cached=run.num_cached,
        drafter=run.drafter,
    )
