"""The prepared script for GPU, as far as it goes without one."""

import functools
import json

import jax
import jax.numpy as jnp
import pytest
import rich.console

from benchmarks.gpu import cases, compile, run, timing

FAKE = [
    timing.Row(case="one", kernel=20.0, xla=50.0, floor=15.0, differs=3e-3),
    timing.Row(case="two", problem="XlaRuntimeError: no room"),
]


def cells(table):
    """Of the rows as printed."""
    console = rich.console.Console(width=120)
    with console.capture() as captured:
        console.print(table)
    lines = captured.get().splitlines()
    return [line.replace("│", " ").split() for line in lines if line.startswith("│")]


def test_without_a_gpu_it_says_so_and_exits_with_2(capsys):
    assert run.main(["--json"]) == 2
    said = capsys.readouterr()
    assert not said.out
    assert "no GPU here" in said.err


def test_without_the_plugin_nothing_is_compiled(monkeypatch, capsys):
    monkeypatch.setattr(compile.importlib.util, "find_spec", lambda name: None)
    assert compile.main([]) == 2
    assert "pip install jax-cuda12-{plugin,pjrt}==" in capsys.readouterr().err


def test_the_table_of_what_was_compiled():
    results = [
        compile.Result(case="one", seconds=1.25, temporaries=2_500_000),
        compile.Result(case="two", seconds=3.0, problem="no room"),
    ]
    assert cells(compile.table(results)) == [
        ["one", "2.5", "1.2"],
        ["two", "0.0", "FAILED"],
    ]


def test_the_table_has_times_and_ratios():
    table = run.table(FAKE, 3.2e12)
    assert "3200 GB/s" in str(table.title)
    assert cells(table) == [
        ["one", "20.0", "50.0", "15.0", "2.50", "75%", "3.0e-03"],
        ["two", "FAILED"],
    ]


@pytest.mark.parametrize(("tests", "rows", "status"), [(0, 1, 0), (0, 2, 1), (1, 1, 1)])
def test_what_failed_is_in_the_exit_status(tests, rows, status, monkeypatch, capsys):
    monkeypatch.setattr(run, "has_gpu", lambda: True)
    monkeypatch.setattr(run, "run_tests", lambda: tests)
    monkeypatch.setattr(run.timing, "bandwidth", lambda: 1e12)
    made = iter(FAKE)
    monkeypatch.setattr(run.timing, "measure", lambda *_: next(made))
    chosen = list(cases.cases())[:rows]
    monkeypatch.setattr(run.cases, "cases", lambda: chosen)
    assert run.main(["--json"]) == status
    printed = json.loads(capsys.readouterr().out)
    assert [row["case"] for row in printed["results"]] == ["one", "two"][:rows]
    assert printed["tests"] == tests


def fake(program):
    arguments = {"x": jax.ShapeDtypeStruct((3,), jnp.float32)}
    return cases.Case(
        name="fake", calls=2, read=10**6, program=program, arguments=arguments
    )


def test_results_are_timed_and_compared():
    row = timing.measure(fake(lambda backend, x: [2 * x, x]), 1e12)
    assert row.kernel > 0
    assert row.xla > 0
    assert (row.floor, row.differs, row.problem) == (1.0, 0.0, "")


def test_what_does_not_run_is_a_problem():
    def broken(backend, x):
        raise NotImplementedError(f"not on {backend}")

    row = timing.measure(fake(broken), 1e12)
    assert row.problem == "NotImplementedError: not on gpu"


def test_cases_have_names_of_their_own():
    names = [case.name for case in cases.cases()]
    assert len(set(names)) == len(names) > 40


def test_bytes_of_a_case_by_hand():
    made = {case.name: case for case in cases.cases()}
    # keys and values, 3 heads of 64 numbers of 2 bytes, 1024 slots or 256 of them
    attention = "tree_attention: smollm2-135m plain, "
    assert made[attention + "full"].read == 2 * 3 * 64 * 2 * 1024
    assert made[attention + "a quarter full"].read == 2 * 3 * 64 * 2 * 256
    # bytes of pairs of weights, and two float32 numbers for 32 weights
    product = made["linear: smollm2-135m down, q4_1"]
    assert product.read == 1536 // 2 * 640 + 1536 // 32 * 640 * 2 * 4


@pytest.mark.parametrize("prefix", ["tree_attention: smollm2", "linear: smollm2"])
def test_a_case_can_be_traced_and_filled(prefix):
    case = next(case for case in cases.cases() if case.name.startswith(prefix))
    made = jax.eval_shape(functools.partial(case.program, "xla"), **case.arguments)
    assert len(made) == case.calls
    values = jax.eval_shape(case.values)
    shapes = jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), case.arguments)
    assert shapes == jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), values)
