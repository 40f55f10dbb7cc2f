"""Are the GPU kernels right on this GPU, and faster than XLA?

python -m benchmarks.gpu.run [--only TEXT] [--no-tests] [--json]

Runs the tests marked `gpu`, then times every kernel with the shapes of real models. The
floor is the time that the bytes a call must read take at the measured bandwidth of
memory; what fits the GPU's caches may stay below it. Exits with 2 where there is no
GPU, with 1 where a test or a case fails.
"""

import argparse
import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Sequence

import jax
import rich.console
import rich.table

from benchmarks import measure
from benchmarks.gpu import cases, timing


def main(arguments: Sequence[str] | None = None) -> int:
    """Tests, times and prints; gives the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="cases whose name has this text")
    parser.add_argument("--no-tests", action="store_true", help="time only")
    parser.add_argument("--json", action="store_true", help="print one object instead")
    options = parser.parse_args(arguments)
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # two processes
    if not has_gpu():
        print(
            "benchmarks.gpu.run: jax finds no GPU here. On a machine with one install "
            "jax's plugin for CUDA (pip install -e '.[gpu,test]'), then run this again",
            file=sys.stderr,
        )
        return 2
    tests = 0 if options.no_tests else run_tests()
    speed = timing.bandwidth()
    chosen = [case for case in cases.cases() if options.only in case.name]
    rows = [timing.measure(case, speed) for case in chosen]
    if options.json:
        print(json.dumps(summary(rows, speed, tests)))
    else:
        rich.console.Console(width=120).print(table(rows, speed))
    for row in rows:
        if row.problem:
            print(f"{row.case}: {row.problem}", file=sys.stderr)
    if tests:
        print(f"tests marked gpu: pytest exited with {tests}", file=sys.stderr)
    return int(bool(tests) or any(row.problem for row in rows))


def has_gpu() -> bool:
    """Whether jax finds one."""
    try:
        return bool(jax.devices("gpu"))
    except RuntimeError:
        return False


def run_tests() -> int:
    """Runs the tests marked `gpu`, printed to standard error; gives their status."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-m",
        "gpu",
        "tests/pallas_kernels",
    ]
    settings = os.environ | {"TEST_PLATFORMS": "cuda,cpu"}
    return subprocess.run(command, env=settings, stdout=sys.stderr).returncode


def summary(rows: Sequence[timing.Row], speed: float, tests: int) -> dict:
    """What ``--json`` prints."""
    return {
        "benchmark": "gpu kernels",
        "environment": measure.environment(),
        "bytes_a_second": speed,
        "tests": tests,
        "results": [dataclasses.asdict(row) for row in rows],
    }


def table(rows: Sequence[timing.Row], speed: float) -> rich.table.Table:
    """One line a case, times in microseconds."""
    title = f"Kernels on GPU, us a call; memory is read at {speed / 1e9:.0f} GB/s"
    made = rich.table.Table(title=title)
    made.add_column("case")
    for heading in ("kernel", "XLA", "floor", "XLA / kernel", "of floor", "differs by"):
        made.add_column(heading, justify="right")
    for row in rows:
        if row.problem:
            made.add_row(row.case, "FAILED")
            continue
        times = [f"{spent:.1f}" for spent in (row.kernel, row.xla, row.floor)]
        ratios = f"{row.xla / row.kernel:.2f}", f"{row.floor / row.kernel:.0%}"
        made.add_row(row.case, *times, *ratios, f"{row.differs:.1e}")
    return made


if __name__ == "__main__":
    sys.exit(main())
