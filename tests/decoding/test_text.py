"""Growing text: whole characters, and no start of a stop string."""

import hypothesis
import hypothesis.strategies as st
import pytest

from specjax.decoding.text import GrowingText
from tests import tiny_model

WORDS = tiny_model.tokenizer()


def feed(text, stop=()):
    """(pieces, GrowingText) of pushing a text token by token."""
    growing = GrowingText(WORDS, stop)
    pieces = []
    for token in WORDS.encode(text):
        if growing.stopped:
            break
        pieces.append(growing.push(token))
    if not growing.stopped:
        pieces.append(growing.finish())
    return pieces, growing


@hypothesis.given(st.text(max_size=30))
def test_pieces_are_the_text(text):
    pieces, growing = feed(text)
    assert "".join(pieces) == text == growing.text == growing.shown


def test_a_character_of_several_tokens_comes_whole():
    pieces, _ = feed("a😀b")
    assert [piece for piece in pieces if piece] == ["a", "😀", "b"]


@hypothesis.given(
    text=st.text(alphabet="ab", max_size=20),
    stop=st.lists(st.text(alphabet="ab", min_size=1, max_size=4), max_size=3),
)
def test_ends_at_the_earliest_stop_string(text, stop):
    pieces, growing = feed(text, stop)
    # The earliest event: the first token after which some stop string is whole.
    whole = next(
        (n for n in range(len(text) + 1) if any(s in text[:n] for s in stop)), None
    )
    if whole is None:
        expected = text
    else:
        expected = text[
            : min(text[:whole].find(s) % 99 for s in stop if s in text[:whole])
        ]
    assert "".join(pieces) == expected == growing.text
    assert growing.stopped == (whole is not None)


def test_the_start_of_a_stop_string_is_held_back():
    growing = GrowingText(WORDS, ("STOP",))
    shown = [growing.push(token) for token in WORDS.encode("xSTxSTO")]
    assert "".join(shown) == "xSTx"
    assert growing.push(WORDS.encode("P")[0]) == ""
    assert growing.stopped
    assert growing.text == "xSTx"
    assert growing.num_tokens == 8


@pytest.mark.parametrize("tail", ["S", "STO"])
def test_what_was_held_back_comes_at_the_end(tail):
    pieces, growing = feed("x" + tail, ("STOP",))
    assert "".join(pieces) == "x" + tail
    assert pieces[-1] == tail
    assert not growing.stopped


def test_bytes_that_are_no_text_do_not_hold_the_stream_up():
    broken = WORDS.token_id("ÿ")  # the byte 0xff, which begins no character
    growing = GrowingText(WORDS)
    pieces = [growing.push(broken) for _ in range(100)]
    assert len("".join(pieces)) > 80
    assert "".join(pieces) + growing.finish() == "\ufffd" * 100
