"""Counting against dictionaries."""

import collections
import itertools

import hypothesis
import hypothesis.strategies as st
import numpy as np

from specjax.datastores import counts
from specjax.drafters.lookup import suffix_array

VOCAB = 4
SIZES = {"ngram": 3, "max_phrases": 2, "max_ngrams": 5}
_DOCUMENTS = st.lists(
    st.lists(st.integers(0, VOCAB - 1), max_size=12), min_size=1, max_size=5
)


def table(documents, **sizes):
    """The table as {key: [(phrase, count), ...]}, and the totals."""
    found = counts.ngram_table(
        suffix_array.join(documents), vocab_size=VOCAB, **{**SIZES, **sizes}
    )
    phrases = {}
    for key in range(VOCAB):
        rows = zip(found["phrase"][key], found["count"][key], strict=True)
        live = [(tuple(phrase.tolist()), int(count)) for phrase, count in rows if count]
        if live:
            phrases[key] = live
    return phrases, found["total"].tolist()


def document_frequencies(documents, ngram):
    """{n-gram: documents that have it}, in the order of first sight."""
    found = {}
    for document in documents:
        windows = [
            tuple(document[i : i + ngram]) for i in range(len(document) - ngram + 1)
        ]
        for gram in dict.fromkeys(windows):
            found[gram] = found.get(gram, 0) + 1
    return found


def naive(documents, *, ngram, max_phrases, max_ngrams):
    frequency = document_frequencies(documents, ngram)
    best = sorted(frequency.items(), key=lambda item: -item[1])[:max_ngrams]
    phrases = {}
    for gram, count in best:
        held = phrases.setdefault(gram[0], [])
        if len(held) < max_phrases:
            held.append((gram[1:], count))
    total = [
        sum(n for g, n in frequency.items() if g[0] == key) for key in range(VOCAB)
    ]
    return phrases, total


@hypothesis.given(_DOCUMENTS)
def test_ngrams_agree_with_dictionaries(documents):
    assert table(documents) == naive(documents, **SIZES)


def test_an_ngram_counts_once_a_document():
    """1 2 3 twice in one document, 1 3 3 in two: that one goes first."""
    phrases, _ = table([[1, 2, 3, 0, 1, 2, 3], [1, 3, 3], [1, 3, 3]])
    assert phrases[1] == [((3, 3), 2), ((2, 3), 1)]


def test_the_last_ngram_of_a_document_counts():
    phrases, _ = table([[0, 1, 2, 3]])
    assert phrases[1] == [((2, 3), 1)]


def test_all_documents_count():
    """Twelve documents, the phrase of the last one is the most frequent."""
    phrases, _ = table([[0, 1, 1]] * 5 + [[0, 2, 2]] * 7)
    assert phrases[0] == [((2, 2), 7), ((1, 1), 5)]


def test_no_ngram_spans_two_documents():
    phrases, total = table([[0, 1], [2, 3]])
    assert phrases == {}
    assert total == [0] * VOCAB


def test_the_limit_is_on_all_ngrams_together():
    """Of 0 1 1 (2), 2 1 1 (2), 3 1 1 (1), two stay; the total has all."""
    documents = [[0, 1, 1], [0, 1, 1], [2, 1, 1], [2, 1, 1], [3, 1, 1]]
    phrases, total = table(documents, max_ngrams=2)
    assert phrases == {0: [((1, 1), 2)], 2: [((1, 1), 2)]}
    assert total == [2, 0, 2, 1]


def test_unused_places_hold_no_phrase():
    found = counts.ngram_table(np.array([1, 2, 3, -1]), vocab_size=VOCAB, **SIZES)
    assert found["phrase"][1].tolist() == [[2, 3], [-1, -1]]
    assert found["phrase"][0].tolist() == [[-1, -1], [-1, -1]]


@hypothesis.given(_DOCUMENTS)
def test_successors_agree_with_dictionaries(documents):
    pairs = collections.Counter()
    for document in documents:
        for pair in itertools.pairwise(document):
            pairs[pair] += 1
    best = [-1] * VOCAB
    for (token, after), count in pairs.items():  # in the order of first sight
        if best[token] < 0 or count > pairs[token, best[token]]:
            best[token] = after
    found = counts.successors(suffix_array.join(documents), vocab_size=VOCAB)
    assert found.tolist() == best


def test_tables_are_int32():
    found = counts.ngram_table(np.array([1, 2, 3, -1]), vocab_size=VOCAB, **SIZES)
    found["successor"] = counts.successors(np.array([1, 2, -1]), vocab_size=VOCAB)
    assert {array.dtype for array in found.values()} == {np.dtype(np.int32)}
