"""Answers of the tiny model: whole, interrupted and continued."""

import functools
import json

import pytest

from specjax import Engine, datastores
from specjax.decoding import engine as engine_lib
from tests import tiny_model

PROMPTS = ["the ban", "an owl and then", "x", "banana", "then the"]
OPTIONS = {"max_new_tokens": 6, "batch_size": 2}


@pytest.fixture(scope="module")
def lm():
    return tiny_model.language_model()


@pytest.fixture(scope="module", autouse=True)
def shared_engines():
    """Engines are made once, so that all runs share their compiled programs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine_lib, "Engine", functools.cache(Engine))
        yield


@pytest.fixture(scope="module")
def answers(lm):
    """What an uninterrupted run gives, without a file."""
    return datastores.harvest(lm, PROMPTS, **OPTIONS)


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_answers_are_those_of_plain_decoding(lm, answers):
    longest = max(len(lm.tokenizer.encode(prompt)) for prompt in PROMPTS)
    engine = engine_lib.Engine(lm, max_context=longest + 6)
    for index, prompt in enumerate(PROMPTS):
        result = engine.generate(prompt, max_new_tokens=6)
        assert answers[index]["index"] == index
        assert answers[index]["tokens"] == result.tokens


def test_documents_are_the_answers(lm, answers, tmp_path):
    store = datastores.build_from_prompts(
        lm, PROMPTS, rows=tmp_path / "rows.jsonl", **OPTIONS
    )
    joined = [token for row in answers for token in [*row["tokens"], -1]]
    assert store.arrays["text"].tolist() == joined
    assert store.documents == len(PROMPTS)
    assert store.options["source"] == "prompts"


def test_progress_counts_prompts(lm):
    seen = []
    datastores.harvest(lm, PROMPTS, **OPTIONS, notify=seen.append)
    assert seen == [2, 4, 5]


class _Death(BaseException):
    pass


def interrupted(lm, path, after):
    """Runs until so many prompts are done, then dies."""

    def notify(done):
        if done >= after:
            raise _Death

    with pytest.raises(_Death):
        datastores.harvest(lm, PROMPTS, rows=path, **OPTIONS, notify=notify)


def test_an_interrupted_run_goes_on(lm, answers, tmp_path):
    path = tmp_path / "rows.jsonl"
    interrupted(lm, path, after=2)
    assert [row["index"] for row in lines(path)[1:]] == [0, 1]
    seen = []
    found = datastores.harvest(lm, PROMPTS, rows=path, **OPTIONS, notify=seen.append)
    assert found == answers
    assert lines(path)[1:] == answers
    assert seen == [4, 5]


@pytest.mark.parametrize("cut", [1, 40, 10_000])
def test_a_row_that_was_cut_short_is_made_again(lm, answers, tmp_path, cut):
    """Killed while it wrote: within the last row, a row before, the settings."""
    path = tmp_path / "rows.jsonl"
    interrupted(lm, path, after=4)
    raw = path.read_bytes()
    path.write_bytes(raw[: max(len(raw) - cut, 5)])
    found = datastores.harvest(lm, PROMPTS, rows=path, **OPTIONS)
    assert found == answers
    assert sorted(row["index"] for row in lines(path)[1:]) == [0, 1, 2, 3, 4]


def test_a_row_that_is_there_twice_counts_once(lm, answers, tmp_path):
    path = tmp_path / "rows.jsonl"
    datastores.harvest(lm, PROMPTS, rows=path, **OPTIONS)
    text = path.read_text()
    path.write_text(text + text.splitlines()[-1] + "\n")
    assert datastores.harvest(lm, PROMPTS, rows=path, **OPTIONS) == answers
    assert len(lines(path)) == 1 + len(PROMPTS)


def test_a_finished_run_generates_nothing(lm, answers, tmp_path, monkeypatch):
    path = tmp_path / "rows.jsonl"
    datastores.harvest(lm, PROMPTS, rows=path, **OPTIONS)
    monkeypatch.setattr(Engine, "generate", None)
    assert datastores.harvest(lm, PROMPTS, rows=path, **OPTIONS) == answers


@pytest.mark.parametrize(
    ("prompts", "options", "name"),
    [
        (PROMPTS, {"max_new_tokens": 7}, "max_new_tokens=6"),
        (PROMPTS[:4], {}, "prompts=5"),
        ([*PROMPTS[:4], "else"], {}, "prompts_sha256="),
    ],
)
def test_a_file_of_other_settings_is_refused(lm, tmp_path, prompts, options, name):
    path = tmp_path / "rows.jsonl"
    interrupted(lm, path, after=2)
    before = path.read_bytes()
    with pytest.raises(ValueError, match=f"^rows: .*{name}.*--overwrite"):
        datastores.harvest(lm, prompts, rows=path, **{**OPTIONS, **options})
    assert path.read_bytes() == before


def test_another_batch_size_may_go_on(lm, answers, tmp_path):
    path = tmp_path / "rows.jsonl"
    interrupted(lm, path, after=2)
    found = datastores.harvest(lm, PROMPTS, rows=path, **{**OPTIONS, "batch_size": 1})
    assert found == answers


@pytest.mark.parametrize(
    "line", ["nonsense", "[]", '{"index": 9, "tokens": []}', '{"index": 0}']
)
def test_a_spoilt_file_is_refused(lm, tmp_path, line):
    path = tmp_path / "rows.jsonl"
    interrupted(lm, path, after=2)
    with path.open("a") as file:
        file.write(f"{line}\n")
    with pytest.raises(ValueError, match=r"^rows: .*rows\.jsonl:4: "):
        datastores.harvest(lm, PROMPTS, rows=path, **OPTIONS)


@pytest.mark.parametrize(
    ("prompts", "options", "message"),
    [
        ([], {}, "prompts must be a list"),
        ("the", {}, "prompts must be a list"),
        (["a", " "], {}, "prompt is empty"),
        (["a"], {"batch_size": 0}, "batch_size must be at least 1"),
        (["a"], {"max_new_tokens": 0}, "max_new_tokens"),
        (["a", "b " * 300], {}, "prompts: number 2 has 600 tokens"),
    ],
)
def test_bad_requests(lm, prompts, options, message):
    with pytest.raises(ValueError, match=message):
        datastores.harvest(lm, prompts, **{**OPTIONS, **options})
