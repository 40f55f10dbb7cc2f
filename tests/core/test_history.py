"""Histories against Python lists."""

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from specjax.core import history as history_lib

CAPACITY = 6
append = jax.jit(history_lib.append)
common_prefix = jax.jit(history_lib.common_prefix)


def i32(values):
    return jnp.asarray(np.array(values, np.int32))


def padded(rows, width, filler=0):
    return i32([(list(row) + [filler] * width)[:width] for row in rows])


def lists(history):
    return [
        list(row[:count])
        for row, count in zip(np.asarray(history.tokens), history.length, strict=True)
    ]


tokens = st.lists(st.integers(0, 2), max_size=3)
pairs = st.tuples(tokens, tokens)


@given(pairs, pairs)
def test_append(prompts, more):
    prompt = padded(prompts, 3, filler=7)
    history = history_lib.create(prompt, i32([len(p) for p in prompts]), CAPACITY)
    longer = append(history, padded(more, 3, filler=8), i32([len(m) for m in more]))
    assert lists(history) == list(prompts)
    assert lists(longer) == [p + m for p, m in zip(prompts, more, strict=True)]
    np.testing.assert_array_equal(longer.prompt_length, [len(p) for p in prompts])


@given(pairs, pairs)
def test_common_prefix(first, second):
    """What lies past the length is not compared, be it equal or not."""
    one, two = (
        history_lib.create(padded(rows, 3), i32([len(row) for row in rows]), CAPACITY)
        for rows in (first, second)
    )
    expected = []
    for a, b in zip(first, second, strict=True):
        count = 0
        while count < min(len(a), len(b)) and a[count] == b[count]:
            count += 1
        expected.append(count)
    np.testing.assert_array_equal(common_prefix(one, two), expected)


def test_common_prefix_of_full_histories():
    history = history_lib.create(i32([[1, 2, 3]]), i32([3]), 3)
    np.testing.assert_array_equal(common_prefix(history, history), [3])
