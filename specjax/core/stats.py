"""Counters that ride in the carry of the loop."""

import dataclasses

import jax
import jax.numpy as jnp

from specjax.core import contracts
from specjax.core import outcome as outcome_lib
from specjax.core import tree as tree_lib


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Stats:
    """Counts of each row since its prompt was absorbed.

    D is the drafter's depth here, Z its sources, W the widths of the ladder.

    Attributes:
      target_calls: i32[B], rounds in which the row emitted, the one that ends the
        prompt left out.
      drafted: i32[B], draft nodes scored.
      accepted: i32[B], draft nodes whose token was emitted.
      accepted_at: i32[B, D], rounds with at least d + 1 accepted.
      drafted_by: i32[B, Z], nodes scored, by source.
      accepted_by: i32[B, Z], nodes on the kept path, by source.
      rung: i32[B, W], rounds of the row at each width of the ladder.
    """

    target_calls: jax.Array  # i32[B]
    drafted: jax.Array  # i32[B]
    accepted: jax.Array  # i32[B]
    accepted_at: jax.Array  # i32[B, D]
    drafted_by: jax.Array  # i32[B, Z]
    accepted_by: jax.Array  # i32[B, Z]
    rung: jax.Array  # i32[B, W]


def zeros(rows: int, drafter: contracts.Drafter, rungs: int) -> Stats:
    """Counters at zero.

    Args:
      rows: B.
      drafter: for its depth and sources.
      rungs: W.
    """

    def blank(*shape: int) -> jax.Array:
        return jnp.zeros((rows, *shape), jnp.int32)

    return Stats(
        target_calls=blank(),
        drafted=blank(),
        accepted=blank(),
        accepted_at=blank(drafter.bounds.depth),
        drafted_by=blank(len(drafter.sources)),
        accepted_by=blank(len(drafter.sources)),
        rung=blank(rungs),
    )


def record(
    stats: Stats,
    tree: tree_lib.TokenTree,
    outcome: outcome_lib.Outcome,
    drafter: contracts.Drafter,
    rung: jax.Array,
) -> Stats:
    """Counts one decode round.

    Args:
      stats: before the round.
      tree: the tree that was scored.
      outcome: its verdict.
      drafter: for its sources.
      rung: i32[], index of the width that ran.
    """
    ran = (outcome.num_new > 0).astype(jnp.int32)
    drafts = tree_lib.draft_mask(tree) & (ran > 0)[:, None]
    accepted = (outcome.num_path - tree.num_trunk) * ran
    depth = jnp.arange(stats.accepted_at.shape[1], dtype=jnp.int32)[None, :]
    kept = outcome_lib.on_path(outcome, tree.slots) & drafts
    drafted_by, accepted_by = [], []
    first = 0
    for source in drafter.sources:
        mine = (tree.tag >= first) & (tree.tag < first + source.num_tags)
        drafted_by.append(jnp.sum(drafts & mine, axis=1, dtype=jnp.int32))
        accepted_by.append(jnp.sum(kept & mine, axis=1, dtype=jnp.int32))
        first += source.num_tags
    rungs = jnp.arange(stats.rung.shape[1], dtype=jnp.int32)[None, :]
    return dataclasses.replace(
        stats,
        target_calls=stats.target_calls + ran,
        drafted=stats.drafted + jnp.sum(drafts, axis=1, dtype=jnp.int32),
        accepted=stats.accepted + accepted,
        accepted_at=stats.accepted_at + (depth < accepted[:, None]).astype(jnp.int32),
        drafted_by=stats.drafted_by + _stack(drafted_by, stats.drafted_by),
        accepted_by=stats.accepted_by + _stack(accepted_by, stats.accepted_by),
        rung=stats.rung + (rungs == rung).astype(jnp.int32) * ran[:, None],
    )


def _stack(columns: list[jax.Array], like: jax.Array) -> jax.Array:
    return jnp.stack(columns, axis=1) if columns else jnp.zeros_like(like)
