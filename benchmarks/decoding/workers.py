"""Processes that answer generation requests, one JSON line each.

A request is {"ids", "max_new_tokens", "stop_ids", "drafter"}: prompt ids, and "none",
"prompt_lookup" or what else the side knows. An answer has the new ``tokens``,
``first_seconds`` until the first of them, ``first_tokens`` there were by then and
``decode_seconds`` for the rest. The request {"quit": true} is answered with
``peak_bytes`` and ``versions``.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any


class Worker:
    """A process that serves requests; use it in a ``with``."""

    def __init__(self, command: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            list(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, **request: Any) -> dict[str, Any]:
        """Sends a request and waits for its answer.

        Raises:
          RuntimeError: the process ended; what it said is on standard error.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(f"{json.dumps(request)}\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # Reading says the same and knows the status.
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(
                f"the worker {self._process.args!r} ended with {self._process.wait()}"
            )
        return json.loads(line)

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *error: Any) -> None:
        self._process.kill()
        self._process.communicate()


def serve(
    lines: Any, answer: Callable[[dict[str, Any]], dict[str, Any]], versions: dict
) -> None:
    """Answers requests from ``lines`` until one says quit or they end."""
    for line in lines:
        request = json.loads(line)
        if request.get("quit"):
            found = {"peak_bytes": peak_bytes(), "versions": versions}
        else:
            found = answer(request)
        print(json.dumps(found), flush=True)
        if request.get("quit"):
            return


def peak_bytes() -> int:
    """Most memory that this process has held."""
    import resource  # Unix only

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak
