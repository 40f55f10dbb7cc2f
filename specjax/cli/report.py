"""``specjax report``: tables and plots from a file of results."""

import pathlib
from typing import Annotated

import typer


def report(
    results: Annotated[pathlib.Path, typer.Argument(help="What `bench --out` wrote.")],
    out: Annotated[pathlib.Path, typer.Option(help="Folder for the report.")],
    no_plots: Annotated[
        bool, typer.Option("--no-plots", help="Write tables only.")
    ] = False,
) -> None:
    """Writes a report in Markdown and JSON, with plots, from results of bench."""
    from specjax.evaluation import report as report_lib
    from specjax.evaluation import rows

    for path in report_lib.write(rows.read(results), out, with_plots=not no_plots):
        print(path)
