"""Prompt files."""

import json

import pytest

from specjax.evaluation import prompts


def write(path, *rows):
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def question(number, **changes):
    return {"question_id": number, "category": "c", "turns": ["a"], **changes}


def test_reads_rows_in_order(tmp_path):
    path = write(tmp_path / "p.jsonl", question(3), question("x", turns=["a", "b"]))
    read = prompts.read(path)
    assert [q.question_id for q in read] == [3, "x"]
    assert read[1].turns == ("a", "b")


def test_limit_is_spread_over_the_file(tmp_path):
    path = write(tmp_path / "p.jsonl", *(question(i) for i in range(10)))
    # floor(i * 10 / 4) for i = 0 .. 3.
    assert [q.question_id for q in prompts.read(path, 4)] == [0, 2, 5, 7]
    assert len(prompts.read(path, 99)) == 10


@pytest.mark.parametrize(
    ("row", "word"),
    [
        ([1], "object"),
        ({"question_id": 1}, "category"),
        (question(True), "question_id"),
        (question(1, category=2), "category"),
        (question(1, turns="a"), "turns"),
        (question(1, turns=["a", " "]), "turn"),
        (question(0), "twice"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(tmp_path, row, word):
    path = write(tmp_path / "p.jsonl", question(0), row)
    with pytest.raises(ValueError, match=rf":2: .*{word}"):
        prompts.read(path)


def test_bytes_that_are_not_utf8(tmp_path):
    path = tmp_path / "p.jsonl"
    path.write_bytes(b'\n{"question_id": "\xff"}\n')
    with pytest.raises(ValueError, match=r":2: .*UTF-8"):
        prompts.read(path)


def test_a_file_without_questions(tmp_path):
    path = write(tmp_path / "p.jsonl")
    with pytest.raises(ValueError, match="no questions"):
        prompts.read(path)
