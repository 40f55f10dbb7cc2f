"""What a drafter learnt goes on to the next request when the caller says so."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import Engine, Memory, build, drafters, sampling
from tests import tiny_model

PROMPT = "the ban and the"
OPTIONS = {"max_new_tokens": 30, "ignore_eos": True}


@pytest.fixture(scope="module")
def engine():
    lm = tiny_model.language_model()
    made = drafters.make("token_recycling:nodes=7:warm_prompt=false", lm)
    return Engine(lm, made, widths=(1,), prompt_widths=(16,), max_context=256)


def test_the_second_time_takes_fewer_calls_and_gives_the_same_tokens(engine):
    memory = Memory()
    cold = engine.generate(PROMPT, memory=memory, **OPTIONS)
    warm = engine.generate(PROMPT, memory=memory, **OPTIONS)
    assert warm.tokens == cold.tokens
    assert warm.target_calls < cold.target_calls


def test_without_a_memory_every_request_starts_anew(engine):
    first = engine.generate(PROMPT, **OPTIONS)
    second = engine.generate(PROMPT, **OPTIONS)
    assert second.target_calls == first.target_calls


def test_a_memory_is_not_used_up_by_a_request_that_breaks_off(engine):
    memory = Memory()
    engine.generate(PROMPT, memory=memory, **OPTIONS)
    before = np.asarray(memory.state.successor)
    stream = iter(engine.stream("x", memory=memory, **OPTIONS))
    next(stream)
    next(stream)
    del stream  # broken off
    np.testing.assert_array_equal(memory.state.successor, before)


def test_a_finished_stream_remembers(engine):
    memory = Memory()
    for _ in engine.stream(PROMPT, memory=memory, **OPTIONS):
        pass
    assert np.any(np.asarray(memory.state.successor) >= 0)


def test_a_memory_of_other_sizes_is_refused(engine):
    memory = Memory()
    engine.generate(PROMPT, memory=memory, **OPTIONS)
    with pytest.raises(ValueError, match="memory: left by another"):
        engine.generate([PROMPT] * 2, memory=memory, **OPTIONS)


def test_memory_of_a_pure_function(engine):
    lm = engine.lm
    drafter = drafters.make("token_recycling:nodes=7:warm_prompt=false", lm)
    decode = build(
        lm.model, drafter, max_new_tokens=30, widths=(1,), prompt_widths=(16,)
    )
    params = decode.params(lm, drafter)
    ids = engine.encode(PROMPT)
    tokens, lengths = jnp.asarray([ids], jnp.int32), jnp.asarray([len(ids)], jnp.int32)
    seeds = jnp.zeros((1,), jnp.uint32)
    one = sampling(1, max_new_tokens=30)
    memory = decode.blank_memory(params, 1, len(ids))
    run = jax.jit(decode)
    cold = run(params, tokens, lengths, one, seeds, memory)
    warm = run(params, tokens, lengths, one, seeds, cold.memory)
    np.testing.assert_array_equal(warm.tokens, cold.tokens)
    assert int(warm.stats.target_calls[0]) < int(cold.stats.target_calls[0])
    wider = jnp.zeros((1, len(ids) + 300), jnp.int32)
    two = jax.tree.map(lambda x: jnp.concatenate([x, x]), cold.memory)
    with pytest.raises(ValueError, match="memory: left by another"):
        run(params, wider, lengths, one, seeds, two)
