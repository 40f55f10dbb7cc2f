"""The pure function for a user's own jit."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import Engine, build, drafters, sampling
from specjax.models import decoder
from tests import tiny_model

WIDTHS = {"widths": (1,), "prompt_widths": (16,)}
TEXTS = ("the ban and the ban", "an owl")


@pytest.fixture(scope="module")
def lm():
    return tiny_model.language_model()


@pytest.fixture(scope="module")
def arguments(lm):
    """Two prompts, padded, with sampling and seeds."""
    ids = [lm.tokenizer.encode(text) for text in TEXTS]
    tokens = np.full((2, 20), 7, np.int32)
    for row, prompt in enumerate(ids):
        tokens[row, : len(prompt)] = prompt
    lengths = jnp.asarray([len(p) for p in ids], jnp.int32)
    sampled = sampling(2, max_new_tokens=9, temperature=0.7)
    return jnp.asarray(tokens), lengths, sampled, jnp.asarray([5, 5], jnp.uint32)


def test_agrees_with_the_engine(lm, arguments):
    drafter = drafters.prompt_lookup()
    decode = build(lm.model, drafter, max_new_tokens=12, **WIDTHS)
    out = jax.jit(decode)(decode.params(lm, drafter), *arguments)
    engine = Engine(lm, drafter, **WIDTHS)
    options = {"max_new_tokens": 9, "temperature": 0.7, "seed": 5, "ignore_eos": True}
    for row, result in enumerate(engine.generate(TEXTS, **options)):
        assert out.num_new[row] == result.new_tokens == 9
        assert out.tokens[row, :9].tolist() == result.tokens
        assert out.tokens[row, 9:].tolist() == [0, 0, 0]
        np.testing.assert_allclose(out.log_prob[row, :9], result.log_probs, atol=1e-5)


def test_scanned_layers_give_the_same_tokens(lm, arguments):
    drafter = drafters.prompt_lookup()
    decode = build(lm.model, drafter, max_new_tokens=9, **WIDTHS)
    other = build(lm.model, drafter, max_new_tokens=9, **WIDTHS)
    params = decode.params(lm, drafter)
    stacked = {**params, "target": decoder.stack_layers(lm.params)}
    first = jax.jit(decode)(params, *arguments)
    second = jax.jit(other)(stacked, *arguments)
    np.testing.assert_array_equal(first.tokens, second.tokens)
    np.testing.assert_allclose(first.log_prob, second.log_prob, atol=1e-4)


def test_bad_arguments(lm, arguments):
    tokens, lengths, sampled, seeds = arguments
    decode = build(lm.model, drafters.none(), max_new_tokens=9)
    params = decode.params(lm)
    with pytest.raises(ValueError, match=r"tokens must be i32\[B, T\]"):
        decode(params, tokens[0], lengths, sampled, seeds)
    with pytest.raises(ValueError, match=r"lengths must be i32\[B\] with B=2"):
        decode(params, tokens, lengths[:1], sampled, seeds)
    with pytest.raises(ValueError, match="context of 512"):
        decode(params, jnp.zeros((2, 510), jnp.int32), lengths, sampled, seeds)
    with pytest.raises(ValueError, match="max_new_tokens must be at least 1"):
        build(lm.model, drafters.none(), max_new_tokens=0)
    with pytest.raises(ValueError, match="widths must be at least 1"):
        build(lm.model, drafters.none(), max_new_tokens=1, widths=(0, 4))


def test_bad_sampling():
    with pytest.raises(ValueError, match="rows must be at least 1, got 0"):
        sampling(rows=0)
    with pytest.raises(TypeError, match="top_k must be an integer, got True"):
        sampling(rows=1, top_k=True)


def test_a_row_without_a_budget_ends_at_once(lm, arguments):
    tokens, lengths, sampled, seeds = arguments
    limits = jnp.asarray([4, 0], jnp.int32)
    sampled = dataclasses.replace(sampled, max_new_tokens=limits)
    decode = build(lm.model, drafters.none(), max_new_tokens=9, **WIDTHS)
    out = jax.jit(decode)(decode.params(lm), tokens, lengths, sampled, seeds)
    assert out.num_new.tolist() == [4, 0]
    assert out.finish.tolist() == [2, 2]
