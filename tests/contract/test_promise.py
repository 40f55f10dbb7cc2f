"""Speculation never changes a token: not with batch mates, padding or schedule."""

import dataclasses

import numpy as np
import pytest

from tests.contract.conftest import CAPACITY, TEXTS, make_engine

SAMPLINGS = {
    "greedy": {},
    "sampled": {"temperature": 0.8, "top_p": 0.9, "seed": 3},
    "hot": {"temperature": 1.2, "seed": 4},
    "penalised": {"repetition_penalty": 1.2, "frequency_penalty": 0.1},
    "narrow": {"temperature": 1.0, "top_k": 5, "min_p": 0.05, "seed": 5},
}


def tokens(results):
    return [result.tokens for result in results]


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_same_tokens_as_plain_decoding(speculative, plain, sampling):
    options = {"max_new_tokens": 40, **SAMPLINGS[sampling]}
    ours = speculative.generate(TEXTS, **options)
    theirs = plain.generate(TEXTS, **options)
    assert tokens(ours) == tokens(theirs)
    for one, other in zip(ours, theirs, strict=True):
        assert one.finish_reason == other.finish_reason
        assert one.text == other.text
        np.testing.assert_allclose(one.log_probs, other.log_probs, atol=1e-4)


@pytest.mark.parametrize("sampling", ["greedy", "sampled"])
def test_rows_do_not_know_their_batch_mates(speculative, sampling):
    options = {"max_new_tokens": 24, **SAMPLINGS[sampling]}
    together = speculative.generate(TEXTS, **options)
    alone = [speculative.generate(text, **options) for text in TEXTS[:2]]
    assert tokens(together)[:2] == tokens(alone)


def test_capacity_and_prompt_chunks_change_nothing(speculative, name):
    options = {"max_new_tokens": 24, **SAMPLINGS["sampled"]}
    other = make_engine(name, max_context=512, prompt_widths=(3,))
    assert tokens(other.generate(TEXTS, **options)) == tokens(
        speculative.generate(TEXTS, **options)
    )


def test_samples_of_a_prompt_differ_and_repeat(speculative, plain):
    options = {"max_new_tokens": 16, "num_samples": 8, **SAMPLINGS["hot"]}
    ours = speculative.generate(TEXTS[0], **options)
    assert tokens(ours) == tokens(plain.generate(TEXTS[0], **options))
    assert len({tuple(result.tokens) for result in ours}) > 1
    assert [result.sample for result in ours] == list(range(8))


def test_the_whole_capacity_is_used(speculative, plain):
    room = CAPACITY - len(plain.encode(TEXTS[0]))
    options = {"max_new_tokens": room, "ignore_eos": True}
    ours = speculative.generate(TEXTS[0], **options)
    assert ours.new_tokens == room
    assert ours.finish_reason == "length"
    assert ours.tokens == plain.generate(TEXTS[0], **options).tokens


def test_stop_ids_end_at_the_earliest(speculative, plain):
    free = plain.generate(TEXTS[0], max_new_tokens=24)
    stop = free.tokens[len(free.tokens) // 2]
    options = {"max_new_tokens": 24, "stop_token_ids": (stop,)}
    ours = speculative.generate(TEXTS[0], **options)
    assert ours.tokens == free.tokens[: free.tokens.index(stop) + 1]
    assert ours.finish_reason == "stop"
    assert ours.tokens == plain.generate(TEXTS[0], **options).tokens


def test_a_second_turn_over_the_same_cache(speculative, plain):
    first = speculative.encode(TEXTS[0])
    ours, theirs = [], []
    for engine, out in ((speculative, ours), (plain, theirs)):
        turns = _two_turns(engine, first, engine.encode(TEXTS[2]))
        out.extend(turns)
    assert ours == theirs


def _two_turns(engine, first, second):
    """Tokens of two turns, the second over what the first left in the cache."""
    out, state, ids = [], None, list(first)
    for _ in range(2):
        job = engine.prepare([ids], {"max_new_tokens": 10})
        run = engine.start(job, state)
        run.advance(1000)
        out.append(run.results()[0].tokens)
        state, ids = run.state, ids + out[-1] + list(second)
        assert int(np.asarray(state.num_cached)[0]) > len(first)
    return out


def test_counts_add_up(speculative, drafter):
    result = speculative.generate(TEXTS[2], max_new_tokens=40, ignore_eos=True)
    assert result.new_tokens == 40
    later = result.new_tokens - 1
    # Every call adds its accepted drafts and a bonus, but for what the end cuts.
    assert later <= result.accepted + result.target_calls
    assert later >= result.accepted + result.target_calls - 1
    assert sum(result.accepted_per_depth) == result.accepted <= result.drafted
    assert sum(result.accepted_per_source.values()) == result.accepted
    assert sum(result.drafted_per_source.values()) == result.drafted
    assert sum(result.rounds_per_width.values()) == result.target_calls
    assert result.tokens_per_target_call == pytest.approx(later / result.target_calls)
    if drafter.drafter.bounds.nodes == 0:
        assert result.tokens_per_target_call == 1
    else:
        assert result.accepted > 0, "this prompt repeats itself: a drafter must hit"


def test_json_is_complete(speculative):
    result = speculative.generate(TEXTS[1], max_new_tokens=4)
    fields = {field.name for field in dataclasses.fields(result)}
    assert set(result.to_json()) == fields
