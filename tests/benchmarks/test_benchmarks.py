"""Benchmarks run on the tiny model: that they work, not how fast it is."""

import io
import itertools
import json
import os
import pathlib
import sys

import jax
import pytest
import rich.console

from benchmarks import demo, measure
from benchmarks.decoding import floor, forward, overhead, peers, startup, workers
from specjax.evaluation import prompts
from tests import saved_model, tiny_model

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
# Answers every request with four tokens, the first of them after 1 s.
PARROT = """
import json, sys
for line in sys.stdin:
    quit = json.loads(line).get("quit")
    answer = {"tokens": [1, 2, 3, 4], "first_seconds": 1, "first_tokens": 1,
              "decode_seconds": 2}
    print(json.dumps({"peak_bytes": 2**20, "versions": {}} if quit else answer),
          flush=True)
"""


@pytest.fixture(scope="module")
def lm():
    return tiny_model.language_model(num_layers=1, max_context=1024)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    saved_model.write(path, num_layers=1)
    return path


@pytest.fixture(autouse=True)
def environment(monkeypatch, tmp_path_factory):
    """Processes find the repository and their own cache folder."""
    path = os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])
    monkeypatch.setenv("PYTHONPATH", path)
    monkeypatch.setenv("SPECJAX_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
    monkeypatch.delenv("XLA_FLAGS", raising=False)


def test_forward(lm, capsys):
    found = forward.run(
        lm, widths=(1, 3), present=(0, 200), capacities=(256, 512), steps=2, repeats=2
    )
    assert len(found) == 2 * 2 * 2
    assert {x["capacity"] for x in found if "over_first" in x} == {512}
    measure.emit("forward", {}, found)
    line = json.loads(capsys.readouterr().out)
    assert line["results"] == found
    assert line["environment"]["device"] == "cpu"


def test_floor(lm):
    speed = floor.bandwidth(2, size=1 << 16, repeats=2)
    assert speed > 0
    found = floor.run({"dense": lm}, speed, widths=(1, 3), steps=2, repeats=2)
    assert [x["width"] for x in found] == [1, 3]
    bytes_held = sum(leaf.nbytes for leaf in jax.tree.leaves(lm.params))
    assert found[0]["floor_ms"] == pytest.approx(1e3 * bytes_held / speed, rel=1e-3)
    assert found[0]["over_floor"] == pytest.approx(
        found[0]["median_ms"] / found[0]["floor_ms"], rel=1e-2
    )


def test_overhead_holds_rounds_at_their_width(lm):
    found = overhead.run(
        lm, widths=(1, 4), prompt_tokens=16, capacities=(256, 512), steps=4, repeats=2
    )
    cases = {(x["width"], x["capacity"], x["case"]): x for x in found}
    names = ("bare", *overhead.SAMPLINGS)
    assert set(cases) == set(itertools.product((1, 4), (256, 512), names))
    assert cases[4, 512, "bare"]["over_bare"] == 1.0
    assert cases[4, 256, "greedy"]["accepted"] == 0
    assert {x["capacity"] for x in found if "over_first" in x} == {512}


def test_peers_are_compared():
    parrot = [sys.executable, "-c", PARROT]
    with workers.Worker(parrot) as ours, workers.Worker(parrot) as theirs:
        found = peers.compare(
            {"ours": ours, "theirs": theirs},
            {"ours": ["none", "auto"], "theirs": ["none"]},
            [[5, 6], [7]],
            stop_ids=[0],
            max_new_tokens=4,
            repeats=2,
        )
    # Two prompts of 3 later tokens in 2 s, 3 prompt tokens in 2 x 1 s.
    assert found["numbers"]["ours none"]["decode_tokens_per_second"] == 1.5
    assert found["numbers"]["ours none"]["prefill_tokens_per_second"] == 1.5
    ratios = found["over_theirs_plain"]
    assert set(ratios) == {"ours none", "ours auto"}
    assert ratios["ours auto"]["decode_tokens_per_second"] == 1.0
    assert found["same_tokens"] == {"ours none": 2, "ours auto": 2}
    assert found["peak_mib"] == {"ours": 1, "theirs": 1}


def test_own_worker_serves(folder):
    command = [sys.executable, "-m", "benchmarks.decoding.own_worker", str(folder)]
    drafters = ["none", "prompt_lookup"]
    with workers.Worker([*command, "2", "256", "dense", *drafters]) as worker:
        answers = [
            worker.ask(ids=[5, 6, 5], max_new_tokens=6, stop_ids=[], drafter=drafter)
            for drafter in drafters
        ]
        last = worker.ask(quit=True)
    assert answers[0]["tokens"] == answers[1]["tokens"]
    assert len(answers[0]["tokens"]) == 6
    assert last["peak_bytes"] > 2**20


def test_a_worker_that_ends_is_an_error():
    with (
        workers.Worker([sys.executable, "-c", "raise SystemExit(3)"]) as worker,
        pytest.raises(RuntimeError, match="ended with 3"),
    ):
        worker.ask(ids=[1])


def test_startup(folder):
    found = startup.run(str(folder), repeats=1)
    assert 0 < found["warm_first_text_seconds"] <= found["warm_end_seconds"]
    assert found["cold_first_text_seconds"] > 0


def test_demo(lm):
    questions = [
        prompts.Question(question_id=i, category="c", turns=(f"the {i} the than",))
        for i in range(2)
    ]
    console = rich.console.Console(file=io.StringIO(), width=100)
    lines = demo.run(lm, questions, max_new_tokens=8, console=console)
    assert lines[-1].identical == 2
    assert "tokens a call of the target" in console.file.getvalue()
