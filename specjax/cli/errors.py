"""Bad input ends in one line on standard error, never in a traceback.

Exit statuses: 0 done, 1 the answer is no (``check``), 2 bad input, 130 interrupted.
"""

import functools
import inspect
import os
import re
import sys
import warnings
from collections.abc import Callable
from typing import Any, NoReturn

import typer

from specjax.cli import interrupts

REFUSED = 1
BAD_INPUT = 2
INTERRUPTED = interrupts.INTERRUPTED

_ARGUMENT = re.compile(r"([a-z]+(?:_[a-z]+)*)(?=:| (?:must|holds|is)\b)")
_OUT_OF_MEMORY = "RESOURCE_EXHAUSTED"


def guard(command: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a command so that errors of the user's become one line and a status."""

    @functools.wraps(command)
    def run(**options: Any) -> None:
        try:
            with warnings.catch_warnings(), interrupts.leave_at_once():
                _quieten()
                command(**options)
                sys.stdout.flush()
        except typer.Exit:
            raise
        except KeyboardInterrupt:
            complain("interrupted", label="")
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:
            _abandon_output()
            _fail("standard output was closed before all was written")
        except (ValueError, OSError, NotImplementedError) as error:
            _fail(_as_option(str(error), command))
        except MemoryError as error:
            _fail(f"there is too little memory for this ({error})")
        except RuntimeError as error:
            if _OUT_OF_MEMORY not in str(error):
                raise
            _fail(
                "the device has too little memory for this; lower --max-context, "
                f"--max-new-tokens or the batch ({str(error)[:200]})"
            )

    return run


def complain(message: str, *, label: str = "error: ") -> None:
    """Writes one line to standard error."""
    print(f"{label}{' '.join(message.split())}", file=sys.stderr, flush=True)


def _fail(message: str) -> NoReturn:
    complain(message)
    raise typer.Exit(BAD_INPUT) from None


def _as_option(message: str, command: Callable[..., Any]) -> str:
    """Spells the argument that a message begins with as on the command line."""
    found = _ARGUMENT.match(message)
    parameters = inspect.signature(command).parameters
    if found is None or found[1] not in parameters:
        return message
    meaning = getattr(parameters[found[1]].annotation, "__metadata__", ())
    positional = any(isinstance(m, typer.models.ArgumentInfo) for m in meaning)
    option = f"--{found[1].replace('_', '-')}"
    return f"{found[1].upper() if positional else option}{message[found.end() :]}"


def _quieten() -> None:
    """Shows the library's own warnings as lines, and no one else's."""

    def show(message, category, filename, lineno, file=None, line=None):
        del category, filename, lineno, file, line
        complain(str(message), label="warning: ")

    warnings.showwarning = show
    warnings.simplefilter("ignore")
    warnings.filterwarnings("always", module=r"specjax(\.|$)", category=UserWarning)


def _abandon_output() -> None:
    """Sends what is left to nowhere: the interpreter flushes once more at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
