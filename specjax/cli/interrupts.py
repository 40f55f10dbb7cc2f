"""Ctrl-C between two rounds instead of inside one."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator

INTERRUPTED = 130  # exit status
_SHOW_CURSOR = "\x1b[?25h"


@contextlib.contextmanager
def leave_at_once() -> Iterator[None]:
    """Ends the process at Ctrl-C, wherever it is: loading, compiling, in a callback.

    An exception would be raised inside foreign code, which may swallow it.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handler(number, frame):
        del number, frame
        cursor = _SHOW_CURSOR if sys.stderr.isatty() else ""
        sys.stderr.write(f"{cursor}interrupted\n")
        sys.stderr.flush()
        os._exit(INTERRUPTED)

    before = signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class Interrupts:
    """What was pressed.

    Attributes:
      noticed: whether Ctrl-C was.
    """

    def __init__(self) -> None:
        self.noticed = False


@contextlib.contextmanager
def notice() -> Iterator[Interrupts]:
    """Notes the first Ctrl-C; the second one raises KeyboardInterrupt as usual."""
    seen = Interrupts()
    if threading.current_thread() is not threading.main_thread():
        yield seen  # Handlers can be set in the main thread only.
        return

    def handler(number, frame):
        del number, frame
        if seen.noticed:
            raise KeyboardInterrupt
        seen.noticed = True

    before = signal.signal(signal.SIGINT, handler)
    try:
        yield seen
    finally:
        signal.signal(signal.SIGINT, before)
