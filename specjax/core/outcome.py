"""What a verifier found: the path that is kept and the tokens that follow it."""

import dataclasses

import jax
import jax.numpy as jnp


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """The verdict on one scored tree, per row.

    The path is a chain of tree slots from slot 0: first the trunk, then the
    accepted nodes. ``token[:, i]`` is the token after path node i, so a
    feature drafter finds its pairs (features[i], token[i]) aligned, the bonus
    included. Emitted tokens are ``token[num_trunk - 1 : num_path]``, of which
    ``num_new`` are within stop ids and budget. In a prompt that goes on in the next
    chunk the last token is the prompt's own.

    Attributes:
      path_slot: i32[B, L]; entries at or past ``num_path`` are 0.
      num_path: i32[B], rows to commit to the cache.
      token: i32[B, L]; entries at or past ``num_path`` are 0.
      num_new: i32[B], tokens emitted; 0 where the trunk did not reach the end of
        the history.
      log_prob: f32[B, L], log-probability of ``token`` under the target's own
        logits (temperature 1, no processors); 0 where nothing was emitted.
      features: f[B, L, F] or None, features of the path nodes.
      top_ids: i32[B, N, K] or None, the target's best ids after every node.
    """

    path_slot: jax.Array  # i32[B, L]
    num_path: jax.Array  # i32[B]
    token: jax.Array  # i32[B, L]
    num_new: jax.Array  # i32[B]
    log_prob: jax.Array  # f32[B, L]
    features: jax.Array | None = None  # f[B, L, F]
    top_ids: jax.Array | None = None  # i32[B, N, K]


def on_path(outcome: Outcome, slots: int) -> jax.Array:
    """bool[B, N]: slots of the path, trunk included; N = ``slots`` is static."""
    step = jnp.arange(outcome.path_slot.shape[1], dtype=jnp.int32)[None]
    inside = step < outcome.num_path[:, None]
    blank = jnp.zeros((inside.shape[0], slots), jnp.bool_)
    mark = jax.vmap(lambda row, at, ok: row.at[at].max(ok))
    return mark(blank, outcome.path_slot, inside)
