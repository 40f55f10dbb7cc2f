"""Drafters by the name of their datastore."""

import pytest

from specjax import drafters
from specjax.drafters.lookup import corpus
from tests import tiny_model, tiny_store

NAMES = ("corpus", "model_ngrams")


@pytest.fixture(scope="module")
def lm():
    return tiny_model.language_model()


def test_a_corpus(lm):
    made = drafters.make("corpus:max_nodes=9", lm, {"store": tiny_store.path()})
    assert made.drafter is corpus.corpus_drafter(
        max_suffix=16, min_suffix=2, max_hits=256, max_draft=10, max_nodes=9
    )
    assert made.fingerprint == lm.fingerprint
    assert made.params["text"].shape == made.params["order"].shape


def test_model_ngrams(lm):
    made = drafters.make("model_ngrams:ngram=3", lm, {"store": tiny_store.path()})
    assert made.drafter.bounds.depth == 2
    assert made.params["phrase"].shape[0] == lm.model.config.vocab_size


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "store must be given.*datastore build"),
        ({"store": ""}, "'store' must be a name or a path"),
        ({"store": 3}, "'store' must be a name or a path"),
        ({"store": "no/such/folder"}, "no/such/folder is no datastore"),
    ],
)
def test_bad_stores(lm, name, options, message):
    with pytest.raises(ValueError, match=f"drafter '{name}': .*{message}"):
        drafters.make(name, lm, options)


@pytest.mark.parametrize("name", NAMES)
def test_unknown_options(lm, name):
    with pytest.raises(ValueError, match="unknown option 'depth'"):
        drafters.make(name, lm, {"store": tiny_store.path(), "depth": 3})
