"""A lenient review: drafts that the model itself finds likely enough are kept.

Where the model's law is p and x was drafted, one token is drawn from

    q'(x) = a = min(1, lenience * p(x))        q'(y) = (1 - a) p(y) / (1 - p(x))

which is to keep x with probability a and to draw from the rest of p otherwise. It is
known for each token that is emitted, so that a chain of them can be a draft with laws.
"""

import functools
import math

import jax
import jax.numpy as jnp

from specjax import cached, checks
from specjax.core import contracts, noise, reading
from specjax.core import outcome as outcome_lib
from specjax.core import processors as processors_lib
from specjax.core import tree as tree_lib
from specjax.verify import walk


@cached.cached
def lenient(lenience: float = 3.0, *, coupled: bool = False) -> contracts.Verifier:
    """The lenient rule, for reviews inside a drafter; as the last one it is lossy.

    No token is emitted with more than ``lenience`` times its probability under the
    model. At temperature 0, which leaves no odds, a draft is kept if it is the model's
    best token or has a probability above 1 / ``lenience`` at temperature 1; so only
    above 2 does it make a difference. Of several children of a node the one that the
    model finds likeliest is favoured. With a lenience of 1 nobody is, and the law is
    that of plain decoding.

    Args:
      lenience: l, at least 1.
      coupled: draws with the noise that `exact` draws with, so that what is emitted
        is likeliest to be what an exact review by another model emits; by
        default in a lane of its own, keyed by round.

    Raises:
      ValueError: ``lenience`` is below 1 or not finite.
      TypeError: it is no number, or ``coupled`` is not True or False.

    Source: Cascade Speculative Drafting (Chen et al. 2023), "leniency", after Leviathan
    et al. 2023, appendix A.5. The reference defines it at temperature 0 alone, with
    drafts as point masses; the law for other temperatures is derived here.
    """
    check_lenience("lenient", lenience)

    def rule(place: walk.Place) -> walk.Step:
        children = walk.children(place.tree, place.alive)
        law = emission_law(place, children, lenience)
        token = _draw(law, place, coupled)
        return walk.Step(token, children & (place.tree.token == token[:, None]))

    return contracts.Verifier(
        verify=functools.partial(walk.walk, rule),
        lossless=False,
        same_tokens=False,
        needs_laws=False,
    )


def check_lenience(name: str, lenience: float) -> None:
    """Refuses a lenience that is none.

    Raises:
      ValueError: it is below 1 or not finite.
      TypeError: it is no number.
    """
    checks.number(name, "lenience", lenience)
    if not 1.0 <= lenience < math.inf:
        raise ValueError(
            f"{name}: lenience must be finite and at least 1, got {lenience}"
        )


def emission_law(place: walk.Place, children: jax.Array, lenience: float) -> jax.Array:
    """Law f32[B, V] of the token that a review emits.

    Args:
      place: where the walk stands.
      children: bool[B, N], drafts of that token.
      lenience: static.
    """
    temperature = place.sampling.temperature
    sampled = (temperature > 0)[:, None]
    law = jax.nn.softmax(processors_lib.tempered(place.logits, temperature), axis=1)
    chances = jnp.take_along_axis(law, place.tree.token, axis=1)  # f32[B, N]
    slot = jnp.argmax(jnp.where(children, chances, -1.0), axis=1)[:, None]
    token = jnp.take_along_axis(place.tree.token, slot, axis=1)  # i32[B, 1]
    chance = jnp.take_along_axis(chances, slot, axis=1)
    drafted = jnp.any(children, axis=1, keepdims=True)
    ids = jnp.arange(law.shape[1], dtype=jnp.int32)[None]

    kept = jnp.minimum(lenience * chance, 1.0)
    other = jnp.where(chance < 1, (1.0 - kept) / jnp.maximum(1.0 - chance, 1e-30), 0.0)
    favoured = jnp.where(ids == token, kept, law * other)
    best = jnp.argmax(place.logits, axis=1).astype(jnp.int32)[:, None]
    chosen = jnp.where(drafted & (lenience * chance > 1), token, best)
    greedy = (ids == chosen).astype(jnp.float32)
    return jnp.where(sampled, jnp.where(drafted, favoured, law), greedy)


def emission_laws(
    logits_at: reading.LogitsAt,
    tree: tree_lib.TokenTree,
    view: contracts.View,
    outcome: outcome_lib.Outcome,
    depth: int,
    lenience: float,
) -> jax.Array:
    """Laws that the tokens of a finished review were drawn from, in order.

    The review is gone through once more, which costs a row of the head a token.

    Args:
      logits_at, tree, view: as the verifier got them.
      outcome: what it found, over all N slots.
      depth: most drafts on a path, static.
      lenience: static.

    Returns:
      f32[B, depth + 1, V]; rows past ``outcome.num_new`` are 0.
    """
    slot = jnp.arange(tree.slots, dtype=jnp.int32)[None]
    end = jnp.maximum(tree.num_trunk - 1, 0)
    length = outcome.token.shape[1]

    def emitted(step: jax.Array) -> jax.Array:
        at = jnp.clip(tree.num_trunk - 1 + step, 0, length - 1)[:, None]
        return jnp.take_along_axis(outcome.token, at, axis=1)

    def going(carry):
        return jnp.any(carry[0] < outcome.num_new)

    def review(carry):
        step, alive, processors, laws = carry
        raw = logits_at(jnp.argmax(alive, axis=1))
        place = walk.Place(
            logits=processors_lib.apply(processors, view.sampling, raw),
            tree=tree,
            alive=alive,
            position=view.history.length + step,
            round_index=view.rounds,
            sampling=view.sampling,
        )
        children = walk.children(tree, alive)
        law = emission_law(place, children, lenience)
        running = step < outcome.num_new
        laws = laws.at[:, step].set(jnp.where(running[:, None], law, 0.0))
        token = emitted(step)
        alive = children & (tree.token == token)
        processors = processors_lib.advance(
            processors, view.sampling, token[:, 0], running
        )
        return step + 1, alive, processors, laws

    rows, vocab_size = end.shape[0], view.processors.output_count.shape[1]
    blank = jnp.zeros((rows, depth + 1, vocab_size), jnp.float32)
    start = (jnp.int32(0), slot == end[:, None], view.processors, blank)
    return jax.lax.while_loop(going, review, start)[3]


def _draw(law: jax.Array, place: walk.Place, coupled: bool) -> jax.Array:
    """Draws i32[B] from f32[B, V]; the noise is skipped where nobody needs it."""
    ids = jnp.arange(law.shape[1], dtype=jnp.int32)
    key = place.sampling.key
    if not coupled:
        key = noise.lane(key, noise.LANE_LENIENT, place.round_index)

    def perturb(scores: jax.Array) -> jax.Array:
        return scores + noise.gumbel(key, place.position, ids)

    sampled = jnp.any(place.sampling.temperature > 0)
    scores = jax.lax.cond(sampled, perturb, lambda x: x, jnp.log(law))
    return jnp.argmax(scores, axis=1).astype(jnp.int32)
