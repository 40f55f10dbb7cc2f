"""Model n-grams against worked examples and an oracle of dictionaries."""

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from specjax import datastores
from specjax.drafters.lookup import model_ngrams as model_ngrams_lib
from tests.drafters import once, replay

VOCAB = 7


def store(documents, vocab_size=VOCAB, **sizes):
    sizes = datastores.Sizes(**{"ngram": 3, "max_phrases": 3, **sizes})
    return datastores.from_documents(
        documents, vocab_size=vocab_size, fingerprint="of a test", sizes=sizes
    )


def drafts(documents, text, room=20, *, sizes=None, **options):
    made = store(documents, 20, **(sizes or {}))
    equipped = model_ngrams_lib.model_ngrams(made, **options)
    return once.propose(equipped, [text], room)[0]


class Oracle:
    """Counts documents with dictionaries, drafts a trie level by level."""

    def __init__(self, documents, *, ngram=3, max_phrases=3, compat=False):
        self.counts, self.width, self.compat = {}, ngram - 1, compat
        for document in documents:
            grams = dict.fromkeys(
                tuple(document[i : i + ngram]) for i in range(len(document) - ngram + 1)
            )
            for gram in grams:
                self.counts[gram] = self.counts.get(gram, 0) + 1
        self.most = max_phrases

    def phrases(self, key):
        """(phrase, count) of a key; dictionaries keep the order of first sight."""
        found = [(g[1:], n) for g, n in self.counts.items() if g[0] == key]
        found = sorted(found, key=lambda item: -item[1])[: self.most]
        return found[::-1] if self.compat else found

    def propose(self, text, room):
        return [(node[0], node[1]) for node in self.nodes(text, room)]

    def observe(self, seen):
        pass

    def nodes(self, text, room):
        found = self.phrases(text[-1])
        mass = {(): sum(n for g, n in self.counts.items() if g[0] == text[-1])}
        for phrase, count in found:
            for size in range(1, self.width + 1):
                mass[phrase[:size]] = mass.get(phrase[:size], 0) + count
        paths = [
            phrase[:size]
            for size in range(1, min(self.width, room - 1) + 1)
            for phrase, _ in found
        ]
        paths = list(dict.fromkeys(paths))
        return [
            (
                path[-1],
                paths.index(path[:-1]) if len(path) > 1 else -1,
                mass[path] / mass[path[:-1]],
            )
            for path in paths
        ]


# 1: 2 3 in three documents, 2 4 in two, 5 6 in one; 5 5 is the fourth and left out.
EXAMPLE = [[1, 2, 3], [1, 2, 3], [1, 2, 4, 1, 2, 3], [1, 2, 4], [1, 5, 6], [1, 5, 5]]


def test_worked_example():
    """n-grams of 1 count 3 + 2 + 1 + 1 = 7: 2 is 5/7, 5 is 1/7, 3 is 3/5, 4 is 2/5."""
    nodes = drafts(EXAMPLE, [9, 1])
    assert [(n.token, n.parent) for n in nodes] == [
        (2, -1),
        (5, -1),
        (3, 0),
        (4, 0),
        (6, 1),
    ]
    np.testing.assert_allclose(
        [n.confidence for n in nodes], [5 / 7, 1 / 7, 3 / 5, 2 / 5, 1], rtol=1e-6
    )


def test_compat_reads_the_least_frequent_first():
    nodes = drafts(EXAMPLE, [1], compat=True)
    assert [n.token for n in nodes] == [5, 2, 6, 4, 3]


def test_fewer_phrases_are_the_best_ones_or_with_compat_the_worst():
    best = drafts(EXAMPLE, [1], max_phrases=1)
    worst = drafts(EXAMPLE, [1], max_phrases=1, compat=True)
    assert [n.token for n in best] == [2, 3]
    assert [n.token for n in worst] == [5, 6]


