"""What `generate` prints."""

import contextlib
import json
import os
import signal
import threading

import pytest

from specjax.cli import interrupts, progress, session, show
from specjax.decoding import result as result_lib

FIELDS = {
    "text",
    "tokens",
    "finish_reason",
    "prompt_tokens",
    "new_tokens",
    "target_calls",
    "drafted",
    "accepted",
    "tokens_per_target_call",
    "accepted_per_depth",
    "accepted_per_source",
    "prefill_seconds",
    "decode_seconds",
    "tokens_per_second",
    "compile_seconds",
    "programs",
    "model",
    "drafter",
    "device",
    "choice",
    "seed",
}


@pytest.fixture(scope="module", autouse=True)
def compile_once():
    """Keeps engines from command to command: compiling is most of their time."""
    engines = {}
    build = session.engine

    def engine(recipe, lm):
        key = recipe.model_dump_json(exclude={"sampling"})
        if key not in engines:
            engines[key] = build(recipe, lm)
        return engines[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "engine", engine)
        yield


@pytest.fixture(scope="module")
def generate(run, model_folder):
    """(*arguments) -> the answer to one prompt of the tiny model."""

    def invoke(*arguments, prompt=("--prompt", "the than the than the"), input=None):
        base = ["generate", "--model", model_folder, "--no-cache", *prompt]
        return run(*base, *arguments, input=input)

    return invoke


@pytest.fixture(scope="module")
def plain(generate):
    """The JSON of a plain generation."""
    result = generate("--drafter", "none", "--max-new-tokens", 12, "--json")
    assert result.exit_code == 0, result.stderr
    assert result.stderr == ""
    return json.loads(result.stdout)


def test_json_has_every_field(plain):
    assert set(plain) >= FIELDS
    assert plain["new_tokens"] == len(plain["tokens"]) == 12
    assert plain["finish_reason"] == "length"
    assert plain["tokens_per_target_call"] == 1.0


def test_stats_say_why_the_drafter_is_as_it_is(plain, capsys):
    show.stats(result_lib.Result(**plain))
    assert "choice" not in capsys.readouterr().err
    show.stats(result_lib.Result(**plain | {"choice": "left out"}))
    assert "left out" in capsys.readouterr().err


def test_json_is_clean_where_a_log_is_told_of_compiling(generate, plain, monkeypatch):
    class Impatient(threading.Timer):
        def start(self):
            self.function(*self.args, **self.kwargs)

    monkeypatch.setattr(progress.threading, "Timer", Impatient)
    result = generate("--drafter", "none", "--max-new-tokens", 12, "--json")
    assert json.loads(result.stdout)["tokens"] == plain["tokens"]
    lines = result.stderr.splitlines()
    assert [line.split()[0] for line in lines] == ["loading", "preparing"]


def test_streamed_text_is_that_of_json(generate, plain):
    drafter = ["--drafter", "prompt_lookup:max_draft=3"]
    result = generate("--max-new-tokens", 12, "--stats", *drafter)
    assert result.exit_code == 0
    assert result.stdout == plain["text"] + "\n"
    assert "tokens per target call" in result.stderr


def test_standard_input(generate, plain):
    result = generate(
        "--max-new-tokens", 12, "--json", prompt=(), input="the than the than the\n"
    )
    assert json.loads(result.stdout)["tokens"] == plain["tokens"]


def test_recipe_and_what_goes_before_it(generate, plain, tmp_path):
    path = tmp_path / "recipe.toml"
    path.write_text("[sampling]\nmax_new_tokens = 3\nstop_token_ids = [5]\n")
    result = generate("--config", path, "--max-new-tokens", 5, "--json")
    assert json.loads(result.stdout)["tokens"] == plain["tokens"][:5]


def test_samples_are_a_line_each(generate):
    result = generate(
        "--max-new-tokens", 6, "--json", "--num-samples", 3, "--temperature", 1
    )
    samples = [json.loads(line) for line in result.stdout.splitlines()]
    assert [sample["sample"] for sample in samples] == [0, 1, 2]
    assert len({tuple(sample["tokens"]) for sample in samples}) > 1


def test_system_message_and_raw_text_change_the_prompt(generate, plain):
    system = generate("--max-new-tokens", 2, "--json", "--system", "be brief")
    raw = generate("--max-new-tokens", 2, "--json", "--raw")
    lengths = [json.loads(result.stdout)["prompt_tokens"] for result in (system, raw)]
    assert lengths[0] > plain["prompt_tokens"] > lengths[1]


def test_stop_text_is_left_out(generate, plain):
    arguments = ["--max-new-tokens", 30, "--temperature", 1]
    whole = generate(*arguments).stdout
    ends = next(x for x in whole[3:] if x.isascii())
    found = json.loads(generate(*arguments, "--json", "--stop", ends).stdout)
    assert found["finish_reason"] == "stop"
    assert found["text"] == whole[: whole.index(ends)]


def test_interrupt_keeps_what_there_is(generate, monkeypatch):
    before, notice = signal.getsignal(signal.SIGINT), interrupts.notice

    @contextlib.contextmanager
    def pressed():
        """Before the stream, Ctrl-C ends the process, and this one runs the tests."""
        with notice() as seen:
            os.kill(os.getpid(), signal.SIGINT)
            yield seen

    monkeypatch.setattr(interrupts, "notice", pressed)
    result = generate("--max-new-tokens", 220, "--ignore-eos", "--json")
    assert result.exit_code == 130
    found = json.loads(result.stdout)
    assert found["finish_reason"] == "interrupted"
    assert 1 <= found["new_tokens"] == len(found["tokens"]) < 220
    assert signal.getsignal(signal.SIGINT) is before
