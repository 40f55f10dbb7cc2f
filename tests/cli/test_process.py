"""The command line as a process of its own."""

import os
import pathlib
import signal
import subprocess
import sys

import pytest

from tests import saved_model

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """A cache folder that the processes share."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def long_text(tmp_path_factory):
    """Arguments of a generation that takes a while."""
    folder = tmp_path_factory.mktemp("long")
    saved_model.write(folder, num_layers=1, max_context=8192)
    arguments = ["generate", "--model", folder, "--prompt", "the", "--ignore-eos"]
    # Random bytes: some of them are characters, so that text comes soon.
    arguments += ["--temperature", 2]
    return [*arguments, "--max-context", 8192, "--max-new-tokens", 8000]


def test_what_takes_long_is_imported_when_used():
    code = "import sys, specjax, specjax.cli; print('jax' in sys.modules)"
    code += "; print(specjax.load.__name__, specjax.drafters.none.__name__)"
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=REPOSITORY
    )
    assert ran.stdout.split() == ["False", "load", "none"], ran.stderr


def test_interrupts_are_obeyed_before_the_commands_are_imported():
    code = """
import os, signal, sys, types
import specjax.cli.start
held = types.ModuleType("specjax.cli.app")
held.main = lambda: os.kill(os.getpid(), signal.SIGINT)
specjax.cli.app = sys.modules["specjax.cli.app"] = held
specjax.cli.start.main()
print("went on")
"""
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=REPOSITORY
    )
    assert (ran.returncode, ran.stdout) == (130, "")
    assert ran.stderr == "interrupted\n"


@pytest.fixture
def command(compiled):
    """(*arguments) -> keyword arguments of subprocess for `python -m specjax`."""

    def make(*arguments):
        path = os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])
        variables = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": path}
        variables.pop("XLA_FLAGS", None)  # eight devices are for other tests
        return {
            "args": [sys.executable, "-m", "specjax", *map(str, arguments)],
            "env": {**variables, "SPECJAX_CACHE": str(compiled)},
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
        }

    return make


def test_help_without_arguments(command):
    done = subprocess.run(**command(), check=True)
    assert all(name in done.stdout for name in (b"generate", b"bench", b"check"))
    assert done.stderr == b""


def test_version(command):
    done = subprocess.run(**command("--version"), check=True)
    name, number = done.stdout.decode().split(",")[0].split()
    assert name == "specjax"
    assert number.count(".") == 2
    assert done.stderr == b""


def test_usage_error_is_one_line(command):
    done = subprocess.run(**command("generate", "--temperature", "hot"), check=False)
    assert done.returncode == 2
    assert done.stderr.startswith(b"error: ")
    assert b"--temperature" in done.stderr
    assert done.stderr.count(b"\n") == 1


def complaints(done):
    """Lines of standard error but for what says that something takes long."""
    busy = (b"loading ", b"making ", b"preparing ")
    return [x for x in done.stderr.splitlines() if not x.startswith(busy)]


def test_second_process_finds_programs_and_says_nothing(command, long_text, compiled):
    arguments = [*long_text, "--max-new-tokens", 4]
    first = subprocess.run(**command(*arguments), check=True)
    assert any((compiled / "compiled").iterdir())
    second = subprocess.run(**command(*arguments), check=True)
    assert first.stdout == second.stdout != b""
    assert complaints(first) == complaints(second) == []


def test_interrupted_stream(command, long_text):
    with subprocess.Popen(**command(*long_text)) as process:
        text = os.read(process.stdout.fileno(), 1)
        process.send_signal(signal.SIGINT)
        rest, said = process.communicate(timeout=120)
    assert process.returncode == 130
    assert text
    assert rest.endswith(b"\n")
    assert b"Traceback" not in said


def test_closed_output(command, long_text):
    with subprocess.Popen(**command(*long_text)) as process:
        os.read(process.stdout.fileno(), 1)
        process.stdout.close()
        said = process.stderr.read()
    assert process.returncode == 2
    assert b"Traceback" not in said
    assert said.count(b"error: ") == 1
    assert said.splitlines()[-1].startswith(b"error: ")  # A slow start tells of itself.
