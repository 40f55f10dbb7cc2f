"""A tiny checkpoint on disk and a way to run commands on it."""

import json

import pytest
from typer.testing import CliRunner

from specjax.cli import progress
from specjax.cli.app import app
from tests import saved_model


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory):
    """A directory of the tiny model, with a chat template."""
    folder = tmp_path_factory.mktemp("tiny")
    saved_model.write(folder, num_layers=1)
    return folder


@pytest.fixture
def make_model(tmp_path):
    """(name, **changes) -> a folder with the model, for the test to spoil."""

    def make(name="model", **changes):
        folder = tmp_path / name
        folder.mkdir()
        saved_model.write(folder, **changes)
        return folder

    return make


@pytest.fixture(autouse=True)
def cache_folder(tmp_path, monkeypatch):
    """No test reads or writes the user's cache."""
    monkeypatch.setenv("SPECJAX_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="session", autouse=True)
def patience():
    """However slow the machine is, no log is told that something takes long."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(progress, "PATIENCE", 3600.0)
        yield


@pytest.fixture(scope="session")
def run():
    """(*arguments, input=None) -> what the command line answered."""

    def invoke(*arguments, input=None):
        return CliRunner().invoke(app, [str(a) for a in arguments], input=input)

    return invoke


@pytest.fixture(scope="session")
def dataset(tmp_path_factory):
    """A prompt file of four questions; the odd ones have a second turn."""
    rows = [
        {
            "question_id": 10 + i,
            "category": ("even", "odd")[i % 2],
            "turns": [f"the than {i} the than the", "and the"][: 1 + i % 2],
        }
        for i in range(4)
    ]
    path = tmp_path_factory.mktemp("data") / "prompts.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path
