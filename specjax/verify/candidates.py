"""What the rules share that test candidates against the laws they were drawn from.

One candidate x of law q is kept with probability min(1, p(x) / q(x)); otherwise
the law that is still to be served is norm((p - q)+). Several candidates are tried
in order, each against what the ones before left. Nothing here divides by q, so a
token of probability 0 is never kept, not even by a uniform that is exactly 0.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from specjax.core import noise
from specjax.core import processors as processors_lib
from specjax.core import tree as tree_lib
from specjax.verify import walk


def target_law(logits: jax.Array, temperature: jax.Array) -> jax.Array:
    """Law f32[B, V] of the next token; all on the first best one at temperature 0.

    Args:
      logits: f32[B, V], processed.
      temperature: f32[B].
    """
    best = jnp.argmax(logits, axis=1).astype(jnp.int32)
    greedy = _one_hot(best, logits.shape[1])
    law = jax.nn.softmax(processors_lib.tempered(logits, temperature), axis=1)
    return jnp.where((temperature > 0)[:, None], law, greedy)


def accept(
    law: jax.Array, candidate_law: jax.Array, token: jax.Array, uniform: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Tests one candidate a row.

    Args:
      law: f32[B, V], p.
      candidate_law: f32[B, V], q, what ``token`` was drawn from.
      token: i32[B].
      uniform: f32[B] in [0, 1).

    Returns:
      kept bool[B], ``uniform * q(token) < p(token)``; and the law f32[B, V] left
      for the row if it was not: norm((p - q)+), or p where rounding leaves nothing.

    Source: Leviathan et al. 2023, algorithm 1; Chen et al. 2023, theorem 1.
    """
    chance = _at(law, token)
    kept = uniform * _at(candidate_law, token) < chance
    rest = jnp.maximum(law - candidate_law, 0.0)
    total = jnp.sum(rest, axis=1, keepdims=True)
    safe = jnp.where(total > 0, total, 1.0)
    return kept, jnp.where(total > 0, rest / safe, law)


def sibling_law(
    tree: tree_lib.TokenTree, slot: jax.Array, rejected: jax.Array, vocab_size: int
) -> jax.Array:
    """Law f32[B, V] of a candidate, given the siblings rejected before it.

    Siblings of one parent that name the same row of ``laws`` were drawn from it
    without replacement, so earlier ones are zeroed; those of other rows were drawn
    independently. A point mass, and a token that its law can't yield (the law ran
    out of tokens, and what follows is fixed), is one-hot.

    Args:
      tree: with or without laws.
      slot: i32[B], the candidate.
      rejected: bool[B, N].
      vocab_size: V, static.
    """
    token = _at(tree.token, slot)
    point = _one_hot(token, vocab_size)
    if tree.law is None or tree.laws is None:
        return point
    row = _at(tree.law, slot)
    law = jnp.take_along_axis(tree.laws, jnp.maximum(row, 0)[:, None, None], axis=1)
    law = law[:, 0].astype(jnp.float32)  # f32[B, V]
    together = (tree.law == row[:, None]) & (
        tree.parent == _at(tree.parent, slot)[:, None]
    )
    gone = jnp.where(rejected & together, tree.token, vocab_size)
    law = jax.vmap(lambda row, at: row.at[at].set(0.0, mode="drop"))(law, gone)
    total = jnp.sum(law, axis=1, keepdims=True)
    law = law / jnp.where(total > 0, total, 1.0)
    drawn = (row >= 0) & (_at(law, token) > 0)
    return jnp.where(drawn[:, None], law, point)


class Tried(NamedTuple):
    """What trying the candidates of each row in order came to."""

    slot: jax.Array  # i32[B], the kept one, N if none
    law: jax.Array  # f32[B, V], to draw from where none was kept


class _Carry(NamedTuple):
    step: jax.Array  # i32[]
    rejected: jax.Array  # bool[B, N]
    slot: jax.Array  # i32[B]
    law: jax.Array  # f32[B, V]


