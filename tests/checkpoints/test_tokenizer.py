"""Encoding, decoding, streaming, and the splitting rules of GGUF."""

import hypothesis
import pytest
from hypothesis import strategies as st

from specjax.checkpoints import tokenizer as tokenizer_lib

TEXTS = st.text(
    alphabet=st.one_of(st.characters(codec="utf-8"), st.sampled_from("the 123\n 👍é")),
    max_size=30,
)


@pytest.fixture(scope="module")
def words(gguf_metadata):
    return tokenizer_lib.from_gguf(gguf_metadata)


def spelt(tokenizer, text, **options):
    """The tokens of a text, spelt out."""
    return [tokenizer.token(i) for i in tokenizer.encode(text, **options)]


@hypothesis.given(TEXTS)
def test_decode_undoes_encode(words, text):
    ids = words.encode(text, parse_special=False)
    assert words.decode(ids) == text


@hypothesis.given(TEXTS, st.integers(1, 5))
def test_a_stream_gives_the_same_text_in_whole_characters(words, text, step):
    ids = words.encode(text, parse_special=False)
    stream = words.stream()
    pieces = [stream.push(ids[i : i + step]) for i in range(0, len(ids), step)]
    end = stream.finish()
    assert "".join([*pieces, end]) == text
    if "\ufffd" not in text:
        assert end == ""
        assert not any("\ufffd" in piece for piece in pieces)


def test_a_stream_holds_half_a_character(words):
    ids = words.encode("a👍b")
    assert len(ids) == 6
    stream = words.stream()
    assert [stream.push([i]) for i in ids] == ["a", "", "", "", "👍", "b"]


def test_finish_gives_what_is_held(words):
    stream = words.stream()
    stream.push(words.encode("👍")[:2])
    assert stream.finish() == "\ufffd"
    assert stream.finish() == ""


def test_bytes_that_no_text_has_come_out_as_replacement(words):
    """Two lone continuation bytes between letters."""
    a, bad = words.encode("a")[0], words.encode("👍")[2]
    stream = words.stream()
    pieces = [stream.push([i]) for i in (a, bad, bad, a)]
    assert "".join(pieces) == words.decode([a, bad, bad, a]) == "a\ufffd\ufffda"


def test_special_tokens_are_parsed_or_not(words):
    assert words.encode("<|end|>") == [0]
    assert 0 not in words.encode("<|end|>", parse_special=False)
    assert words.encode("<|end|>") == [0]  # asking once changes nothing


def test_special_tokens_are_skipped_or_not(words):
    ids = [0, *words.encode("the")]
    assert words.decode(ids) == "the"
    assert words.decode(ids, skip_special_tokens=False) == "<|end|>the"
    stream = words.stream()
    assert stream.push(ids) == "the"


def test_ids_that_have_no_token_give_nothing(words):
    assert words.decode([words.vocab_size + 5]) == ""
    with pytest.raises(ValueError, match="0 or more"):
        words.decode([-1])


def test_vocabulary(words, gguf_metadata):
    assert words.vocab_size == len(gguf_metadata["tokenizer.ggml.tokens"])
    assert words.token_id("the") is not None
    assert words.token_id("no such") is None
    assert words.token(10**6) is None


def test_half_a_surrogate_pair_is_refused(words):
    with pytest.raises(ValueError, match="surrogate"):
        words.encode("a\ud83d")


def test_bytes_are_refused(words):
    with pytest.raises(TypeError, match="text must be str, got bytes"):
        words.encode(b"the")


@pytest.mark.parametrize(
    ("pre", "expected"),
    [
        ("gpt-2", ["123"]),
        ("default", ["123"]),
        ("llama-bpe", ["123"]),
        ("qwen2", ["1", "2", "3"]),
        ("smollm", ["1", "2", "3"]),
    ],
)
def test_how_digits_are_split(gguf_metadata, pre, expected):
    metadata = {
        **gguf_metadata,
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.add_bos_token": False,
    }
    assert spelt(tokenizer_lib.from_gguf(metadata), "123") == expected


