"""Native code: built once, kept, and done without where there is no compiler."""

import os
import pathlib
import subprocess
import sys

import pytest

RUN = """
import warnings
import jax.numpy as jnp
from pallas_kernels.rms_norm import cpu, rms_norm
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    found = [cpu.available(), cpu.available()]
print(*(f"warned {warning.message}" for warning in told), "native", *found)
print(float(rms_norm(jnp.asarray([[3.0, 4.0]]), jnp.ones((2,)), eps=0.0)[0, 0]))
"""


def run(cache: pathlib.Path, **variables: str) -> list[str]:
    """Lines that a fresh process prints which asks for native code."""
    done = subprocess.run(
        [sys.executable, "-c", RUN],
        env={**os.environ, "SPECJAX_CACHE": os.fspath(cache), **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


def built(cache: pathlib.Path) -> list[pathlib.Path]:
    return sorted((cache / "native").glob("*.so"))


@pytest.mark.native
def test_it_is_built_once_and_kept(tmp_path):
    assert run(tmp_path)[0] == "native True True"
    (first,) = built(tmp_path)
    made = first.stat().st_mtime_ns
    assert run(tmp_path)[0] == "native True True"
    assert [path.stat().st_mtime_ns for path in built(tmp_path)] == [made]


@pytest.mark.native
def test_a_damaged_binary_is_built_anew(tmp_path):
    run(tmp_path)
    (kept,) = built(tmp_path)
    kept.write_bytes(b"not a library")
    assert run(tmp_path)[0] == "native True True"


def test_a_compiler_that_fails_is_told_with_its_log(tmp_path):
    failing = tmp_path / "c++"
    failing.write_text("#!/bin/sh\necho no such luck >&2\nexit 1\n")
    failing.chmod(0o755)
    told, value = run(tmp_path, CXX=os.fspath(failing))
    assert told.startswith("warned rms_norm: no native code")
    (log,) = (tmp_path / "native").glob("*.log")
    assert os.fspath(log) in told
    assert "no such luck" in log.read_text()
    assert float(value) == pytest.approx(3 / 12.5**0.5)


def test_without_a_compiler_xla_takes_over(tmp_path):
    told, value = run(tmp_path, PATH=os.fspath(tmp_path), CXX="")
    assert "found no C++ compiler" in told
    assert float(value) == pytest.approx(3 / 12.5**0.5)


def test_a_cache_that_can_not_be_written(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    told, _ = run(blocked)
    assert told.startswith("warned rms_norm: no native code")


def test_it_can_be_turned_off(tmp_path):
    assert run(tmp_path, SPECJAX_NATIVE="0")[0] == "native False False"
    assert built(tmp_path) == []
