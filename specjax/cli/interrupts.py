"""Ctrl-C between two rounds instead of inside one."""

import contextlib
import signal
import threading
from collections.abc import Iterator


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
