"""Suffix arrays against sorted slices of a list."""

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.drafters.lookup import suffix_array

WIDTH = 4
_FIND = jax.jit(
    jax.vmap(suffix_array.find, in_axes=(None, None, None, 0)),
)


def naive(text):
    return sorted(range(len(text)), key=lambda at: list(text[at:]))


def occurrences(text, phrase):
    """Starts of a phrase, by slices."""
    size = len(phrase)
    return {
        at for at in range(len(text) - size + 1) if list(text[at : at + size]) == phrase
    }


def found(text, pattern):
    """Starts that ``find`` gives for the last 0, 1, ..., WIDTH tokens of a pattern."""
    text = np.asarray(text, np.int32)
    order = suffix_array.build(text)
    lengths = jnp.arange(WIDTH + 1, dtype=jnp.int32)
    low, high = _FIND(
        jnp.asarray(text), jnp.asarray(order), jnp.asarray(pattern, jnp.int32), lengths
    )
    ranges = zip(low.tolist(), high.tolist(), strict=True)
    return [order[a:b].tolist() for a, b in ranges]


def test_worked_example():
    """1213 < 13 < 213 < 3; two suffixes begin with 1, one with 2 1."""
    text = np.array([1, 2, 1, 3], np.int32)
    assert suffix_array.build(text).tolist() == [0, 2, 1, 3]
    ranges = found(text, [9, 9, 2, 1])
    assert ranges[1] == [0, 2]
    assert ranges[2] == [1]
    assert ranges[3] == []


@pytest.mark.parametrize("text", [[], [5], [3, 3], [3, 3, 3, 3, 3, 3, 3], [2, -1, -1]])
def test_small_texts(text):
    assert suffix_array.build(np.array(text, np.int32)).tolist() == naive(text)


@hypothesis.given(st.lists(st.integers(-1, 3), max_size=60))
def test_order_is_alphabetical(text):
    assert suffix_array.build(np.array(text, np.int32)).tolist() == naive(text)


@hypothesis.given(data=st.data())
def test_find_is_all_occurrences(data):
    size = data.draw(st.sampled_from([1, 2, 37]))
    text = data.draw(st.lists(st.integers(-1, 2), min_size=size, max_size=size))
    pattern = data.draw(st.lists(st.integers(0, 3), min_size=WIDTH, max_size=WIDTH))
    for length, starts in enumerate(found(text, pattern)):
        wanted = occurrences(text, pattern[WIDTH - length :]) - {size}
        assert set(starts) == wanted
        assert len(starts) == len(wanted)


def test_nothing_is_found_in_an_empty_text():
    empty = jnp.zeros((0,), jnp.int32)
    low, high = suffix_array.find(
        empty, empty, jnp.asarray([1], jnp.int32), jnp.int32(1)
    )
    assert (int(low), int(high)) == (0, 0)


def test_a_phrase_never_spans_two_documents():
    text = suffix_array.join([[1, 2], [3, 1]])
    assert text.tolist() == [1, 2, -1, 3, 1, -1]
    assert found(text, [0, 0, 2, 3])[2] == []


def test_joining_nothing():
    assert suffix_array.join([]).shape == (0,)


def test_order_of_suffixes_that_agree_for_thousands_of_tokens():
    """A period of 1000 in 100,000 tokens: 17 doublings."""
    period = np.random.default_rng(0).integers(0, 50, 1000)
    text = np.tile(period, 100).astype(np.int32)
    order = suffix_array.build(text)
    for rank in range(0, text.size - 1, 499):
        first, second = order[rank : rank + 2]
        assert text[first:].tolist() < text[second:].tolist()
    assert np.array_equal(np.sort(order), np.arange(text.size))


@pytest.mark.parametrize(
    "tokens", [np.zeros((2, 2), np.int32), np.zeros(3, np.float32)]
)
def test_bad_texts(tokens):
    with pytest.raises(ValueError, match="i32\\[M\\]"):
        suffix_array.build(tokens)
