"""A second model as a drafter: catching up, agreeing, being wrong."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import Engine, drafters, sampling
from specjax.decoding import programs
from tests import tiny_model

TEXT = "the ban and the ban and the"
WIDTHS = {"widths": (1,), "prompt_widths": (16,)}


@pytest.fixture(scope="module")
def lm():
    return tiny_model.language_model()


@pytest.fixture(scope="module")
def plain(lm):
    return Engine(lm, **WIDTHS)


def engine(lm, small, **options):
    return Engine(lm, drafters.draft_model(small, **options), **WIDTHS)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_target_as_its_own_draft_model_is_always_right(lm, plain, temperature):
    """Coupled noise: equal laws agree at any temperature, not only when greedy."""
    options = {"max_new_tokens": 31, "temperature": temperature, "ignore_eos": True}
    ours = engine(lm, lm, max_draft=4).generate(TEXT, **options)
    assert ours.tokens == plain.generate(TEXT, **options).tokens
    assert ours.target_calls == 6  # 30 tokens after the first, 5 a call
    assert ours.accepted == 24


def test_penalties_reach_the_draft_model(lm, plain):
    options = {
        "max_new_tokens": 31,
        "repetition_penalty": 1.5,
        "frequency_penalty": 0.5,
        "ignore_eos": True,
    }
    ours = engine(lm, lm, max_draft=4).generate(TEXT, **options)
    assert ours.tokens == plain.generate(TEXT, **options).tokens
    assert ours.target_calls == 6


def test_a_draft_model_that_is_always_wrong_changes_nothing(lm, plain):
    """Its head is turned over, so its best token is the target's worst."""
    embed = lm.params["embed"]
    wrong = {**lm.params, "final_norm": -lm.params["final_norm"], "embed": embed}
    small = dataclasses.replace(lm, params=wrong)
    ours = engine(lm, small).generate(TEXT, max_new_tokens=12, ignore_eos=True)
    assert (
        ours.tokens == plain.generate(TEXT, max_new_tokens=12, ignore_eos=True).tokens
    )
    assert ours.accepted == 0
    assert ours.target_calls == 11


def test_it_speculates_itself(lm, plain):
    """A decoder is a drafter: prompt lookup under a draft model under the target."""
    small = tiny_model.language_model(num_layers=1)
    inner = drafters.prompt_lookup(max_draft=3)
    nested = drafters.speculate(small.model.target, drafter=inner, max_draft=4)
    weights = {"model": small.params, "drafter": {}}
    made = drafters.Equipped(nested, weights, small.fingerprint)
    ours = Engine(lm, made, **WIDTHS).generate(TEXT, max_new_tokens=20)
    assert ours.tokens == plain.generate(TEXT, max_new_tokens=20).tokens


def test_it_catches_up_after_rounds_without_drafts(lm):
    """Cached positions follow the history, whatever happened in between."""
    made = drafters.draft_model(lm, max_draft=3)
    held = Engine(lm, made, **WIDTHS).programs
    ids = np.zeros((1, 256), np.int32)
    ids[0, :60] = np.arange(60) % 37 + 3
    sampled = sampling(1, max_new_tokens=64)
    state = programs.blank(held.recipe, held.params, 1, 256)
    state = held.prompt(state, jnp.asarray(ids), jnp.asarray([60], jnp.int32), sampled)
    # Lose the memo: the draft model takes the whole text in again, then agrees.
    fresh = held.recipe.parts.drafter.init(held.params, 1, 256)
    state = dataclasses.replace(state, drafter=fresh)
    state = held.decode(state, sampled, jnp.int32(2))
    assert int(state.stats.accepted[0]) == 6
    length = int(state.history.length[0])
    assert int(state.drafter.num_cached[0]) >= length - 2


def test_bad_options(lm):
    with pytest.raises(ValueError, match="max_draft"):
        drafters.draft_model(lm, max_draft=0)
    assert jax.tree.leaves(lm.params)


def test_a_turn_that_is_a_prefix_of_the_last_one(lm, plain):
    """All of the text is cached already; the last token is taken in again."""
    made = drafters.draft_model(lm, max_draft=4)
    held = Engine(lm, made, widths=(1,), prompt_widths=(8,)).programs
    ids = lm.tokenizer.encode(TEXT)
    sampled = sampling(1, max_new_tokens=20)

    def turn(state, ids):
        tokens = np.zeros((1, 256), np.int32)
        tokens[0, : len(ids)] = ids
        lengths = jnp.asarray([len(ids)], jnp.int32)
        state = held.prompt(state, jnp.asarray(tokens), lengths, sampled)
        state = held.decode(state, sampled, jnp.int32(100))
        length = int(state.history.length[0])
        return state, np.asarray(state.history.tokens)[0, :length].tolist()

    state, first = turn(programs.blank(held.recipe, held.params, 1, 256), ids)
    _, second = turn(state, first[: len(ids) + 3])
    assert second[: len(first)] == first
    assert len(second) == len(ids) + 3 + 20
