"""Max-Gram against the worked examples and a plain Python oracle."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specjax.core import history as history_lib
from specjax.drafters import equipped
from specjax.drafters.lookup import datastore
from specjax.drafters.lookup import max_gram as max_gram_lib
from specjax.drafters.lookup.max_gram import max_gram, max_gram_with_store
from tests.drafters import once, replay
from tests.drafters.max_gram_oracle import NGRAM, oracle

SUCCESSOR = [0, 4, 3, 1, 2, 9, 7, 5, 6, 8]


def two_buffers(prompt, text, k):
    """The reference's rule on a prompt and a text that are apart."""
    slots = 32

    def rows(tokens):
        padded = jnp.asarray([tokens], jnp.int32)
        return history_lib.create(padded, jnp.asarray([len(tokens)], jnp.int32), slots)

    draft = max_gram_lib.draft_after(
        rows(text),
        jnp.asarray([k], jnp.int32),
        max_draft=4,
        max_ngram=NGRAM,
        prompt=rows(prompt),
        successor=jnp.asarray(SUCCESSOR, jnp.int32),
    )
    return draft.token[0, : int(draft.count[0])].tolist()


@pytest.mark.parametrize(
    ("prompt", "text", "k", "draft"),
    [
        # "5 6" occurs twice; after the first it goes on with 7 8 9.
        ([5, 6, 7, 8, 9, 5, 6, 3], [0, 5, 6], 3, [7, 8, 9]),
        # "1 6" never occurs, "6" three times.
        ([5, 6, 7, 5, 6, 9, 6, 9], [1, 6], 2, [7, 5]),
        # "2 6" goes before an earlier "6".
        ([6, 7, 1, 2, 6, 9], [0, 2, 6], 1, [9]),
        # No match: 1 -> 4 -> 2 -> 3 -> 1.
        ([5, 6, 7], [0, 1], 4, [4, 2, 3, 1]),
        # A: in 5 6 7 0, "6" is followed by 7 0, across the join. B: in 0 6 7 0 6 7,
        # "0 6 7 0" is followed by 6 7.
        ([5, 6, 7], [0, 6], 4, [7, 0, 6, 7]),
    ],
)
def test_worked_examples_of_two_buffers(prompt, text, k, draft):
    assert two_buffers(prompt, text, k) == draft
    assert oracle(text, k, prompt=prompt, successor=SUCCESSOR) == draft


def with_successors(table, **options):
    store = datastore.Datastore(
        arrays={"successor": table},
        fingerprint="of a test",
        vocab_size=len(table),
        documents=1,
        tokens=1,
    )
    return max_gram_with_store(store, **options)


def drafts(drafter, texts, **options):
    made = once.propose(equipped.equip(drafter), texts, **options)
    return [[node.token for node in nodes] for nodes in made]


def test_one_buffer_is_copied_to_its_end():
    # A: "6" -> 7 0 6. B: in 5 6 7 0 6 7 0 6, "6 7 0 6" -> 7 0 6.
    assert drafts(max_gram(max_draft=4), [[5, 6, 7, 0, 6]]) == [[7, 0, 6, 7]]
    assert drafts(max_gram(max_draft=9), [[5, 6, 7, 0, 6]]) == [[7, 0, 6, 7, 0, 6]]


def test_never_more_than_was_asked_for():
    """A gives 2 3 4 1 of 5 tokens, and B the same again: 5 are drafted in all."""
    text = [1, 2, 3, 4, 1]
    assert drafts(max_gram(max_draft=5), [text]) == [[2, 3, 4, 1, 2]]


def test_earliest_or_most_recent():
    text = [1, 2, 3, 1, 2, 4, 1, 2]
    assert drafts(max_gram(max_draft=2), [text]) == [[3, 1]]
    assert drafts(max_gram(max_draft=2, recent=True), [text]) == [[4, 1]]


def test_a_longest_suffix_bounds_the_search():
    text = [1, 2, 3, 9, 2, 4, 1, 2]  # "1 2" -> 3, "2" alone -> 3 as well, later 4
    assert drafts(max_gram(max_draft=1, recent=True), [text]) == [[3]]
    assert drafts(max_gram(max_draft=1, max_ngram=1, recent=True), [text]) == [[4]]


