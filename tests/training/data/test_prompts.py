"""Prompts: read, told apart, kept off benchmarks."""

import gzip
import json
import pathlib

import pytest

from specjax.training.data import prompts, shards

REPOSITORY = pathlib.Path(__file__).resolve().parents[3]
SHIPPED = REPOSITORY / "configs" / "prompts" / "train.jsonl.gz"
TEN = "one two three four five six seven eight nine ten"


def prompt(text):
    return prompts.Prompt(text, "here", shards.TRAIN)


def test_read(tmp_path):
    rows = [
        {"prompt": "Hello?", "source": "me", "split": "validation"},
        {"prompt": "And you?"},
    ]
    raw = "\n".join(map(json.dumps, rows)).encode()
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(raw))
    first, second = prompts.read(tmp_path / "a.jsonl.gz")
    assert first == ("Hello?", "me", "validation")
    assert second == ("And you?", "a.jsonl.gz", prompts.split_of("And you?"))


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "holds no prompts"),
        (b"{", ":1: not a line of JSON"),
        (b'{"prompt": "a"}\n[]', ":2: expected an object with 'prompt'"),
        (b'{"prompt": " "}', "expected an object with 'prompt'"),
        (b'{"prompt": "a", "split": "test"}', "'split' must be one of"),
    ],
)
def test_bad_files(tmp_path, raw, message):
    (tmp_path / "a.jsonl").write_bytes(raw)
    with pytest.raises(ValueError, match=message):
        prompts.read(tmp_path / "a.jsonl")


def test_missing_and_damaged_files(tmp_path):
    with pytest.raises(ValueError, match="can't read"):
        prompts.read(tmp_path / "a.jsonl")
    (tmp_path / "b.gz").write_bytes(gzip.compress(b'{"prompt": "a"}' * 99)[:30])
    with pytest.raises(ValueError, match="can't read"):
        prompts.read(tmp_path / "b.gz")


def test_equal_words_are_one_prompt():
    same = [prompt("Name  three rivers."), prompt("name three RIVERS")]
    kept = prompts.clean([*same, prompt("Name three lakes.")], frozenset())
    assert [x.text for x in kept.prompts] == [
        "Name  three rivers.",
        "Name three lakes.",
    ]
    assert kept.dropped == {"twice": 1, "in a benchmark": 0}
    assert not prompts.clean(same, frozenset(), seen=[same[0].id]).prompts


def test_texts_without_words_are_told_apart():
    kept = prompts.clean([prompt("?!"), prompt("...")], frozenset())
    assert len(kept.prompts) == 2


@pytest.mark.parametrize(
    ("text", "stays"),
    [
        (f"Say: {TEN.upper()}, please", False),
        (TEN.removesuffix(" ten") + " eleven", True),
        ("one, two; three four five six seven eight nine\nten", False),
    ],
)
def test_ten_words_of_a_benchmark_are_too_many(text, stays):
    forbidden = prompts.runs([f"Well, {TEN}."])
    assert bool(prompts.clean([prompt(text)], forbidden).prompts) is stays


def test_a_twentieth_is_for_validation():
    splits = [prompts.split_of(f"question number {n}") for n in range(4000)]
    assert 150 < splits.count(shards.VALIDATION) < 250  # 200 +- 3.6 deviations


def test_what_is_shipped_is_off_the_benchmarks():
    given = prompts.read(SHIPPED)
    assert len(given) > 10_000
    files = sorted((REPOSITORY / "benchmarks" / "data").glob("*.jsonl"))
    kept = prompts.clean(given, prompts.held_out(files))
    assert kept.dropped["in a benchmark"] == 0
    assert kept.dropped["twice"] == 0
