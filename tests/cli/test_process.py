"""The command line as a process of its own."""

import os
import pathlib
import signal
import subprocess
import sys

import pytest

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture
def command(cache_folder):
    """(*arguments) -> keyword arguments of subprocess for `python -m specjax`."""

    def make(*arguments):
        path = os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])
        variables = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": path}
        variables.pop("XLA_FLAGS", None)  # eight devices are for other tests
        return {
            "args": [sys.executable, "-m", "specjax", *map(str, arguments)],
            "env": {**variables, "SPECJAX_CACHE": str(cache_folder)},
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
        }

    return make


def test_help_without_arguments(command):
    done = subprocess.run(**command(), check=True)
    assert all(name in done.stdout for name in (b"generate", b"bench", b"check"))
    assert done.stderr == b""


def test_usage_error_is_one_line(command):
    done = subprocess.run(**command("generate", "--temperature", "hot"), check=False)
    assert done.returncode == 2
    assert done.stderr.startswith(b"error: ")
    assert b"--temperature" in done.stderr
    assert done.stderr.count(b"\n") == 1


def test_second_process_finds_programs_and_says_nothing(
    command, model_folder, cache_folder
):
    arguments = ["generate", "--model", model_folder, "--prompt", "the"]
    first = subprocess.run(**command(*arguments, "--max-new-tokens", 4), check=True)
    assert any((cache_folder / "compiled").iterdir())
    second = subprocess.run(**command(*arguments, "--max-new-tokens", 4), check=True)
    assert first.stdout == second.stdout != b""
    assert first.stderr == second.stderr == b""


def test_interrupted_stream(command, make_model):
    folder = make_model(max_context=8192)
    arguments = ["--prompt", "the", "--max-new-tokens", 8000, "--ignore-eos"]
    started = command("generate", "--model", folder, "--no-cache", *arguments)
    with subprocess.Popen(**started) as process:
        text = os.read(process.stdout.fileno(), 1)
        process.send_signal(signal.SIGINT)
        rest, said = process.communicate(timeout=120)
    assert process.returncode == 130
    assert text
    assert rest.endswith(b"\n")
    assert b"Traceback" not in said


def test_closed_output(command, make_model):
    folder = make_model(max_context=8192)
    arguments = ["--prompt", "the", "--max-new-tokens", 8000, "--ignore-eos"]
    started = command("generate", "--model", folder, "--no-cache", *arguments)
    with subprocess.Popen(**started) as process:
        os.read(process.stdout.fileno(), 1)
        process.stdout.close()
        said = process.stderr.read()
    assert process.returncode == 2
    assert said.startswith(b"error: ")
    assert said.count(b"\n") == 1
