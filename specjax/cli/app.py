"""The commands together, and the way out of each.

To add a command, write a file with one function (its parameters are the options, its
docstring the help) and add the function to ``COMMANDS``. Command files import what
loads and compiles inside the function.
"""

import importlib.metadata
import platform
import sys
from typing import Annotated

import typer

from specjax.cli import errors
from specjax.cli.bench import bench
from specjax.cli.check import check
from specjax.cli.datastore import datastore
from specjax.cli.drafters import drafters
from specjax.cli.fetch import fetch
from specjax.cli.generate import generate
from specjax.cli.report import report
from specjax.cli.train import train

_NAMED = ("specjax", "jax")  # by --version
COMMANDS = (generate, bench, report, check, drafters, fetch)

app = typer.Typer(
    name="specjax",
    help="Speculative decoding in JAX: faster generation, the same tokens.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)


def _print_version(wanted: bool) -> None:
    """Versions that a report of an error should name; nothing is imported for it."""
    if wanted:
        versions = [f"{name} {importlib.metadata.version(name)}" for name in _NAMED]
        print(", ".join([*versions, f"Python {platform.python_version()}"]))
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            help="Print versions and exit.",
            callback=_print_version,
            is_eager=True,
        ),
    ] = False,
) -> None:
    del version  # The callback has seen to it.


for _command in COMMANDS:
    app.command()(errors.guard(_command))
app.add_typer(datastore, name="datastore")
app.add_typer(train, name="train")


def main() -> None:
    """Runs the command line and exits with its status."""
    try:
        status = app(args=sys.argv[1:] or ["--help"], standalone_mode=False)
    except typer.Abort:
        status = errors.INTERRUPTED
    except Exception as error:
        describe = getattr(error, "format_message", None)  # a usage error
        if describe is None:
            raise
        errors.complain(f"{describe()} See --help.")
        status = errors.BAD_INPUT
    sys.exit(status if isinstance(status, int) else 0)
