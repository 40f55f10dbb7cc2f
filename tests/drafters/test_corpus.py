"""The corpus drafter against worked examples and counting with dictionaries."""

import collections

import hypothesis
import hypothesis.strategies as st
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import datastores
from specjax.drafters.lookup import corpus as corpus_lib
from specjax.drafters.lookup import suffix_array
from tests.drafters import once, replay

OPTIONS = {
    "max_suffix": 4,
    "min_suffix": 2,
    "max_hits": 5,
    "max_draft": 3,
    "max_nodes": 6,
}
VOCAB = 7


def store(documents, vocab_size=VOCAB):
    return datastores.from_documents(
        documents, vocab_size=vocab_size, fingerprint="of a test"
    )


def drafts(documents, text, room=20, **options):
    equipped = corpus_lib.corpus(store(documents, 20), **{**OPTIONS, **options})
    return once.propose(equipped, [text], room)[0]


class Oracle:
    """REST's tree by slices, sorted lists and dictionaries."""

    def __init__(self, documents, **options):
        self.text = suffix_array.join(documents).tolist()
        self.o = {**OPTIONS, **options}

    def propose(self, text, room):
        return [(node[0], node[1]) for node in self.nodes(text, room)]

    def observe(self, seen):
        pass

    def nodes(self, text, room):
        weight = collections.Counter()
        hits = self._hits(text)
        for hit in hits:
            for size in range(1, len(hit) + 1):
                weight[hit[:size]] += 1
        deepest = min(room - 1, self.o["max_draft"])
        paths = [path for path in weight if len(path) <= deepest]
        paths.sort(key=lambda path: (-weight[path], len(path), path))
        paths = paths[: self.o["max_nodes"]]
        weight[()] = len(hits)
        return [
            (
                path[-1],
                paths.index(path[:-1]) if len(path) > 1 else -1,
                weight[path] / weight[path[:-1]],
            )
            for path in paths
        ]

    def _hits(self, text):
        """Continuations, as tuples, of the longest known suffix."""
        for size in range(min(self.o["max_suffix"], len(text)), 0, -1):
            if size < self.o["min_suffix"]:
                break
            starts = [
                at
                for at in range(len(self.text))
                if self.text[at : at + size] == text[-size:]
            ]
            if not starts:
                continue
            starts.sort(key=lambda at: self.text[at:])
            most = self.o["max_hits"]
            if len(starts) > most:
                starts = [starts[i * len(starts) // most] for i in range(most)]
            return [self._after(at + size) for at in starts]
        return []

    def _after(self, start):
        tail = self.text[start : start + self.o["max_draft"]]
        end = tail.index(-1) if -1 in tail else len(tail)
        return tuple(tail[:end])


def test_worked_example():
    """After 1 2: 3 4 twice, 3 5, 6. So 3 (3/4), 3 4 (2/3), 6 (1/4), 3 5 (1/3)."""
    documents = [[1, 2, 3, 4], [1, 2, 3, 5], [1, 2, 3, 4], [1, 2, 6]]
    nodes = drafts(documents, [9, 1, 2])
    assert [(n.token, n.parent) for n in nodes] == [(3, -1), (4, 0), (6, -1), (5, 0)]
    np.testing.assert_allclose(
        [n.confidence for n in nodes], [3 / 4, 2 / 3, 1 / 4, 1 / 3], rtol=1e-6
    )


def test_the_longest_suffix_decides():
    """1 2 is followed by 5 twice, but 9 1 2 by 7: the longer match counts alone."""
    documents = [[1, 2, 5], [1, 2, 5], [9, 1, 2, 7]]
    assert [n.token for n in drafts(documents, [9, 1, 2])] == [7]


def test_a_suffix_shorter_than_the_least_drafts_nothing():
    documents = [[1, 2, 5]]
    assert drafts(documents, [8, 2]) == []
    assert [n.token for n in drafts(documents, [8, 2], min_suffix=1)] == [5]


def test_a_continuation_ends_with_its_document():
    assert [n.token for n in drafts([[1, 2, 3], [4, 5]], [1, 2])] == [3]


def test_a_match_at_the_end_of_a_document_drafts_nothing():
    assert drafts([[1, 2], [3, 4]], [1, 2]) == []


def test_hits_are_evenly_spaced():
    """Of 4 3s, 3 4s and 3 5s, five of ten are taken: rows 0 2 4 6 8 = 3 3 4 4 5."""
    documents = [[1, 2, t] for t in (3, 3, 3, 3, 4, 4, 4, 5, 5, 5)]
    nodes = drafts(documents, [1, 2], max_hits=5)
    assert [(n.token, round(n.confidence, 3)) for n in nodes] == [
        (3, 0.4),
        (4, 0.4),
        (5, 0.2),
    ]


def test_one_hit_is_a_chain():
    equipped = corpus_lib.corpus(store([[1, 2, 3, 4, 5]]), **{**OPTIONS, "max_hits": 1})
    assert equipped.drafter.bounds.branching == 1
    (nodes,) = once.propose(equipped, [[1, 2]])
    assert [(n.token, n.parent) for n in nodes] == [(3, -1), (4, 0), (5, 1)]


@pytest.mark.parametrize(
    ("room", "tokens"), [(4, [3, 4, 5]), (2, [3]), (1, []), (0, [])]
)
def test_no_deeper_than_there_is_room(room, tokens):
    nodes = drafts([[1, 2, 3, 4, 5]], [1, 2], room)
    assert [n.token for n in nodes] == tokens


def test_shallow_nodes_take_the_places_of_those_too_deep():
    """Six nodes fit; with room for one level these are the six children."""
    documents = [[1, 2, t, 9, 9] for t in (3, 4, 5, 6, 7, 8)]
    nodes = drafts(documents, [1, 2], 2, max_hits=6)
    assert [n.token for n in nodes] == [3, 4, 5, 6, 7, 8]


def test_continues_the_spine_of_a_tree():
    """With 3 4 drafted under the text 1 it looks up 1 3 4, and has room for less."""
    equipped = corpus_lib.corpus(store([[1, 3, 4, 5, 6, 0]]), **OPTIONS)
    (nodes,) = once.propose(equipped, [[2, 1]], room=5, spine=[3, 4])
    assert [(n.token, n.parent) for n in nodes] == [(5, -1), (6, 0)]


_DOCUMENTS = np.random.default_rng(3).integers(0, 3, (4, 20)).tolist()
_EQUIPPED = corpus_lib.corpus(store(_DOCUMENTS), **OPTIONS)


@hypothesis.given(data=st.data())
def test_agrees_with_counting(data):
    text = st.lists(st.integers(0, 2), min_size=1, max_size=10)
    texts = data.draw(st.lists(text, min_size=3, max_size=3))
    rooms = data.draw(st.lists(st.integers(0, 6), min_size=3, max_size=3))
    oracle = Oracle(_DOCUMENTS)
    found = once.propose(_EQUIPPED, texts, rooms)
    for text, room, nodes in zip(texts, rooms, found, strict=True):
        wanted = oracle.nodes(text, room)
        assert [node[:2] for node in nodes] == [node[:2] for node in wanted]
        np.testing.assert_allclose(
            [node[2] for node in nodes], [node[2] for node in wanted], rtol=1e-6
        )


def test_real_rounds_agree_with_the_oracle():
    documents = np.random.default_rng(5).integers(0, VOCAB, (6, 40)).tolist()
    runs = replay.check(
        corpus_lib.corpus(store(documents), **OPTIONS),
        lambda: Oracle(documents),
        [[1, 2, 3], [5, 5, 0, 2, 1, 6, 4, 3]],
        max_new_tokens=30,
    )
    drafted = [len(seen.drafts) for run in runs for seen in run if seen.room]
    assert max(drafted) == OPTIONS["max_nodes"]
    assert any(seen.path for run in runs for seen in run)


def test_many_hits_are_ranked_alike(monkeypatch):
    """Keys beyond what float32 holds exactly are ranked as integers."""
    documents = [[1, 2, t % 5 + 3] for t in range(9)]
    few = drafts(documents, [1, 2], max_hits=9, max_draft=2)
    monkeypatch.setattr(corpus_lib, "_EXACT_IN_FLOAT", 0)
    assert drafts(documents, [1, 2], max_hits=10, max_draft=2) == few
    assert len(few) == 5


def test_an_empty_text_drafts_nothing():
    equipped = corpus_lib.corpus(store([[1, 2]]), **OPTIONS)
    empty = {name: jnp.zeros((0,), jnp.int32) for name in equipped.params}
    assert once.propose(equipped._replace(params=empty), [[1, 2]]) == [[]]


def test_speaks_for_its_tokenizer():
    equipped = corpus_lib.corpus(store([[1, 2]]))
    assert equipped.fingerprint == "of a test"
    assert equipped.label == "corpus"


def test_a_store_without_a_corpus_is_refused():
    whole = store([[1, 2]])
    arrays = {"successor": whole.arrays["successor"]}
    bare = datastores.Datastore(
        arrays=arrays, fingerprint="", vocab_size=VOCAB, documents=1, tokens=2
    )
    with pytest.raises(ValueError, match=r"no part 'corpus'.*successor"):
        corpus_lib.corpus(bare)


@pytest.mark.parametrize(
    "options",
    [
        {"min_suffix": 0},
        {"min_suffix": 5, "max_suffix": 4},
        {"max_hits": 0},
        {"max_draft": 0},
        {"max_nodes": 0},
        {"max_hits": 50_000},
    ],
)
def test_bad_options(options):
    (name, *_) = options
    with pytest.raises(ValueError, match=f"corpus: {name} must be"):
        corpus_lib.corpus_drafter(**options)
