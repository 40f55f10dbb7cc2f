"""Documents to datastores."""

import numpy as np
import pytest

from specjax import datastores
from specjax.drafters.lookup import suffix_array
from tests import tiny_model


@pytest.fixture(scope="module")
def lm():
    return tiny_model.language_model()


def test_texts_become_all_parts(lm):
    store = datastores.build_from_texts(lm, ["the ban", "the than"])
    assert store.parts == ("corpus", "model_ngrams", "successor")
    ids = [lm.tokenizer.encode(text) for text in ("the ban", "the than")]
    assert store.arrays["text"].tolist() == [*ids[0], -1, *ids[1], -1]
    assert store.documents == 2
    assert store.tokens == len(ids[0]) + len(ids[1])
    assert store.fingerprint == lm.fingerprint


def test_the_order_is_the_suffix_array(lm):
    store = datastores.build_from_texts(lm, ["banana", "bandana"])
    text, order = store.arrays["text"], store.arrays["order"]
    assert np.array_equal(order, suffix_array.build(text))


def test_sizes_reach_the_table(lm):
    sizes = datastores.Sizes(ngram=3, max_phrases=2, max_ngrams=1)
    store = datastores.build_from_texts(lm, ["the ban", "the than"], sizes=sizes)
    assert store.arrays["phrase"].shape == (tiny_model.config().vocab_size, 2, 2)
    assert np.count_nonzero(store.arrays["count"]) == 1
    assert store.options["max_ngrams"] == 1


def test_special_tokens_in_a_text_are_plain_characters(lm):
    store = datastores.build_from_texts(lm, [tiny_model.EOS])
    assert 0 not in store.arrays["text"]
    assert store.tokens > 1


def test_empty_documents_are_left_out(lm):
    assert datastores.build_from_texts(lm, ["", "the"]).documents == 1


def test_progress_counts_documents(lm):
    seen = []
    datastores.build_from_texts(lm, ["a", "b", "c"], notify=seen.append)
    assert seen == [1, 2, 3]


@pytest.mark.parametrize("texts", [[], ["", ""]])
def test_no_words(lm, texts):
    with pytest.raises(ValueError, match="texts must hold at least one"):
        datastores.build_from_texts(lm, texts)


def test_one_text_is_no_list_of_documents(lm):
    with pytest.raises(TypeError, match="texts must be a list"):
        datastores.build_from_texts(lm, "the ban")


@pytest.mark.parametrize("documents", [[[1, 5]], [[-1, 2]]])
def test_ids_outside_the_vocabulary(documents):
    with pytest.raises(ValueError, match="documents must hold ids 0 to 4"):
        datastores.from_documents(documents, vocab_size=5, fingerprint="")


def test_no_documents():
    with pytest.raises(ValueError, match="at least one token"):
        datastores.from_documents([[]], vocab_size=5, fingerprint="")


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"ngram": 1}, "ngram must be at least 2"),
        ({"ngram": 10**9}, "ngram must be at most 64"),
        ({"max_phrases": 0}, "max_phrases must be at least 1"),
        ({"max_phrases": 10**8}, "max_phrases must be at most 4096"),
        ({"max_ngrams": 0}, "max_ngrams must be at least 1"),
        ({"ngram": True}, "ngram must be an integer"),
        ({"ngram": 2.5}, "ngram must be an integer"),
    ],
)
def test_bad_sizes(sizes, message):
    with pytest.raises((TypeError, ValueError), match=message):
        datastores.from_documents(
            [[1]], vocab_size=5, fingerprint="", sizes=datastores.Sizes(**sizes)
        )
