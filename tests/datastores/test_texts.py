"""Files of texts and prompts, and what is wrong with them."""

import gzip
import json

import pytest

from specjax import datastores


@pytest.fixture
def write(tmp_path):
    """(name, text or bytes) -> path of a file, packed if its name says so."""

    def make(name, content):
        raw = content.encode() if isinstance(content, str) else content
        path = tmp_path / name
        path.write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
        return path

    return make


@pytest.mark.parametrize("name", ["a.txt", "a.md", "a", "a.txt.gz", "a.GZ.txt"])
def test_paragraphs_are_documents(write, name):
    path = write(name, "one\ntwo\n\n \nthree\r\n\r\nfour\n")
    assert datastores.read_texts(path) == ["one\ntwo", "three", "four\n"]


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.JSONL"])
def test_rows_are_documents(write, name):
    rows = [{"text": "one\n\ntwo"}, {"text": "three", "id": 1}]
    path = write(name, "".join(f"{json.dumps(row)}\n\n" for row in rows))
    assert datastores.read_texts(path) == ["one\n\ntwo", "three"]


def test_prompts_are_first_turns_or_prompts(write):
    rows = [
        {"question_id": 1, "category": "c", "turns": ["first", "second"]},
        {"prompt": "plain"},
    ]
    path = write("p.jsonl", "".join(f"{json.dumps(row)}\n" for row in rows))
    assert datastores.read_prompts(path) == ["first", "plain"]


def test_line_breaks_of_unicode_do_not_end_a_row(write):
    path = write("a.jsonl", '{"text": "one\u2028two"}\n')
    assert datastores.read_texts(path) == ["one\u2028two"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", "\n \n", "holds no text"),
        ("a.txt", b"a\xff", "not UTF-8 .byte 1 is 0xff"),
        ("a.jsonl", "", "holds no text"),
        ("a.jsonl", '{"text": "a"}\n{"text"\n', ":2: not a line of JSON"),
        ("a.jsonl", '{"words": "a"}\n', ":1: 'text' is missing"),
        ("a.jsonl", '{"text": 3}\n', ":1: 'text' must be text"),
        ("a.jsonl", '{"text": " "}\n', ":1: 'text' must be text"),
        ("a.jsonl", "[]\n", ":1: expected an object, got list"),
        ("a.jsonl", b'{"text": "\xff"}\n', ":1: not UTF-8"),
    ],
)
def test_bad_texts(write, name, content, message):
    with pytest.raises(ValueError, match=f"^text: .*{message}"):
        datastores.read_texts(write(name, content))


@pytest.mark.parametrize("spoil", ["plain", "cut", "flipped"])
def test_bad_gzip(write, spoil):
    path = write("a.gz", "words " * 100)
    raw = bytearray(path.read_bytes())
    if spoil == "flipped":
        raw[20] ^= 255
    path.write_bytes({"plain": b"words", "cut": raw[:-9]}.get(spoil, bytes(raw)))
    with pytest.raises(ValueError, match=r"^text: .*a\.gz: not a whole gzip file"):
        datastores.read_texts(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "holds no prompts"),
        ('{"turns": []}\n', ":1: turns must be a list"),
        ('{"turns": "a"}\n', ":1: turns must be a list"),
        ('{"turns": [""]}\n', ":1: 'turns' must be text"),
        ('{"question": "a"}\n', ":1: 'prompt' is missing"),
        ("{\n", ":1: not a line of JSON"),
    ],
)
def test_bad_prompts(write, content, message):
    with pytest.raises(ValueError, match=f"^prompts: .*{message}"):
        datastores.read_prompts(write("p.jsonl", content))


def test_missing_files(tmp_path):
    with pytest.raises(ValueError, match=r"^text: .*No such file"):
        datastores.read_texts(tmp_path / "a.txt")
    with pytest.raises(ValueError, match=r"^prompts: .*No such file"):
        datastores.read_prompts(tmp_path / "a.jsonl")
