"""The default rule: the token that plain decoding would draw, at any temperature.

One token is drawn at each step from the target alone, by noise that belongs to
the position; the walk moves to every child that carries it. So the output is a
function of model, prompt and seed, whatever was drafted.
"""

import functools

import jax
import jax.numpy as jnp

from pallas_kernels import verify as verify_lib
from specjax import cached
from specjax.core import contracts, noise
from specjax.core import sampling as sampling_lib
from specjax.verify import walk


def draw(
    logits: jax.Array, sampling: sampling_lib.Sampling, position: jax.Array
) -> jax.Array:
    """Draws one token a row: argmax of logits + temperature * noise.

    Args:
      logits: f32[B, V], processed.
      sampling: key and temperature of the rows.
      position: i32[B], history position of the token.

    Returns:
      i32[B]; the lowest id among equals.
    """
    ids = jnp.arange(logits.shape[1], dtype=jnp.int32)

    def perturb(x: jax.Array) -> jax.Array:
        gumbel = noise.gumbel(sampling.key, position, ids)
        return x + sampling.temperature[:, None] * gumbel

    sampled = jnp.any(sampling.temperature > 0)
    scores = jax.lax.cond(sampled, perturb, lambda x: x, logits)
    return verify_lib.argmax(scores)


def _rule(place: walk.Place) -> walk.Step:
    token = draw(place.logits, place.sampling, place.position)
    carries = place.tree.token == token[:, None]
    return walk.Step(token, walk.children(place.tree, place.alive) & carries)


@cached.cached
def exact() -> contracts.Verifier:
    """The drafter-invariant rule.

    Source: verification by a shared draw a node; equal in law to the sequential
    test of distinct deterministic candidates (EAGLE-2, SpecInfer with point
    masses), equal token for token to plain decoding by construction.
    """
    return contracts.Verifier(
        verify=functools.partial(walk.walk, _rule),
        lossless=True,
        same_tokens=True,
        needs_laws=False,
    )
