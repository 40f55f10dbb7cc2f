"""A target that is a table of the last two tokens, with a cache that can be wrong.

It compiles in a moment, its law is known exactly, and the token before the tree comes
out of its cache: whoever fills that wrongly gets other logits.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from specjax import build, sampling
from specjax.core import contracts


@functools.cache
def table_target(vocab_size, max_context=10**6):
    """Logits params[before, token], where ``before`` precedes ``token``."""

    def init(rows, capacity):
        return jnp.zeros((rows, capacity), jnp.int32)

    def forward(params, tree, cache, start, features):
        assert not features
        end = jnp.clip(start - 1, 0, cache.shape[1] - 1)[:, None]
        cached = jnp.where(start[:, None] > 0, jnp.take_along_axis(cache, end, 1), 0)
        above = jnp.take_along_axis(tree.token, jnp.maximum(tree.parent, 0), axis=1)
        before = jnp.where(tree.parent < 0, cached, above)
        return contracts.Scored(params[before, tree.token], None, tree.token)

    def pad(rows, slots):
        return jnp.pad(rows, ((0, 0), (0, slots - rows.shape[1])))

    def commit(cache, rows, path_slot, start, count):
        if path_slot is not None:
            rows = jnp.take_along_axis(rows, path_slot, axis=1)
        step = jnp.arange(rows.shape[1])[None]
        at = jnp.where(step < count[:, None], start[:, None] + step, cache.shape[1])
        row = jnp.arange(rows.shape[0])[:, None]
        return cache.at[row, at].set(rows, mode="drop")

    return contracts.Target(
        init=init,
        forward=forward,
        head=lambda params, hidden: hidden,
        pad=pad,
        commit=commit,
        rewind=lambda cache, length: cache,
        vocab_size=vocab_size,
        max_context=max_context,
    )


def table(vocab_size, seed, scale=1.5):
    """Logits f32[V, V, V] that one seed gives."""
    shape = (vocab_size,) * 3
    logits = np.random.default_rng(seed).normal(0, scale, shape)
    return jnp.asarray(logits, jnp.float32)


def greedy(logits, prompt, count):
    """What plain decoding makes of a prompt of two tokens or more."""
    best = np.argmax(np.asarray(logits), axis=2)
    text = list(prompt)
    for _ in range(count):
        text.append(int(best[text[-2], text[-1]]))
    return text[len(prompt) :]


def joint(logits, prompt, temperature):
    """Exact law f64[V, V, V] of the next three tokens."""
    scaled = np.asarray(logits, np.float64) / temperature
    law = np.exp(scaled - scaled.max(axis=2, keepdims=True))
    law = law / law.sum(axis=2, keepdims=True)
    first, second = law[prompt[-2], prompt[-1]], law[prompt[-1]]
    return first[:, None, None] * second[:, :, None] * law


def run(drafter, params, logits, prompt, *, rows=1, max_new_tokens=24, **options):
    """A generation of ``rows`` equal prompts, each with its own seed."""
    verifier = options.pop("verifier", None)
    decode = _decode(logits.shape[0], drafter, verifier, max_new_tokens)
    tokens = jnp.tile(jnp.asarray([prompt], jnp.int32), (rows, 1))
    return decode(
        {"target": logits, "drafter": params, "verifier": {}},
        tokens,
        jnp.full((rows,), len(prompt), jnp.int32),
        sampling(rows, max_new_tokens=max_new_tokens, **options),
        jnp.arange(rows, dtype=jnp.uint32),
    )


@functools.cache
def _decode(vocab_size, drafter, verifier, max_new_tokens):
    """One program for every test of a pair."""
    return jax.jit(
        build(
            table_target(vocab_size),
            drafter,
            max_new_tokens=max_new_tokens,
            verifier=verifier,
            widths=(1,),
            prompt_widths=(4,),
        )
    )
