"""``specjax check``: what a checkpoint is, and whether a pair of them fits."""

import sys
from typing import Annotated

import typer

from specjax.cli import errors, options


def check(
    model: Annotated[str, typer.Argument(help="Target: name, file or directory.")],
    draft: Annotated[
        str | None,
        typer.Argument(help="Draft model, or trained heads, to pair it with."),
    ] = None,
    capacity: Annotated[
        int | None,
        typer.Option(help="Positions to hold. [4096, or the context if less]"),
    ] = None,
    rows: Annotated[int, typer.Option(min=1, help="Rows of the batch.")] = 1,
    dtype: options.Dtype = None,
    weights: options.Weights = None,
) -> None:
    """Reads headers: shapes, tokenizer, memory, and what would be refused.

    The exit status is 1 if the model or the pair would be refused.
    """
    import rich.console
    import rich.table

    from specjax import checkpoints
    from specjax.evaluation import facts

    console = rich.console.Console(width=None if sys.stdout.isatty() else 120)
    heads = draft if draft is not None and facts.is_draft(draft) else None
    names = [model] if draft is None or heads else [model, draft]
    inspected = [checkpoints.inspect(name) for name in names]
    reasons = facts.refusals(names, inspected)
    tables = [
        facts.describe(
            inspection, dtype=dtype, weights=weights, rows=rows, capacity=capacity
        )
        for inspection in inspected
    ]
    if heads is not None:
        told, refused = facts.of_draft(heads, model, inspected[0], dtype)
        names, tables, reasons = [*names, heads], [*tables, told], reasons + refused
    for name, told in zip(names, tables, strict=True):
        table = rich.table.Table(show_header=False, title=name, title_style="bold")
        table.add_column(style="cyan")
        table.add_column(overflow="fold")
        for key, value in told:
            table.add_row(key, value)
        console.print(table)
    for reason in reasons:
        print(f"refused: {' '.join(reason.split())}")
    if reasons:
        raise typer.Exit(errors.REFUSED)
    print("fits" if draft else "loads")