def test_shorter_ngrams_than_the_store_has():
    nodes = drafts(EXAMPLE, [1], ngram=2)
    assert [(n.token, n.parent) for n in nodes] == [(2, -1), (5, -1)]


@pytest.mark.parametrize(("room", "count"), [(3, 5), (2, 2), (1, 0), (0, 0)])
def test_no_deeper_than_there_is_room(room, count):
    assert len(drafts(EXAMPLE, [1], room)) == count


def test_an_unseen_token_drafts_nothing():
    assert drafts(EXAMPLE, [8]) == []


def test_an_id_beyond_the_table_drafts_nothing():
    """A target with a padded embedding has ids that the store never saw."""
    equipped = model_ngrams_lib.model_ngrams(store(EXAMPLE))
    assert once.propose(equipped, [[1, 15]]) == [[]]


def test_continues_the_spine_of_a_tree():
    equipped = model_ngrams_lib.model_ngrams(store(EXAMPLE))
    (nodes,) = once.propose(equipped, [[4]], room=3, spine=[1])
    assert [(n.token, n.parent) for n in nodes] == [(2, -1), (5, -1)]


_DOCUMENTS = np.random.default_rng(3).integers(0, 3, (5, 12)).tolist()
_EQUIPPED = {
    compat: model_ngrams_lib.model_ngrams(store(_DOCUMENTS, ngram=4), compat=compat)
    for compat in (False, True)
}


@pytest.mark.parametrize("compat", [False, True])
@hypothesis.given(data=st.data())
def test_agrees_with_counting(data, compat):
    tokens = data.draw(st.lists(st.integers(0, 3), min_size=3, max_size=3))
    rooms = data.draw(st.lists(st.integers(0, 5), min_size=3, max_size=3))
    oracle = Oracle(_DOCUMENTS, ngram=4, compat=compat)
    found = once.propose(_EQUIPPED[compat], [[t] for t in tokens], rooms)
    for token, room, nodes in zip(tokens, rooms, found, strict=True):
        wanted = oracle.nodes([token], room)
        assert [node[:2] for node in nodes] == [node[:2] for node in wanted]
        np.testing.assert_allclose(
            [node[2] for node in nodes], [node[2] for node in wanted], rtol=1e-6
        )


def test_real_rounds_agree_with_the_oracle():
    documents = np.random.default_rng(5).integers(0, VOCAB, (6, 40)).tolist()
    runs = replay.check(
        model_ngrams_lib.model_ngrams(store(documents)),
        lambda: Oracle(documents),
        [[1, 2, 3], [5, 5, 0, 2, 1, 6, 4, 3]],
        max_new_tokens=30,
    )
    assert all(seen.drafts for run in runs for seen in run if seen.room > 1)
    assert any(seen.path for run in runs for seen in run)


def test_one_phrase_is_a_chain():
    equipped = model_ngrams_lib.model_ngrams(store(EXAMPLE), max_phrases=1)
    assert equipped.drafter.bounds == (2, 2, 1)


def test_takes_its_sizes_from_the_store():
    equipped = model_ngrams_lib.model_ngrams(store(EXAMPLE))
    assert equipped.drafter is model_ngrams_lib.model_ngrams_drafter(
        ngram=3, max_phrases=3, compat=False
    )
    assert equipped.fingerprint == "of a test"


@pytest.mark.parametrize("options", [{"ngram": 4}, {"max_phrases": 4}])
def test_more_than_the_store_has(options):
    (name,) = options
    with pytest.raises(ValueError, match=f"model_ngrams: {name} must be at most"):
        model_ngrams_lib.model_ngrams(store(EXAMPLE), **options)


@pytest.mark.parametrize("options", [{"ngram": 1}, {"max_phrases": -1}])
def test_bad_options(options):
    (name,) = options
    with pytest.raises(ValueError, match=f"model_ngrams: {name} must be at least"):
        model_ngrams_lib.model_ngrams_drafter(**options)
