"""What is said while something takes long."""

import sys
import threading
import time

import pytest

from specjax.cli import progress


def wait_for(capsys, text):
    """All of standard error, once it holds a text."""
    seen = ""
    for _ in range(1000):
        seen += capsys.readouterr().err
        if text in seen:
            break
        time.sleep(0.01)
    return seen


def test_a_log_gets_one_line(capsys, monkeypatch):
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    with progress.waiting("compiling"):
        assert wait_for(capsys, "\n") == "compiling\n"
    assert capsys.readouterr() == ("", "")


def test_a_log_is_not_told_of_short_waits(capsys):
    with progress.waiting("compiling"):
        pass
    assert capsys.readouterr() == ("", "")


def test_nothing_is_said_after_an_error():
    timers = []

    def fail():
        timers.extend(
            thread
            for thread in threading.enumerate()
            if isinstance(thread, threading.Timer)
        )
        raise ValueError("x")

    with pytest.raises(ValueError, match="x"), progress.waiting("compiling"):
        fail()
    (timer,) = timers
    timer.join(timeout=60)
    assert not timer.is_alive()  # long before its time


def test_a_terminal_shows_a_status_and_takes_it_away(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    with progress.waiting("compiling [x]"):
        shown = wait_for(capsys, "compiling [x]")
    assert "compiling [x]" in shown
    out, err = capsys.readouterr()
    assert out == ""
    assert err.endswith("\x1b[2K")  # the line is erased
