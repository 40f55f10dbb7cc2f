"""How commands show that they move: on a terminal as they go, in lines elsewhere.

All of it goes to standard error, which leaves standard output to what was asked for.
"""

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator, Sequence

import rich.console
import rich.progress
import rich.text

from specjax.cli import errors
from specjax.evaluation import bench, table

PATIENCE = 5.0  # seconds that a log need not be told about


@contextlib.contextmanager
def waiting(what: str) -> Iterator[None]:
    """Says what is waited for inside.

    On a terminal a line says so and goes away; a log gets a line of its own if it takes
    long.

    Args:
      what: a few words.
    """
    if sys.stderr.isatty():
        with rich.console.Console(stderr=True).status(rich.text.Text(what)):
            yield
        return
    line = threading.Timer(PATIENCE, errors.complain, (what,), {"label": ""})
    line.daemon = True
    line.start()
    try:
        yield
    finally:
        line.cancel()


def bars() -> rich.progress.Progress:
    """Bars with counts and the time that is left, on standard error."""
    columns = (
        rich.progress.TextColumn("{task.description}"),
        rich.progress.BarColumn(),
        rich.progress.MofNCompleteColumn(),
        rich.progress.TimeRemainingColumn(),
    )
    return rich.progress.Progress(*columns, console=rich.console.Console(stderr=True))


@contextlib.contextmanager
def counted(what: str, total: int, *, lines: int) -> Iterator[Callable[..., None]]:
    """A function to call with what is done: a bar on a terminal, else some lines.

    Args:
      what: is counted.
      total: how many there are to be.
      lines: about how many to write to a log.

    Yields:
      A function of the number done and, if wanted, of words to add.
    """
    if not sys.stderr.isatty():
        seen = [0]

        def line(done: int, more: str = "") -> None:
            if done == total or (done - seen[0]) * lines >= total:
                seen[0] = done
                text = f"{what} {done}/{total} {more}".rstrip()
                print(text, file=sys.stderr, flush=True)

        yield line
        return
    with bars() as bar:
        task = bar.add_task(what, total=total)

        def move(done: int, more: str = "") -> None:
            bar.update(task, completed=done, description=f"{what} {more}".rstrip())

        yield move


@contextlib.contextmanager
def shown(total: int) -> Iterator[bench.Notify]:
    """A function for ``bench.run`` to call, writing to standard error."""
    if not sys.stderr.isatty():
        yield _line
        return
    with bars() as bar:
        task = bar.add_task("compiling", total=total)

        def notify(progress: bench.Progress) -> None:
            if progress.stage == "kept":
                bar.console.print(_kept(progress))
            if progress.stage == "prompt":
                text = _numbers(progress)
                bar.update(task, completed=progress.done, description=text)

        yield notify


def print_table(lines: Sequence[table.Line]) -> None:
    """Prints a summary to standard output, as wide as it needs to be off a terminal."""
    width = None if sys.stdout.isatty() else 120
    rich.console.Console(width=width).print(table.to_rich(lines))


def _kept(progress: bench.Progress) -> str:
    return (
        f"{progress.done} of {progress.total} prompts are kept from an earlier run; "
        "--overwrite begins anew"
    )


def _line(progress: bench.Progress) -> None:
    text = f"{progress.stage} {progress.done}/{progress.total}"
    if progress.stage == "kept":
        text = _kept(progress)
    if progress.rows:
        text += f" {_numbers(progress)}"
    print(text, file=sys.stderr, flush=True)


def _numbers(progress: bench.Progress) -> str:
    """The newest prompt: tokens a second of each drafter."""
    speeds = [
        f"{row['drafter']} {row['tokens_per_second']:.1f}"
        + ("" if row["identical"] else " (differs)")
        for row in progress.rows
        if row["question_id"] == progress.rows[-1]["question_id"]
        and row["turn"] == progress.rows[-1]["turn"]
    ]
    return f"tokens/s: {', '.join(speeds)}"
