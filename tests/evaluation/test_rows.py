"""The file of results."""

import pytest

from specjax.evaluation import rows


def row(question, drafter, **changes):
    base = {"question_id": question, "turn": 0, "category": "c", "drafter": drafter}
    numbers = dict.fromkeys(rows.NUMBERS, 1)
    shared = {"tokens": [1], "identical": True, "settings": {"a": 1}}
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
