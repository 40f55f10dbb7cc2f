"""How long until the first token of a second process, its programs kept on disk?

    python -m benchmarks.decoding.startup

The first process compiles into an empty cache folder, later ones find it filled.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

from benchmarks import measure
from specjax import checkpoints

PROMPT = "Write one sentence about rain."


def run(
    model: str, *, drafter: str = "none", repeats: int = 3, chat: bool = True
) -> dict[str, Any]:
    """Starts processes one after the other and times their first byte of text.

    Args:
      model: name, file or directory.
      drafter: as on the command line.
      repeats: processes with the cache filled.
      chat: whether the prompt goes through the chat template.

    Returns:
      Seconds from start to first text, and to the end, cold and warm.
    """
    path = checkpoints.fetch(model)
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "specjax", "generate", "--model", str(path)]
        command += ["--drafter", drafter, "--prompt", PROMPT, "--max-new-tokens", "8"]
        command += ["--ignore-eos", "--chat" if chat else "--raw"]
        variables = {**os.environ, "SPECJAX_CACHE": folder}
        cold = _first_text(command, variables)
        warm = [_first_text(command, variables) for _ in range(repeats)]
    firsts, ends = zip(*warm, strict=True)
    return {
        "cold_first_text_seconds": cold[0],
        "cold_end_seconds": cold[1],
        "warm_first_text_seconds": statistics.median(firsts),
        "warm_first_text_seconds_of_runs": firsts,
        "warm_end_seconds": statistics.median(ends),
    }


def _first_text(command: list[str], variables: dict[str, str]) -> tuple[float, float]:
    """Seconds until the first byte and until the end of a process."""
    began = time.perf_counter()
    with subprocess.Popen(
        command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        os.read(process.stdout.fileno(), 1)
        first = time.perf_counter() - began
        _, said = process.communicate()
        ended = time.perf_counter() - began
    if process.returncode:
        raise RuntimeError(f"generate ended with {process.returncode}: {said.decode()}")
    return round(first, 3), round(ended, 3)


def main() -> None:
    """Parses options, measures, prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--drafter", default="none")
    parser.add_argument("--repeats", type=int, default=3)
    settings = vars(parser.parse_args())
    found = run(
        settings["model"], drafter=settings["drafter"], repeats=settings["repeats"]
    )
    measure.emit("startup", settings, found)


if __name__ == "__main__":
    main()
