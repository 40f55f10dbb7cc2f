"""Drafters by the name of their datastore."""

import pytest

from specjax.drafters.lookup import corpus, model_ngrams, stored
from tests import tiny_model, tiny_store

BUILDERS = {
    "corpus": stored.builder("corpus", corpus.corpus),
    "model_ngrams": stored.builder("model_ngrams", model_ngrams.model_ngrams),
}


@pytest.fixture(scope="module")
def lm():
    return tiny_model.language_model()


def test_a_corpus(lm):
    made = BUILDERS["corpus"](lm, {"store": tiny_store.path(), "max_nodes": "9"})
    assert made.drafter is corpus.corpus_drafter(
        max_suffix=16, min_suffix=2, max_hits=256, max_draft=10, max_nodes=9
    )
    assert made.fingerprint == lm.fingerprint
    assert made.params["text"].shape == made.params["order"].shape


def test_model_ngrams(lm):
    made = BUILDERS["model_ngrams"](lm, {"store": tiny_store.path(), "ngram": "3"})
    assert made.drafter.bounds.depth == 2
    assert made.params["phrase"].shape[0] == lm.model.config.vocab_size


@pytest.mark.parametrize("name", sorted(BUILDERS))
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "give store=FOLDER.*datastore build"),
        ({"store": ""}, "give store=FOLDER"),
        ({"store": 3}, "give store=FOLDER"),
        ({"store": "no/such/folder"}, "no/such/folder is no datastore"),
    ],
)
def test_bad_stores(lm, name, options, message):
    with pytest.raises(ValueError, match=f"drafter '{name}': .*{message}"):
        BUILDERS[name](lm, options)


@pytest.mark.parametrize("name", sorted(BUILDERS))
def test_unknown_options(lm, name):
    with pytest.raises(ValueError, match="unknown option 'depth'"):
        BUILDERS[name](lm, {"store": tiny_store.path(), "depth": 3})
