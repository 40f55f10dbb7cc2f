"""The walk down a tree that every rule shares.

From the end of the trunk: alive nodes of a depth share one context, so one row
of logits serves them; the rule draws a token there and says which children live
on. Processors and noise are computed for this path only, never for the whole tree,
and in the same order and shape as plain decoding computes them; so are logits, but for
a few more where these come at hardly any cost (`reading.logits_at`).
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from pallas_kernels import verify as verify_lib
from specjax.core import contracts, reading
from specjax.core import outcome as outcome_lib
from specjax.core import processors as processors_lib
from specjax.core import sampling as sampling_lib
from specjax.core import tree as tree_lib


class Place(NamedTuple):
    """Where the walk stands: what a rule decides from."""

    logits: jax.Array  # f32[B, V], processed; divide by temperature for the law
    tree: tree_lib.TokenTree
    alive: jax.Array  # bool[B, N], nodes whose tokens were emitted
    position: jax.Array  # i32[B], history position of the token to draw
    round_index: jax.Array  # i32[B]
    sampling: sampling_lib.Sampling


class Step(NamedTuple):
    """What a rule decided."""

    token: jax.Array  # i32[B], emitted
    alive: jax.Array  # bool[B, N], nodes that carry it; none ends the walk


Rule = Callable[[Place], Step]


def children(tree: tree_lib.TokenTree, alive: jax.Array) -> jax.Array:
    """bool[B, N]: draft nodes whose parent is among ``alive`` bool[B, N]."""
    parent = jnp.maximum(tree.parent, 0)
    under = jnp.take_along_axis(alive, parent, axis=1)
    return under & tree_lib.draft_mask(tree)


class _Carry(NamedTuple):
    alive: jax.Array  # bool[B, N]
    running: jax.Array  # bool[B]
    last: jax.Array  # i32[B], deepest slot of the path
    num_kept: jax.Array  # i32[B], drafts on the path
    num_new: jax.Array  # i32[B]
    token: jax.Array  # i32[B, depth + 1]
    log_prob: jax.Array  # f32[B, depth + 1]
    processors: processors_lib.ProcessorState


def walk(
    rule: Rule,
    logits_at: reading.LogitsAt,
    tree: tree_lib.TokenTree,
    view: contracts.View,
    ready: jax.Array,
    depth: int,
) -> contracts.Verdict:
    """Walks from the end of the trunk until the rule finds no node to move to.

    It stops after a stop id and after the last token that a row may emit.

    Args:
      rule: decides one step.
      logits_at: slots i32[B] -> logits f32[B, V] after them.
      tree: what was scored.
      view: history, sampling, processors, room and rounds of each row.
      ready: bool[B], rows that emit.
      depth: most drafts on a path, static.

    Returns:
      The outcome, its path and tokens over all N slots, and the processors moved on
      by what was emitted.
    """
    slot = jnp.arange(tree.slots, dtype=jnp.int32)[None, :]
    end = jnp.maximum(tree.num_trunk - 1, 0)
    rows = end.shape[0]
    carry = _Carry(
        alive=slot == end[:, None],
        running=ready & (view.room > 0),
        last=end,
        num_kept=jnp.zeros((rows,), jnp.int32),
        num_new=jnp.zeros((rows,), jnp.int32),
        token=jnp.zeros((rows, depth + 1), jnp.int32),
        log_prob=jnp.zeros((rows, depth + 1), jnp.float32),
        processors=view.processors,
    )

    def step(carry: _Carry) -> _Carry:
        at = jnp.argmax(carry.alive, axis=1)  # lowest alive slot
        raw = logits_at(at)
        place = Place(
            logits=processors_lib.apply(carry.processors, view.sampling, raw),
            tree=tree,
            alive=carry.alive,
            position=view.history.length + carry.num_new,
            round_index=view.rounds,
            sampling=view.sampling,
        )
        token, alive = rule(place)
        alive &= carry.running[:, None]
        moved = jnp.any(alive, axis=1)
        num_new = carry.num_new + carry.running.astype(jnp.int32)
        ends = sampling_lib.is_stop(view.sampling, token) | (num_new >= view.room)
        here = jnp.arange(depth + 1)[None, :] == carry.num_new[:, None]
        write = here & carry.running[:, None]  # bool[B, depth + 1]
        chosen = jnp.take_along_axis(raw, token[:, None], axis=1)[:, 0]
        log_prob = chosen - verify_lib.log_sum_exp(raw)
        return _Carry(
            alive=alive,
            running=carry.running & moved & ~ends,
            last=jnp.where(moved, jnp.argmax(alive, axis=1), carry.last).astype(
                jnp.int32
            ),
            num_kept=carry.num_kept + moved.astype(jnp.int32),
            num_new=num_new,
            token=jnp.where(write, token[:, None], carry.token),
            log_prob=jnp.where(write, log_prob[:, None], carry.log_prob),
            processors=processors_lib.advance(
                carry.processors, view.sampling, token, carry.running
            ),
        )

    carry = jax.lax.while_loop(lambda c: jnp.any(c.running), step, carry)
    return contracts.Verdict(_outcome(tree, carry), carry.processors)


def _outcome(tree: tree_lib.TokenTree, carry: _Carry) -> outcome_lib.Outcome:
    """Lays the path out: the trunk, then the ancestors of the deepest node."""
    slot = jnp.arange(tree.slots, dtype=jnp.int32)[None, :]
    num_path = tree.num_trunk + carry.num_kept
    on_path = jnp.take_along_axis(
        tree_lib.ancestor_mask(tree), carry.last[:, None, None], axis=1
    )[:, 0]  # bool[B, N]
    at = jnp.where(on_path, tree.depth, tree.slots)
    path_slot = jax.vmap(lambda row, at: row.at[at].set(slot[0], mode="drop"))(
        jnp.zeros_like(tree.token), at
    )
    path_slot = jnp.where(slot < num_path[:, None], path_slot, 0)
    # Token i follows path node i: the next of the trunk, then what was emitted.
    emitted = slot - (tree.num_trunk[:, None] - 1)  # i32[B, N]
    inside = (emitted >= 0) & (emitted < carry.num_new[:, None])
    at = jnp.clip(emitted, 0, carry.token.shape[1] - 1)
    new_token = jnp.take_along_axis(carry.token, at, axis=1)
    trunk_token = jnp.where(
        slot + 1 < tree.num_trunk[:, None], jnp.roll(tree.token, -1, axis=1), 0
    )
    return outcome_lib.Outcome(
        path_slot=path_slot,
        num_path=num_path,
        token=jnp.where(inside, new_token, trunk_token),
        num_new=carry.num_new,
        log_prob=jnp.where(
            inside, jnp.take_along_axis(carry.log_prob, at, axis=1), 0.0
        ),
    )
