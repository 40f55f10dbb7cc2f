"""`train data`."""

import json

import pytest

from specjax.training.data import shards
from tests import saved_model


@pytest.fixture
def given(tmp_path):
    path = tmp_path / "prompts.jsonl"
    texts = ["the ban", "an owl", "banana", "x"]
    path.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))
    return path


@pytest.fixture
def data(run, model_folder):
    """(*arguments) -> the answer of `train data` for the tiny model."""
    base = ["train", "data", "--model", model_folder, "--no-cache"]
    base += ["--max-new-tokens", 5, "--max-prompt-tokens", 64, "--batch-size", 2]
    return lambda *arguments: run(*base, *arguments)


def test_answers_are_kept_and_gone_on_with(data, given, tmp_path):
    out = tmp_path / "data"
    asked = ("--out", out, "--prompts", given, "--shard-size", 2, "--json")
    first = data(*asked)
    assert first.exit_code == 0, first.stderr
    card = json.loads(first.stdout)
    assert card["shards"] == 2
    assert sum(card["documents"].values()) == 4
    assert "prompts 4/4" in first.stderr
    read = [shards.read(out, split) for split in shards.SPLITS]
    assert sum(len(part.tokens) for part in read) == 4
    again = data(*asked)
    assert json.loads(again.stdout) == card


def test_a_table_for_people(data, given, tmp_path):
    result = data("--out", tmp_path / "data", "--prompts", given, "--limit", 1)
    assert result.exit_code == 0, result.stderr
    assert "answer_tokens" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), ("--prompts or --own",)),
        (("--own", 2, "--temperatures", "hot"), ("--temperatures", "T:SHARE")),
        (("--own", 2, "--temperatures", "0:1,0:2"), ("names one twice",)),
        (("--own", 2, "--temperatures", "-1:1"), ("from 0 up",)),
        (("--own", 2, "--held-out", "none.jsonl"), ("can't read none.jsonl",)),
        (("--prompts", "none.jsonl"), ("can't read none.jsonl",)),
    ],
)
def test_bad_input(data, tmp_path, arguments, words):
    result = data("--out", tmp_path / "data", *arguments)
    assert result.exit_code == 2, result.stderr
    assert result.stderr.count("\n") == 1
    for word in words:
        assert word in result.stderr
    assert not (tmp_path / "data").exists()


def test_a_folder_of_other_settings_is_refused(data, given, tmp_path):
    out = tmp_path / "data"
    assert data("--out", out, "--prompts", given).exit_code == 0
    result = data("--out", out, "--prompts", given, "--seed", 3)
    assert result.exit_code == 2
    assert "was made with settings" in result.stderr


def test_a_model_without_a_template_is_refused(run, given, tmp_path):
    (tmp_path / "model").mkdir()
    saved_model.write(tmp_path / "model", chat=False)
    base = ("train", "data", "--model", tmp_path / "model", "--no-cache")
    result = run(*base, "--out", tmp_path / "data", "--prompts", given)
    assert result.exit_code == 2
    assert "no chat template" in result.stderr


def test_more_tokens_than_the_context_are_refused(run, model_folder, given, tmp_path):
    base = ("train", "data", "--model", model_folder, "--no-cache")
    result = run(*base, "--out", tmp_path / "data", "--prompts", given)
    assert result.exit_code == 2
    assert "max_prompt_tokens=512 and max_new_tokens=256 exceed" in result.stderr
