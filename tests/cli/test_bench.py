"""`bench`, its file, and `report` on it."""

import json

import pytest

from specjax.cli import bench as bench_lib
from specjax.cli import recipe


@pytest.fixture(scope="module")
def bench(run, model_folder, dataset):
    """(*arguments) -> the answer of a small benchmark."""

    def invoke(*arguments):
        base = ["bench", "--model", model_folder, "--no-cache", "--dataset", dataset]
        drafters = ["--drafters", "none,prompt_lookup:max_draft=3"]
        return run(*base, *drafters, "--max-new-tokens", 10, *arguments)

    return invoke


@pytest.fixture(scope="module")
def results(bench, tmp_path_factory):
    """The file of a benchmark of two of the four questions, and what was printed."""
    path = tmp_path_factory.mktemp("bench") / "results.jsonl"
    result = bench("--limit", 2, "--out", path)
    assert result.exit_code == 0, result.stderr
    return path, result


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_rows(results):
    rows = read(results[0])
    assert [(row["question_id"], row["drafter"]) for row in rows] == [
        (10, "none"),
        (10, "prompt_lookup:max_draft=3"),
        (12, "none"),
        (12, "prompt_lookup:max_draft=3"),
    ]
    for row in rows:
        assert row["identical"] is True
        assert row["margin_at_difference"] is None
        assert row["turn"] == 0
        assert row["category"] == "even"
        assert row["compile_seconds"] == 0


def test_table_is_printed(results):
    printed = results[1].stdout
    assert "in all" in printed
    assert "prompt_lookup:max_draft=3" in printed
    assert "2/2" in printed


def test_what_is_done_is_not_measured_again(bench, results):
    before = results[0].read_bytes()
    result = bench("--limit", 2, "--out", results[0])
    assert result.exit_code == 0, result.stderr
    assert "warm-up" not in result.stderr
    assert (
        "2 of 2 prompts are kept from an earlier run; --overwrite begins"
        in result.stderr
    )
    assert result.stdout == results[1].stdout
    assert results[0].read_bytes() == before


def test_other_settings_are_refused(bench, results):
    before = results[0].read_bytes()
    result = bench("--limit", 2, "--out", results[0], "--temperature", 1)
    assert result.exit_code == 2
    assert "temperature" in result.stderr
    assert results[0].read_bytes() == before


def test_report(run, results, tmp_path):
    folder = tmp_path / "report"
    result = run("report", results[0], "--out", folder)
    assert result.exit_code == 0, result.stderr
    assert "| in all | none | 20 |" in (folder / "report.md").read_text()
    summary = json.loads((folder / "report.json").read_text())
    assert summary["different"] == []
    assert {line["category"] for line in summary["table"]} == {"even", "in all"}
    for name in ("speedup.png", "tau.png", "acceptance.png"):
        assert (folder / name).read_bytes().startswith(b"\x89PNG")


def test_report_without_plots(run, results, tmp_path):
    result = run("report", results[0], "--out", tmp_path, "--no-plots")
    assert result.exit_code == 0
    assert sorted(p.name for p in tmp_path.iterdir() if p.is_file()) == [
        "report.json",
        "report.md",
    ]


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ("auto", ["none", "auto"]),
        ("suffix, none", ["suffix", "none"]),
        (
            "cascade:layers=1:k=3,4/0,4,auto",
            ["none", "cascade:layers=1:k=3,4/0,4", "auto"],
        ),
        ("cascade:acceptances=.8,.3/0,.6", ["none", "cascade:acceptances=.8,.3/0,.6"]),
    ],
)
def test_commas_part_drafters_but_not_numbers(text, labels):
    assert list(bench_lib._specs(text, recipe.DrafterRecipe(name="x"))) == labels


def test_missing_matplotlib_is_said_before_anything_is_written(
    run, results, tmp_path, monkeypatch
):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = run("report", results[0], "--out", tmp_path / "report")
    assert result.exit_code == 2
    assert "matplotlib" in result.stderr
    assert not (tmp_path / "report").exists()
