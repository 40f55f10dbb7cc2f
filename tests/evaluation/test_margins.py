"""Where outputs part, and how narrowly."""

import numpy as np
import pytest

import specjax
from specjax.evaluation import margins
from tests import tiny_model

PROMPT = [5, 9, 40, 41, 9, 5]
SAMPLING = {
    "temperature": 0.9,
    "top_p": 0.8,
    "repetition_penalty": 1.3,
    "frequency_penalty": 0.2,
    "seed": 7,
}


@pytest.fixture(scope="module")
def lm():
    return tiny_model.language_model(num_layers=1)


@pytest.fixture(scope="module")
def sampled(lm):
    engine = specjax.Engine(lm)
    return engine.generate(PROMPT, max_new_tokens=10, ignore_eos=True, **SAMPLING)


def test_scores_are_those_that_decoding_took_the_largest_of(lm, sampled):
    options = {**SAMPLING, "ignore_eos": True}
    for at, token in enumerate(sampled.tokens):
        scores = margins.scores(lm, PROMPT, sampled.tokens[:at], options)
        assert int(np.argmax(scores)) == token


def test_margin_is_the_difference_of_two_scores(lm):
    scores = margins.scores(lm, PROMPT, [3, 4], {})
    found = margins.margin(lm, PROMPT, [3, 4], (8, 12), {})
    assert found == pytest.approx(abs(scores[8] - scores[12]))


def test_a_token_that_is_ruled_out_has_no_margin(lm):
    options = {"logit_bias": {8: -np.inf}}
    assert margins.margin(lm, PROMPT, [], (8, 12), options) is None