def test_successors_end_where_none_is_known():
    table = np.array([1, 2, -1, 3, 0], np.int32)
    held = with_successors(table, max_draft=4)
    assert drafts(held, [[4], [3], [2]]) == [[0, 1, 2], [3, 3, 3, 3], []]
    assert drafts(max_gram(max_draft=4), [[4]]) == [[]]


def test_room_counts_from_the_text_and_not_from_the_spine():
    held = max_gram(max_draft=5)
    text = [1, 2, 3, 4, 5, 6, 1]
    assert drafts(held, [text] * 3, room=[0, 1, 4]) == [[], [], [2, 3, 4]]
    # Two of the three drafts that fit are there already: 1, 2 3, and then 4.
    assert drafts(held, [text] * 2, room=[4, 3], spine=(2, 3)) == [[4], []]


def test_confidence_grows_with_the_match_and_is_low_behind_a_successor():
    table = np.full(8, 5, np.int32)
    held = with_successors(table, max_draft=4)
    (nodes,) = once.propose(held, [[1, 2, 3, 1, 2]])
    # "1 2" is 2 long, then 3, 4 and 5 with what was copied on the way.
    expected = [(n - 0.5) / (n + 0.9) for n in (2, 3, 4, 5)]
    np.testing.assert_allclose([node.confidence for node in nodes], expected, 1e-6)
    (nodes,) = once.propose(held, [[1, 2]])
    np.testing.assert_allclose([node.confidence for node in nodes], 0.5 / 1.9, 1e-6)


TEXTS = st.lists(st.integers(0, 2), min_size=1, max_size=12)
WITH_TABLE = with_successors(np.array([1, -1, 0], np.int32), max_draft=6)


@given(st.lists(TEXTS, min_size=3, max_size=3))
def test_agrees_with_the_oracle(texts):
    expected = [oracle(text, 6, successor=[1, -1, 0]) for text in texts]
    assert drafts(WITH_TABLE, texts) == expected


class InRounds:
    """The oracle under real rounds; it learns the prompt as it goes in."""

    def __init__(self, compat, **options):
        self.compat, self.options, self.prompt = compat, options, None

    def propose(self, text, room):
        prompt = self.prompt if self.compat else None
        return [
            (token, at - 1)
            for at, token in enumerate(
                oracle(text, min(5, room - 1), prompt=prompt, **self.options)
            )
        ]

    def observe(self, seen):
        self.prompt = seen.text if self.prompt is None else self.prompt


@pytest.mark.parametrize("compat", [False, True])
def test_in_real_rounds(compat):
    prompts = [[1, 2, 3, 1, 2], [4], [5, 6, 5, 6, 5], [0] * 20]
    options = {"max_ngram": 4, "recent": compat}
    made = max_gram(max_draft=5, compat=compat, **options)
    runs = replay.check(
        made, lambda: InRounds(compat, **options), prompts, max_new_tokens=40
    )
    assert sum(len(seen.path) for run in runs for seen in run) > 10


@pytest.mark.parametrize("option", ["max_draft", "max_ngram"])
def test_bad_options(option):
    with pytest.raises(ValueError, match=f"max_gram: {option}"):
        max_gram(**{option: 0})


@pytest.mark.parametrize(
    ("table", "found"),
    [
        (np.zeros(4), "float64"),
        (np.zeros((2, 2), np.int32), r"int32\[2, 2\]"),
        (np.array([0, 2], np.int32), "0 to 2"),
        (np.array([0, -2], np.int32), "-2 to 0"),
    ],
)
def test_bad_tables(table, found):
    with pytest.raises(ValueError, match=f"max_gram: successor .*{found}"):
        with_successors(table)


def test_no_text_no_draft():
    empty = history_lib.empty(1, 8)
    draft = jax.jit(
        lambda text: max_gram_lib.draft_after(
            text,
            jnp.asarray([3], jnp.int32),
            max_draft=3,
            max_ngram=4,
            successor=jnp.asarray([1, 0], jnp.int32),
        )
    )(empty)
    assert draft.count.tolist() == [0]
