"""A decoder is a drafter: a second model decodes ahead, itself speculating."""

import dataclasses

import jax
import jax.numpy as jnp

from specjax import cached, checks
from specjax.core import contracts, noise
from specjax.core import round as round_lib
from specjax.core import tree as tree_lib
from specjax.drafters.compose import emission
from specjax.drafters.compose import inner as inner_lib
from specjax.verify.lenient import check_lenience

_LEAST = 1e-6  # of a confidence


@cached.cached
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
      TypeError: an argument is of the wrong kind.

    Source: speculative decoding (Leviathan et al. 2023); nested, the vertical cascade
    of Cascade Speculative Drafting (Chen et al. 2023), which knows lenient reviews at
    temperature 0 alone.
    """
    if not isinstance(model, contracts.Target):
        raise TypeError(
            f"speculate: model must be a Target, as a loaded model's .model.target is, "
            f"got {model!r:.80}"
        )
    if not isinstance(drafter, contracts.Drafter | None):
        raise TypeError(f"speculate: drafter must be a Drafter, got {drafter!r:.80}")
    checks.at_least("speculate", 1, max_draft=max_draft)
    check_lenience("speculate", lenience)
    inner = inner_lib.make(
        model,
        drafter,
        max_draft=max_draft,
        lenience=lenience,
        laws=laws,
        once=once,
    )
    most = inner.max_draft

    def init(params, rows, capacity):
        return inner_lib.init(inner, params, rows, capacity)

    def propose(params, state, view, tree):
        return _draft(inner, params, state, view, tree)

    def observe(params, state, view, tree, outcome):
        """Takes prompts in; decode rounds are left to the next ``propose``."""
        del tree, outcome
        return state if view.decoding else inner_lib.read(inner, params, state, view)

    return contracts.Drafter(
        init=init,
        propose=propose,
        observe=observe,
        bounds=contracts.Bounds(nodes=most, depth=most, branching=1),
        needs=contracts.Needs(laws=laws),
        sources=(contracts.Source(name, most),),
    )


def _draft(
    inner: inner_lib.Decoder,
    params: contracts.Params,
    state: inner_lib.InnerState,
    view: contracts.View,
    tree: tree_lib.TokenTree,
) -> tuple[tree_lib.TokenTree, inner_lib.InnerState]:
    """The tree with what the inner decoder says next, and what it remembers then."""
    ahead = inner_lib.look_ahead(inner.model, view, tree, inner.max_draft)
    start = ahead.text.length
    sampling = dataclasses.replace(
        view.sampling, max_new_tokens=ahead.processors.num_emitted + ahead.wanted
    )
    if inner.laws:
        key = noise.lane(view.sampling.key, noise.LANE_DRAFT, view.rounds)
        sampling = dataclasses.replace(sampling, key=key)
        state = _begin_record(inner, state, view, start)
    # The last token is scored again: a row that lacks none is never ready.
    run = inner_lib.follow(inner, inner.parts, state, view, ahead, start - 1)
    run = inner_lib.decode(inner, params, run, sampling, start)
    tree = _append(inner, tree, run, start)
    return tree, inner_lib.remember(
        run, run.drafter.child if inner.laws else run.drafter
    )


def _append(
    inner: inner_lib.Decoder,
    tree: tree_lib.TokenTree,
    run: round_lib.State,
    start: jax.Array,
) -> tree_lib.TokenTree:
    """Appends the tokens from position ``start`` i32[B] on, with their laws if kept."""
    link = jnp.arange(inner.max_draft, dtype=jnp.int32)
    at = start[:, None] + link[None]
    at = jnp.minimum(at, run.history.tokens.shape[1] - 1)
    chance = jnp.exp(jnp.take_along_axis(run.log_prob, at, axis=1))
    return tree_lib.append_chain(
        tree,
        token=jnp.take_along_axis(run.history.tokens, at, axis=1),
        count=run.history.length - start,
        confidence=jnp.clip(chance, _LEAST, 1.0),
        anchor=tree_lib.spine_end(tree),
        law=link if inner.laws else None,
        laws=run.drafter.laws if inner.laws else None,
    )


def _begin_record(
    inner: inner_lib.Decoder, state: inner_lib.InnerState, view, start
) -> inner_lib.InnerState:
    """The state with room for the laws of what will be drafted."""
    shape = (start.shape[0], inner.max_draft, inner.model.vocab_size)
    record = emission.Record(
        child=state.drafter,
        key=view.sampling.key,
        start=start,
        laws=jnp.zeros(shape, jnp.float32),
    )
    return dataclasses.replace(state, drafter=record)
