"""The bare step: one forward pass of some width and one row of head, nothing else."""

import time
from collections.abc import Callable

import jax
import jax.numpy as jnp

from specjax import checkpoints
from specjax.core import tree as tree_lib

Step = Callable[[int], float]  # tokens present -> seconds a step


def chain(tokens: jax.Array) -> tree_lib.TokenTree:
    """A tree that is one chain of tokens i32[B, N], all of them trunk."""
    rows, width = tokens.shape
    slot = jnp.broadcast_to(jnp.arange(width, dtype=jnp.int32), (rows, width))
    count = jnp.full((rows,), width, jnp.int32)
    return tree_lib.TokenTree(
        token=tokens,
        parent=slot - 1,
        depth=slot,
        tag=jnp.full((rows, width), tree_lib.NO_TAG, jnp.int32),
        confidence=jnp.ones((rows, width), jnp.float32),
        num_trunk=count,
        num_nodes=count,
    )


def compile_step(
    lm: checkpoints.LanguageModel, width: int, capacity: int, steps: int
) -> Step:
    """Compiles a loop of ``steps`` bare steps, each fed the token of the last.

    Args:
      lm: the model.
      width: tokens a step scores, static.
      capacity: slots of the cache, static.
      steps: steps a call, so that the call itself does not count.

    Returns:
      A function of the tokens present that times one call and gives seconds a step.
    """
    target = lm.model.target
    keys = iter(jax.random.split(jax.random.key(0), 4096))

    def fill(leaf):
        return jax.random.normal(next(keys), leaf.shape, leaf.dtype)

    cache = jax.tree.map(fill, target.init(1, capacity))
    offset = jnp.arange(width, dtype=jnp.int32)[None]

    @jax.jit
    def loop(params, cache, start, token):
        def body(_, token):
            tree = chain((token[:, None] + offset) % target.vocab_size)
            scored = target.forward(params, tree, cache, start, ())
            logits = target.head(params, scored.hidden[:, -1])
            return jnp.argmax(logits, axis=1).astype(jnp.int32)

        return jax.lax.fori_loop(0, steps, body, token)

    token = jnp.ones((1,), jnp.int32)
    compiled = loop.lower(lm.params, cache, jnp.zeros((1,), jnp.int32), token).compile()

    def measure(present: int) -> float:
        start = jnp.full((1,), present, jnp.int32)
        began = time.perf_counter()
        jax.block_until_ready(compiled(lm.params, cache, start, token))
        return (time.perf_counter() - began) / steps

    measure(0)  # warm-up
    return measure
