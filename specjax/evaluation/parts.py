"""What a drafter itself costs: memory, and the time of propose and observe."""

import dataclasses
import statistics
import time
from typing import Any

import jax
import jax.numpy as jnp

from specjax.core import axes, contracts
from specjax.core import history as history_lib
from specjax.core import outcome as outcome_lib
from specjax.core import processors as processors_lib
from specjax.core import tree as tree_lib
from specjax.decoding import build
from specjax.decoding import engine as engine_lib
from specjax.drafters.lookup import table as table_lib

_REPEATS = 15


def measure(engine: engine_lib.Engine, capacity: int) -> dict[str, Any]:
    """Times a drafter's two functions on one row, half of whose slots are taken.

    On a mesh there is a row for each of its data parts.

    Args:
      engine: holds the drafter.
      capacity: slots of history, cache and state.

    Returns:
      drafter_mb (state and weights, 10^6 bytes), propose_ms and observe_ms (medians,
      the best ids of the target not among them).
    """
    held, recipe = engine.programs, engine.programs.recipe
    capacity = build.round_capacity(capacity)
    rows = held.rows(1)
    with axes.on(recipe.mesh):
        return _measure(engine, rows, capacity)


def _measure(engine, rows: int, capacity: int) -> dict[str, Any]:
    held, recipe = engine.programs, engine.programs.recipe
    drafter = recipe.parts.drafter
    state = drafter.init(held.params, rows, capacity)
    size = table_lib.megabytes((state, held.params["drafter"]))
    view = _view(engine, rows, capacity)
    slots = recipe.decode_plan.widths[-1]
    tree = trunk(view, slots)
    propose = jax.jit(drafter.propose)
    observe = jax.jit(drafter.observe)
    grown, state = propose(held.params, state, view, tree)
    outcome = _outcome(engine, rows, slots)
    seen = after(view)
    return {
        "drafter_mb": size,
        "propose_ms": _median_ms(lambda: propose(held.params, state, view, tree)),
        "observe_ms": _median_ms(
            lambda: observe(held.params, state, seen, grown, outcome)
        ),
    }


def trunk(view: contracts.View, slots: int) -> tree_lib.TokenTree:
    """The tree of a decode round before anything is drafted."""
    one = jnp.ones_like(view.start)
    return tree_lib.trunk(view.history, view.start, one, slots)


def after(view: contracts.View) -> contracts.View:
    """The view of ``observe`` in which the last token is the one just emitted."""
    return dataclasses.replace(view, start=view.start - 1)


def _view(engine, rows: int, capacity: int) -> contracts.View:
    """Rows whose text repeats itself after a while, so that lookups find matches."""
    length = jnp.full((rows,), capacity // 2, jnp.int32)
    vocab = engine.lm.model.config.vocab_size
    text = (jnp.arange(capacity // 2, dtype=jnp.int32)[None] * 7919 % 61) % vocab
    text = jnp.tile(text, (rows, 1))
    history = history_lib.create(text, length, capacity)
    sampling = build.sampling(rows, max_new_tokens=capacity)
    return contracts.View(
        history=history,
        sampling=sampling,
        processors=processors_lib.start(history, sampling, vocab),
        start=length - 1,
        room=length,
        rounds=jnp.zeros((rows,), jnp.int32),
    )


def _outcome(engine, rows: int, slots: int) -> outcome_lib.Outcome:
    """One token emitted after the trunk, no draft accepted."""
    drafter = engine.programs.recipe.parts.drafter
    length = 1 + drafter.bounds.depth
    blank = jnp.zeros((rows, length), jnp.int32)
    outcome = outcome_lib.Outcome(
        path_slot=blank,
        num_path=jnp.ones((rows,), jnp.int32),
        token=blank,
        num_new=jnp.ones((rows,), jnp.int32),
        log_prob=blank.astype(jnp.float32),
    )
    needs = drafter.needs
    if needs.top_k:
        ids = jnp.arange(needs.top_k, dtype=jnp.int32)[None, None]
        outcome = dataclasses.replace(
            outcome, top_ids=jnp.broadcast_to(ids, (rows, slots, needs.top_k))
        )
    if needs.features:
        width = len(needs.features) * engine.lm.model.config.embed_size
        features = jnp.zeros((rows, length, width), engine.lm.model.dtype)
        outcome = dataclasses.replace(outcome, features=features)
    return outcome


def _median_ms(run) -> float:
    jax.block_until_ready(run())
    times = []
    for _ in range(_REPEATS):
        began = time.perf_counter()
        jax.block_until_ready(run())
        times.append(time.perf_counter() - began)
    return 1e3 * statistics.median(times)
