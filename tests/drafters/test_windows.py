"""Which windows of the text a round makes known."""

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.core import contracts
from specjax.core import history as history_lib
from specjax.core import outcome as outcome_lib
from specjax.drafters.lookup import windows

SLOTS = 24
PATH = 8  # slots of a path
_RUN = jax.jit(windows.new_windows, static_argnums=2)


def observed(texts, starts, paths, width):
    """Windows that a round makes known, as lists of tuples a row.

    Args:
      texts: histories after the round.
      starts: tokens in the target's cache before it.
      paths: lengths of the kept paths.
      width: of a window.
    """
    rows = len(texts)
    tokens = np.full((rows, SLOTS), 99, np.int32)  # what lies behind means nothing
    for row, text in enumerate(texts):
        tokens[row, : len(text)] = text
    length = jnp.asarray([len(text) for text in texts], jnp.int32)
    path = jnp.zeros((rows, PATH), jnp.int32)
    view = contracts.View(
        history=history_lib.create(jnp.asarray(tokens), length, SLOTS),
        sampling=None,
        processors=None,
        start=jnp.asarray(starts, jnp.int32),
        room=jnp.full((rows,), 5, jnp.int32),
        rounds=jnp.zeros((rows,), jnp.int32),
    )
    outcome = outcome_lib.Outcome(
        path_slot=path,
        num_path=jnp.asarray(paths, jnp.int32),
        token=path,
        num_new=jnp.asarray(paths, jnp.int32),
        log_prob=path.astype(jnp.float32),
    )
    found, new = (np.asarray(x) for x in _RUN(view, outcome, width))
    return [
        [tuple(window) for window in found[row][new[row]].tolist()]
        for row in range(rows)
    ]


def all_windows(text, width):
    return [tuple(text[i : i + width]) for i in range(len(text) - width + 1)]


def test_windows_that_end_at_emitted_tokens():
    """4 5 was the text, 5 the trunk; 6, 7 and then 8 came out."""
    text = [4, 5, 6, 7, 8]
    assert observed([text], [1], [3], 3) == [[(4, 5, 6), (5, 6, 7), (6, 7, 8)]]
    assert observed([text], [1], [3], 5) == [[(4, 5, 6, 7, 8)]]


def test_windows_that_would_begin_before_the_text_are_left_out():
    assert observed([[1, 2, 3, 4]], [0], [3], 3) == [[(1, 2, 3), (2, 3, 4)]]
    assert observed([[1, 2]], [0], [1], 3) == [[]]


def test_tokens_behind_a_stop_are_not_known():
    """The path holds four tokens, but the text ended with the second of them."""
    assert observed([[1, 2, 3, 4]], [1], [4], 2) == [[(2, 3), (3, 4)]]


def test_rows_are_their_own():
    """The second row is idle, the third is as long as there are slots."""
    full = list(range(SLOTS))
    found = observed([[1, 2, 3], [1, 2, 3], full], [1, 2, SLOTS - 3], [1, 0, 2], 2)
    assert found == [[(2, 3)], [], [(SLOTS - 3, SLOTS - 2), (SLOTS - 2, SLOTS - 1)]]


@pytest.mark.parametrize("width", [2, 3, 5])
@hypothesis.given(
    text=st.lists(st.integers(0, 3), min_size=1, max_size=SLOTS), data=st.data()
)
def test_none_is_missed_or_seen_twice(text, data, width):
    """However the text is cut into prompt chunks and decode rounds, in order."""
    start, found = 0, []
    while start < len(text) - 1:
        path = data.draw(st.integers(1, min(PATH, len(text) - 1 - start)))
        # While a prompt goes in all of it is there already; later the text grows.
        grown = data.draw(st.sampled_from([start + path + 1, len(text)]))
        found += observed([text[:grown]], [start], [path], width)[0]
        start += path
    assert found == all_windows(text, width)


def test_last_tokens():
    tokens = jnp.asarray([[1, 2, 3, 9], [4, 9, 9, 9], [9, 9, 9, 9]], jnp.int32)
    last = windows.last_tokens(tokens, jnp.asarray([3, 1, 0], jnp.int32), 2)
    assert last.tolist() == [[2, 3], [-1, 4], [-1, -1]]
