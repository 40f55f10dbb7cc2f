"""The file of results."""

import json

import pytest

from specjax.evaluation import rows


def row(question, drafter, **changes):
    base = {"question_id": question, "turn": 0, "category": "c", "drafter": drafter}
    counts = ("new_tokens", "target_calls", "drafted", "accepted")
    numbers = {"decode_seconds": 1.5, **dict.fromkeys(counts, 1)}
    shared = {"tokens": [1], "identical": True, "settings": {"a": 1}}
    shared["accepted_per_depth"] = [1]
    return {**base, **numbers, **shared, **changes}


PAIR = [row(1, "none"), row(1, "x"), row(2, "none"), row(2, "x")]


def test_a_last_line_that_was_cut_is_left_out(tmp_path):
    path = tmp_path / "r.jsonl"
    rows.append(path, PAIR)
    path.write_bytes(path.read_bytes()[:-5])
    assert rows.read(path) == PAIR[:3]


def test_resume_drops_prompts_that_are_not_whole(tmp_path):
    path = tmp_path / "r.jsonl"
    rows.append(path, PAIR[:3])
    assert rows.resume(path, {"a": 1}, whole=2) == PAIR[:2]
    assert rows.read(path) == PAIR[:2]
    rows.append(path, PAIR[2:])
    assert rows.read(path) == PAIR


def test_resume_drops_conversations_that_are_not_whole(tmp_path):
    path = tmp_path / "r.jsonl"
    rows.append(path, [*PAIR, row(2, "none", turn=1)])
    assert rows.resume(path, {"a": 1}, whole=2) == PAIR[:2]


def test_resume_with_other_settings_is_refused(tmp_path):
    path = tmp_path / "r.jsonl"
    rows.append(path, PAIR)
    with pytest.raises(ValueError, match="a=1, this run has 2"):
        rows.resume(path, {"a": 2}, whole=2)


def test_a_line_that_is_no_result_is_named(tmp_path):
    path = tmp_path / "r.jsonl"
    path.write_text('{"question_id": 1}\n')
    with pytest.raises(ValueError, match=r":1: .*category"):
        rows.read(path)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("tokens", [1, "2"]),
        ("tokens", None),
        ("identical", "yes"),
        ("category", 3),
        ("decode_seconds", "1"),
        ("decode_seconds", float("nan")),
        ("new_tokens", -1),
        ("target_calls", True),
        ("batch", 0),
        ("settings", []),
        ("settings", {"sampling": 5}),
        ("accepted_per_depth", 5),
        ("new_tokens", 10**400),
        ("margin_at_difference", "wide"),
        ("margin_at_difference", float("nan")),
        ("drafter_mb", None),
        ("drafted_per_source", {"text": "1"}),
    ],
)
def test_a_value_that_no_result_has_is_named(tmp_path, name, wrong):
    path = tmp_path / "r.jsonl"
    rows.append(path, [row(1, "none"), row(1, "x", **{name: wrong})])
    with pytest.raises(ValueError, match=rf":2: .*{name}"):
        rows.read(path)


def test_half_a_character_is_refused(tmp_path):
    path = tmp_path / "r.jsonl"
    line = json.dumps(row(1, "none", category="\ud800"))
    assert r"\ud800" in line
    path.write_text(f"{line}\n")
    with pytest.raises(ValueError, match="category: value error, must be whole"):
        rows.read(path)


@pytest.mark.parametrize("line", ["3", "[]", "null"])
def test_a_line_that_is_no_object_is_refused(tmp_path, line):
    path = tmp_path / "r.jsonl"
    path.write_text(f"{line}\n")
    with pytest.raises(ValueError, match=":1: not a row of `bench`"):
        rows.read(path)