def try_in_order(
    law: jax.Array,
    tree: tree_lib.TokenTree,
    candidates: jax.Array,
    uniforms: jax.Array,
) -> Tried:
    """Tries candidates in slot order until one is kept.

    Args:
      law: f32[B, V], p.
      tree: holds their tokens and laws.
      candidates: bool[B, N], nodes that stand for the next token.
      uniforms: f32[B, N]; the i-th candidate of a row is tested by the i-th.

    Source: recursive rejection without replacement, Jeon et al. 2024 and Yang et
    al. 2024; each step is one exact test, so the output law is p by induction.
    """

    def pending(carry: _Carry) -> jax.Array:
        return candidates & ~carry.rejected & (carry.slot == tree.slots)[:, None]

    def step(carry: _Carry) -> _Carry:
        waiting = pending(carry)
        trying = jnp.any(waiting, axis=1)
        slot = jnp.argmax(waiting, axis=1).astype(jnp.int32)  # the lowest
        candidate_law = sibling_law(tree, slot, carry.rejected, law.shape[1])
        kept, rest = accept(
            carry.law, candidate_law, _at(tree.token, slot), uniforms[:, carry.step]
        )
        here = jnp.arange(tree.slots, dtype=jnp.int32)[None, :] == slot[:, None]
        refused = trying & ~kept
        return _Carry(
            step=carry.step + 1,
            rejected=carry.rejected | (here & refused[:, None]),
            slot=jnp.where(trying & kept, slot, carry.slot),
            law=jnp.where(refused[:, None], rest, carry.law),
        )

    carry = _Carry(
        step=jnp.int32(0),
        rejected=jnp.zeros_like(candidates),
        slot=jnp.full(law.shape[:1], tree.slots, jnp.int32),
        law=law,
    )
    carry = jax.lax.while_loop(lambda c: jnp.any(pending(c)), step, carry)
    return Tried(carry.slot, carry.law)


def decide(place: walk.Place, *, first_only: bool) -> walk.Step:
    """One step of the walk: try the children, else draw from what is left.

    The tests and the draw come from lanes of their own, keyed by (round, position).
    Only the kept node lives on, not a twin that carries its token: the twins'
    children may have been drawn by one noise.

    Args:
      place: where the walk stands.
      first_only: tries the first child alone, static.
    """
    tree = place.tree
    slot = jnp.arange(tree.slots, dtype=jnp.int32)
    candidates = walk.children(tree, place.alive)
    if first_only:
        first = jnp.argmax(candidates, axis=1).astype(jnp.int32)
        candidates &= slot[None, :] == first[:, None]
    law = target_law(place.logits, place.sampling.temperature)
    key = noise.lane(place.sampling.key, noise.LANE_ACCEPT, place.round_index)
    uniforms = noise.uniform(key, place.position, slot)
    tried = try_in_order(law, tree, candidates, uniforms)
    none = tried.slot == tree.slots
    drawn = _draw(tried.law, place, none)
    kept_token = _at(tree.token, jnp.minimum(tried.slot, tree.slots - 1))
    return walk.Step(
        token=jnp.where(none, drawn, kept_token),
        alive=slot[None, :] == tried.slot[:, None],
    )


def draw_without_replacement(
    law: jax.Array, key: jax.Array, position: jax.Array, count: int
) -> jax.Array:
    """Draws distinct candidates for one position: Gumbel top-k, in order of drawing.

    x_1 ~ q, x_2 ~ norm(q without x_1), and so on; the order matters to the rules
    and must be kept in the tree. Ids that q rules out come last, lowest first.

    Args:
      law: f32[B, V], q.
      key: u32[B, 2], ``noise.lane(sampling.key, noise.LANE_DRAFT, round_index)``.
      position: i32[B], history position of the token that they stand for.
      count: candidates, static, 1 to V.

    Returns:
      i32[B, count].

    Raises:
      ValueError: ``count`` is out of range.

    Source: Kool et al. 2019, "Stochastic beams and where to find them", section 2.
    """
    vocab_size = law.shape[1]
    if not 1 <= count <= vocab_size:
        raise ValueError(
            f"draw_without_replacement: count must be 1 to V={vocab_size}, got {count}"
        )
    ids = jnp.arange(vocab_size, dtype=jnp.int32)
    scores = jnp.log(law) + noise.gumbel(key, position, ids)
    return jax.lax.top_k(scores, count)[1].astype(jnp.int32)


def _draw(law: jax.Array, place: walk.Place, wanted: jax.Array) -> jax.Array:
    """Draws i32[B] from f32[B, V]; the noise is skipped where nobody needs it."""
    ids = jnp.arange(law.shape[1], dtype=jnp.int32)

    def perturb(scores: jax.Array) -> jax.Array:
        key = noise.lane(place.sampling.key, noise.LANE_RESIDUAL, place.round_index)
        return scores + noise.gumbel(key, place.position, ids)

    sampled = jnp.any(wanted & (place.sampling.temperature > 0))
    scores = jax.lax.cond(sampled, perturb, lambda x: x, jnp.log(law))
    return jnp.argmax(scores, axis=1).astype(jnp.int32)


def _one_hot(token: jax.Array, vocab_size: int) -> jax.Array:
    ids = jnp.arange(vocab_size, dtype=jnp.int32)[None, :]
    return (ids == token[:, None]).astype(jnp.float32)


def _at(rows: jax.Array, index: jax.Array) -> jax.Array:
    """The entry [B] of each row [B, N] at its index [B]."""
    return jnp.take_along_axis(rows, index[:, None], axis=1)[:, 0]