@pytest.mark.parametrize(
    ("pre", "expected"), [("gpt-2", ["Ċ", "Ċ", "the"]), ("llama-bpe", ["ĊĊ", "the"])]
)
def test_how_new_lines_are_split(gguf_metadata, pre, expected):
    """GPT-2 leaves the last white space to the next word; Llama 3 keeps runs."""
    tokens = [*gguf_metadata["tokenizer.ggml.tokens"], "ĊĊ"]
    metadata = {
        **gguf_metadata,
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * len(tokens),
        "tokenizer.ggml.merges": [*gguf_metadata["tokenizer.ggml.merges"], "Ċ Ċ"],
        "tokenizer.ggml.add_bos_token": False,
    }
    assert spelt(tokenizer_lib.from_gguf(metadata), "\n\nthe") == expected


def test_qwen_composes_accents(gguf_metadata):
    metadata = {**gguf_metadata, "tokenizer.ggml.pre": "qwen2"}
    words = tokenizer_lib.from_gguf(metadata)
    assert words.encode("e\u0301") == words.encode("\u00e9")


def test_bos_is_added_when_asked_for(gguf_metadata):
    metadata = {**gguf_metadata, "tokenizer.ggml.add_bos_token": True}
    words = tokenizer_lib.from_gguf(metadata)
    assert spelt(words, "the") == ["<|start|>", "the"]
    assert spelt(words, "the", add_special_tokens=False) == ["the"]


def test_llama3_adds_bos_by_itself(gguf_metadata):
    metadata = {**gguf_metadata, "tokenizer.ggml.pre": "llama-bpe"}
    assert spelt(tokenizer_lib.from_gguf(metadata), "the") == ["<|start|>", "the"]


def test_padding_tokens_are_not_part_of_the_vocabulary(words, gguf_metadata):
    tokens = gguf_metadata["tokenizer.ggml.tokens"]
    kinds = gguf_metadata["tokenizer.ggml.token_type"]
    padded = {
        **gguf_metadata,
        "tokenizer.ggml.tokens": [*tokens, f"[PAD{len(tokens)}]"],
        "tokenizer.ggml.token_type": [*kinds, 5],
    }
    made = tokenizer_lib.from_gguf(padded)
    assert made.vocab_size == words.vocab_size
    assert made.fingerprint() == words.fingerprint()


def test_user_defined_tokens_are_whole_but_not_special(gguf_metadata):
    tokens = [*gguf_metadata["tokenizer.ggml.tokens"], "<tool>"]
    kinds = [*gguf_metadata["tokenizer.ggml.token_type"], 4]
    metadata = {
        **gguf_metadata,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds,
    }
    words = tokenizer_lib.from_gguf(metadata)
    ids = words.encode("a<tool>b")
    assert len(tokens) - 1 in ids
    assert words.decode(ids) == "a<tool>b"


@pytest.mark.parametrize("part", ["tokens", "merges"])
def test_fingerprint_sees_every_part(words, gguf_metadata, part):
    key = f"tokenizer.ggml.{part}"
    changed = list(gguf_metadata[key])
    if part == "tokens":
        changed[2], changed[3] = changed[3], changed[2]
    else:
        changed[0], changed[2] = changed[2], changed[0]
    other = tokenizer_lib.from_gguf({**gguf_metadata, key: changed})
    assert other.fingerprint() != words.fingerprint()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "llama"}, "SentencePiece"),
        ({"model": None}, "must be 'gpt2'"),
        ({"pre": "tekken"}, "tokenizer.ggml.pre must be one of smollm"),
        ({"merges": ["x yz"]}, "merges do not fit"),
        ({"merges": ["nospace"]}, "merges do not fit"),
        ({"token_type": [1]}, "token_type must have"),
        ({"add_bos_token": True, "bos_token_id": 10**6}, "not in the vocabulary"),
    ],
)
def test_bad_metadata(gguf_metadata, changes, message):
    metadata = {
        **gguf_metadata,
        **{f"tokenizer.ggml.{key}": value for key, value in changes.items()},
    }
    with pytest.raises(ValueError, match=message):
        tokenizer_lib.from_gguf(metadata)


def test_missing_tokens(gguf_metadata):
    metadata = {k: v for k, v in gguf_metadata.items() if k != "tokenizer.ggml.tokens"}
    with pytest.raises(ValueError, match=r"tokenizer.ggml.tokens is missing"):
        tokenizer_lib.from_gguf(metadata)


@pytest.mark.parametrize("text", ["", "{}", "not json"])
def test_bad_json(tmp_path, text):
    path = tmp_path / "tokenizer.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"not a tokenizer.json"):
        tokenizer_lib.from_json(path)
