"""Processors against hand-worked laws and sort-based oracles."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specjax.core import history as history_lib
from specjax.core import processors
from specjax.core import sampling as sampling_lib

NONE = -np.inf
apply = jax.jit(processors.apply)
advance = jax.jit(processors.advance)


def row(values):
    return jnp.asarray(np.array([values], np.float32))


def started(vocab_size, prompt=(), **options):
    """(state, sampling) of one row after a prompt."""
    sampling = sampling_lib.pack([sampling_lib.SamplingOptions(**options)], [0])
    padded = np.zeros((1, 4), np.int32)
    padded[0, : len(prompt)] = prompt
    length = jnp.asarray(np.array([len(prompt)], np.int32))
    history = history_lib.create(jnp.asarray(padded), length, 4)
    return processors.start(history, sampling, vocab_size), sampling


def emit(state, sampling, *tokens):
    for token in tokens:
        at = jnp.asarray(np.array([token], np.int32))
        state = advance(state, sampling, at, jnp.asarray(np.array([True])))
    return state


def law(logits, prompt=(), **options):
    state, sampling = started(len(logits), prompt, **options)
    found = np.asarray(apply(state, sampling, row(logits)))[0].astype(np.float64)
    weights = np.exp((found - found.max()) / options.get("temperature", 1.0))
    return weights / weights.sum()


@pytest.mark.parametrize(
    ("logits", "options", "expected"),
    [
        ((2, 1, 0), {"temperature": 1.0}, (0.665241, 0.244728, 0.090031)),
        ((2, 1, 0), {"temperature": 0.5}, (0.866813, 0.117310, 0.015876)),
        ((2, 1, 0), {"temperature": 1.0, "top_k": 2}, (0.731059, 0.268941, 0)),
        ((2, 1, 0), {"temperature": 1.0, "min_p": 0.3}, (0.731059, 0.268941, 0)),
        ((2, 1, 0), {"temperature": 1.0, "top_p": 0.7}, (0.731059, 0.268941, 0)),
        ((2, 1, 0), {"temperature": 1.0, "top_p": 0.6}, (1, 0, 0)),
        (
            (2, 1, 0),
            {"temperature": 1.0, "repetition_penalty": 1.2, "prompt": (0,)},
            (0.587443, 0.301603, 0.110954),
        ),
        (
            (2, 1, -1),
            {"temperature": 1.0, "repetition_penalty": 1.2, "prompt": (2,)},
            (0.709904, 0.261159, 0.028937),
        ),
    ],
)
def test_worked_examples(logits, options, expected):
    np.testing.assert_allclose(law(logits, **options), expected, atol=1e-6)


def test_neutral_settings_change_nothing():
    logits = (0.25, -2.0, 5.0, 5.0)
    for temperature in (0.0, 0.7):
        state, sampling = started(4, (1, 2), temperature=temperature)
        np.testing.assert_array_equal(apply(state, sampling, row(logits)), [logits])


def test_truncation_is_off_at_temperature_zero():
    state, sampling = started(3, temperature=0.0, top_k=1, top_p=0.1, min_p=0.9)
    np.testing.assert_array_equal(apply(state, sampling, row([1, 2, 3])), [[1, 2, 3]])


def test_penalties_follow_the_output():
    options = {"presence_penalty": 0.5, "frequency_penalty": 0.25}
    state, sampling = started(4, (3,), repetition_penalty=2.0, **options)
    state = emit(state, sampling, 1, 1, 2)
    found = apply(state, sampling, row([1, 1, -1, 1]))
    # 1: 1/2 - 2/4 - 1/2; 2: -1*2 - 1/4 - 1/2; 3 stands in the prompt alone: 1/2.
    np.testing.assert_allclose(found, [[1, -0.5, -2.75, 0.5]])
    np.testing.assert_array_equal(state.num_emitted, [3])


def test_rows_that_do_not_emit_stay():
    state, sampling = started(4)
    after = advance(state, sampling, jnp.zeros((1,), jnp.int32), jnp.zeros((1,), bool))
    for one, two in zip(jax.tree.leaves(state), jax.tree.leaves(after), strict=True):
        np.testing.assert_array_equal(one, two)


def test_biases_and_bans():
    state, sampling = started(4, logit_bias={0: -1.5, 3: 2.0}, banned_ids=[2, 3])
    found = apply(state, sampling, row([1, 1, 1, 1]))
    np.testing.assert_array_equal(found, [[-0.5, 1, NONE, NONE]])


def test_stop_ids_wait_for_the_minimum():
    state, sampling = started(3, min_new_tokens=2, stop_token_ids=[1])
    for token in (0, 2):
        found = apply(state, sampling, row([0, 5, 0]))
        np.testing.assert_array_equal(found, [[0, NONE, 0]])
        state = emit(state, sampling, token)
    np.testing.assert_array_equal(apply(state, sampling, row([0, 5, 0])), [[0, 5, 0]])


def test_grammar_follows_its_automaton():
    # 0 -a-> 1 -b-> 2 -c-> 0, and 0 -c-> 2.
    after = np.array([[1, -1, 2], [-1, 2, -1], [-1, -1, 0]], np.int32)
    grammar = sampling_lib.Grammar(
        shared={"next": jnp.asarray(after)}, start=jnp.zeros((1,), jnp.int32)
    )
    state, sampling = started(3)
    sampling = dataclasses.replace(sampling, grammar=grammar)
    for token in (0, 1, 2, 2, 2):
        allowed = after[int(state.grammar[0])] >= 0
        found = np.asarray(apply(state, sampling, row([1, 2, 3])))[0]
        np.testing.assert_array_equal(found > NONE, allowed)
        assert allowed[token]
        state = emit(state, sampling, token)
    assert int(state.grammar[0]) == 0


def oracle_mask(logits, temperature, top_k, top_p, min_p):
    """Sorted, in float64; ties at a threshold stay together."""
    scaled = np.float64(logits) / temperature
    keep = np.ones(len(logits), bool)
    if top_k:
        keep = scaled >= np.sort(scaled)[::-1][min(top_k, len(logits)) - 1]
    weights = np.where(keep, np.exp(scaled - scaled.max()), 0)
    probs = weights / weights.sum()
    near = 0.0
    if top_p < 1:
        before = np.array([probs[probs > p].sum() for p in probs])
        keep &= before <= top_p
        near = np.abs(before - top_p).min()
    keep &= probs >= min_p * probs.max()
    near = min(near or 1, np.abs(probs - min_p * probs.max()).min() if min_p else 1)
    return keep, near < 1e-5


few_values = st.sampled_from([NONE, -3.5, -1.0, -0.0, 0.0, 0.25, 2.0, 2.0000002])


@given(
    st.lists(st.one_of(few_values, st.floats(-5, 5, width=32)), min_size=7, max_size=7),
    st.sampled_from([0.3, 1.0, 2.5]),
    st.integers(0, 8),
    st.sampled_from([0.05, 0.5, 0.9, 1.0]),
    st.sampled_from([0.0, 0.02, 0.4, 1.0]),
)
def test_truncation_is_that_of_a_sort(logits, temperature, top_k, top_p, min_p):
    if max(logits) == NONE:
        return
    options = {"top_k": top_k, "top_p": top_p, "min_p": min_p}
    state, sampling = started(7, temperature=temperature, **options)
    found = np.asarray(apply(state, sampling, row(logits)))[0]
    keep, near = oracle_mask(logits, temperature, **options)
    if near and min_p != 1.0:
        return
    np.testing.assert_array_equal(found, np.where(keep, np.float32(logits), NONE))
    assert found[np.argmax(logits)] == np.float32(max(logits))


def test_rows_are_processed_alone():
    """Rows of one batch with other settings: as each by itself."""
    options = [
        {},
        {"temperature": 0.8, "top_k": 3, "presence_penalty": 1.0},
        {"temperature": 1.2, "top_p": 0.8, "logit_bias": {4: 3.0}},
    ]
    logits = np.random.default_rng(0).normal(size=(3, 7)).astype(np.float32)
    pieces = [started(7, (1,), **option) for option in options]
    stack = functools.partial(jax.tree.map, lambda *leaves: jnp.concatenate(leaves))
    state, sampling = (stack(*part) for part in zip(*pieces, strict=True))
    together = apply(state, sampling, jnp.asarray(logits))
    for at, (state, sampling) in enumerate(pieces):
        alone = apply(state, sampling, jnp.asarray(logits[at : at + 1]))
        np.testing.assert_allclose(together[at : at + 1], alone, rtol=1e-6)
