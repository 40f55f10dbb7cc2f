"""Bad input that ended in a traceback, or that ``check`` called fit."""

import json
import signal
import subprocess
import sys

import pytest

from specjax import checkpoints


def refused(result, *words):
    assert result.exit_code == 2, (result.exit_code, repr(result.exception))
    assert all(word in result.stderr for word in words)


def test_draft_with_a_padded_embedding(run, make_model, model_folder):
    """The tokenizer is the same, the embedding has more rows (Qwen2.5 0.5B and 7B)."""
    padded = make_model("padded", num_layers=1, vocab_size=264)
    checked = run("check", model_folder, padded)
    base = ["generate", "--model", model_folder, "--no-cache", "--prompt", "a"]
    base += ["--max-new-tokens", 3, "--drafter", f"draft_model:model={padded}"]
    used = run(*base)
    assert (checked.exit_code == 0) == (used.exit_code == 0), used.stderr
    assert "Incompatible shapes" not in used.stderr


@pytest.mark.parametrize(
    "command", [["check"], ["generate", "--prompt", "a", "--model"]]
)
def test_home_of_no_user(run, command):
    refused(run(*command, "~nosuchuser/model"), "nosuchuser")


@pytest.mark.parametrize(
    "change",
    [
        {"model_type": ["llama"]},
        {"rope_scaling": "linear"},
        {"rope_theta": []},
        {"rms_norm_eps": {}},
        {"eos_token_id": {"a": 1}},
        {"hidden_act": []},
        {"vocab_size": [[1]]},
    ],
    ids=lambda change: next(iter(change)),
)
def test_config_of_wrong_types(run, make_model, change):
    path = make_model() / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(ValueError, match=r"config|eos_token_id"):
        checkpoints.load(path.parent)


def test_rows_of_results_without_numbers(run, tmp_path):
    row = {"question_id": 1, "category": "c", "turn": 0, "drafter": "none"}
    row |= {"tokens": [1], "identical": True}
    (tmp_path / "r.jsonl").write_text(json.dumps(row) + "\n")
    refused(run("report", tmp_path / "r.jsonl", "--out", tmp_path), "decode_seconds")


@pytest.mark.parametrize("what", ["results", "dataset", "recipe", "store"])
def test_what_is_nested_too_deeply(run, tmp_path, what):
    deep = "[" * 100_000
    path = tmp_path / "x"
    path.write_text(f"a={deep}" if what == "recipe" else f"{deep}\n")
    if what == "store":
        (tmp_path / "store.json").write_text(deep)
    command = {
        "results": ["report", path, "--out", tmp_path],
        "dataset": ["bench", "--dataset", path],
        "recipe": ["generate", "--config", path, "--prompt", "a"],
        "store": ["datastore", "info", tmp_path],
    }[what]
    refused(run(*command), "nested too deeply")


def test_bench_context_of_zero(run, model_folder, dataset):
    base = ["bench", "--model", model_folder, "--no-cache", "--dataset", dataset]
    refused(run(*base, "--max-new-tokens", 2, "--max-context", 0), "--max-context")


def test_a_level_of_temperature_that_float32_can_not_hold(run, model_folder):
    base = ["generate", "--model", model_folder, "--no-cache", "--prompt", "a"]
    refused(run(*base, "--temperature", 3e38), "--temperature")


def test_a_header_of_absurd_size_is_refused_at_once(make_model):
    path = make_model() / "config.json"
    huge = {**json.loads(path.read_text()), "num_hidden_layers": 10**9}
    path.write_text(json.dumps(huge))
    with pytest.raises(ValueError, match="num_layers must be 1 to"):
        checkpoints.load(path.parent)


def test_ctrl_c_outside_of_a_stream_ends_at_once():
    """Loading and compiling run foreign code, where an exception may be lost."""
    code = (
        "import time\n"
        "from specjax.cli import errors\n"
        "def work():\n"
        "    print('ready', flush=True)\n"
        "    time.sleep(60)\n"
        "errors.guard(work)()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=30)
    assert process.returncode == 130
    assert error == "interrupted\n"
