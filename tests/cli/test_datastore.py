"""`datastore build` and `datastore info`."""

import json
import os
import pathlib
import signal
import subprocess
import sys

import pytest

from specjax import datastores
from specjax.datastores import answers as answers_lib

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def build(run, model_folder):
    """(*arguments) -> the answer of `datastore build` for the tiny model."""

    def invoke(*arguments):
        base = ["datastore", "build", "--model", model_folder, "--no-cache"]
        return run(*base, *arguments)

    return invoke


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "corpus.txt"
    path.write_text("the ban and the ban\n\nthe than\n\nbanana\n")
    return path


def assert_refused(result, *words):
    assert result.exit_code == 2, (result.exit_code, result.stderr, result.exception)
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    for word in words:
        assert word in result.stderr


def test_from_texts(build, corpus, tmp_path):
    rows = tmp_path / "more.jsonl"
    rows.write_text('{"text": "an owl"}\n')
    out = tmp_path / "store"
    result = build("--out", out, "--text", corpus, "--text", rows, "--ngram", 3)
    assert result.exit_code == 0, result.stderr
    assert "documents 4/4" in result.stderr
    assert "corpus, model_ngrams, successor" in result.stdout
    store = datastores.load(out)
    assert store.documents == 4
    assert store.arrays["phrase"].shape[1:] == (7, 2)


def test_a_limit_is_evenly_spaced(build, corpus, tmp_path):
    out = tmp_path / "store"
    assert build("--out", out, "--text", corpus, "--limit", 2).exit_code == 0
    text = datastores.load(out).arrays["text"].tolist()
    whole = tmp_path / "whole"
    assert build("--out", whole, "--text", corpus).exit_code == 0
    expected = datastores.load(whole).arrays["text"].tolist()
    second = expected.index(-1) + 1  # rows 0 and floor(3 / 2) = 1 of three
    assert text == expected[: expected.index(-1, second) + 1]


def test_a_store_is_not_overwritten_unasked(build, corpus, tmp_path):
    out = tmp_path / "store"
    assert build("--out", out, "--text", corpus).exit_code == 0
    before = (out / "store.json").read_bytes()
    assert_refused(build("--out", out, "--text", corpus), "--out", "--overwrite")
    assert (out / "store.json").read_bytes() == before
    again = build("--out", out, "--text", corpus, "--limit", 1, "--overwrite")
    assert again.exit_code == 0
    assert datastores.load(out).documents == 1


def test_answers_are_not_lost_to_texts_unasked(build, corpus, tmp_path):
    out = tmp_path / "store"
    out.mkdir()
    answers = out / answers_lib.ROWS
    answers.write_text("{}\n")
    assert_refused(build("--out", out, "--text", corpus), "--out", "answers")
    assert answers.exists()
    assert build("--out", out, "--text", corpus, "--overwrite").exit_code == 0
    assert not answers.exists()


def test_from_prompts_and_on_after_a_kill(build, model_folder, dataset, tmp_path):
    """Killed after the first of four prompts, it goes on and loses none."""
    out = tmp_path / "store"
    arguments = ["--out", out, "--prompts", dataset, "--max-new-tokens", 200]
    arguments += ["--batch-size", 1]
    command = [sys.executable, "-m", "specjax", "datastore", "build"]
    command += ["--model", model_folder, "--no-cache", *arguments]
    path = os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])
    variables = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": path}
    with subprocess.Popen(
        list(map(str, command)), env=variables, stderr=subprocess.PIPE, text=True
    ) as process:
        told = (line for line in process.stderr if not line.startswith("loading"))
        assert next(told) == "prompts 1/4\n"
        process.send_signal(signal.SIGKILL)
    result = build(*arguments)
    assert result.exit_code == 0, result.stderr
    assert "prompts 1/4" not in result.stderr
    lines = (out / answers_lib.ROWS).read_text().splitlines()[1:]
    assert [json.loads(line)["index"] for line in lines] == [0, 1, 2, 3]
    assert datastores.load(out).documents == 4
    # Done already: the store is made again from the answers that are there.
    assert "prompts" not in build(*arguments).stderr
    assert_refused(build(*arguments, "--max-new-tokens", 9), "max_new_tokens=200")


@pytest.fixture(scope="module")
def store(build, tmp_path_factory):
    folder = tmp_path_factory.mktemp("store")
    (folder / "a.txt").write_text("the ban and the ban")
    result = build("--out", folder / "store", "--text", folder / "a.txt")
    assert result.exit_code == 0, result.stderr
    return folder / "store"


def test_info(run, store):
    result = run("datastore", "info", store)
    assert result.exit_code == 0
    assert "corpus, model_ngrams, successor" in result.stdout
    assert "megabytes" in result.stdout


def test_info_as_json(run, store, model_folder):
    facts = json.loads(run("datastore", "info", store, "--json").stdout)
    assert facts["documents"] == 1
    assert facts["path"] == str(store)
    assert facts["options"]["model"] == str(model_folder)
    assert list(facts) == [
        "path",
        "format",
        "version",
        "parts",
        "fingerprint",
        "vocab_size",
        "documents",
        "tokens",
        "options",
        "megabytes",
    ]
    assert list(facts["megabytes"]) == [
        "text",
        "order",
        "phrase",
        "count",
        "total",
        "successor",
    ]


def test_info_of_no_store(run, tmp_path):
    assert_refused(run("datastore", "info", tmp_path), "is no datastore")


def test_help_names_both_commands(run):
    result = run("datastore", "--help")
    assert "build" in result.stdout
    assert "info" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ([], "--text or --prompts"),
        (["--text", "nope.txt"], "--text: nope.txt"),
        (["--prompts", "nope.jsonl"], "--prompts: nope.jsonl"),
        (["--text", "nope.txt", "--prompts", "nope.jsonl"], "--text or --prompts"),
        (["--text", "CORPUS", "--ngram", "1"], "--ngram"),
        (["--text", "CORPUS", "--max-phrases", "0"], "--max-phrases"),
        (["--text", "CORPUS", "--max-ngrams", "0"], "--max-ngrams"),
        (["--text", "CORPUS", "--limit", "0"], "--limit"),
        (["--text", "CORPUS", "--model", "nope"], "--model"),
        (["--prompts", "CORPUS"], "not a line of JSON"),
        (["--prompts", "PROMPTS", "--batch-size", "0"], "--batch-size"),
        (["--prompts", "PROMPTS", "--max-new-tokens", "0"], "--max-new-tokens"),
        (["--prompts", "PROMPTS", "--max-new-tokens", "9999"], "max_new_tokens=9999"),
        (["--text", "CORPUS", "--out", "no/such/folder"], "--out"),
        (["--text", "CORPUS", "--out", "CORPUS"], "is a file"),
    ],
)
def test_bad_input(build, corpus, dataset, tmp_path, arguments, word):
    named = {"CORPUS": corpus, "PROMPTS": dataset}
    arguments = [named.get(argument, argument) for argument in arguments]
    if "--out" not in arguments:
        arguments += ["--out", tmp_path / "store"]
    assert_refused(build(*arguments), word)
    assert not (tmp_path / "store" / "store.json").exists()


def test_an_empty_corpus(build, tmp_path):
    (tmp_path / "empty.txt").write_text("\n\n")
    arguments = ["--text", tmp_path / "empty.txt", "--out", tmp_path / "store"]
    assert_refused(build(*arguments), "--text", "holds no text")
