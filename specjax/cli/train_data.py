"""``specjax train data``: a target's own answers, to learn from."""

import json
import pathlib
import sys
from typing import Annotated

import typer

from specjax.cli import options, recipe

_PANEL = "Training data"


def data(
    out: Annotated[
        pathlib.Path,
        typer.Option(
            help="Folder of the data; one with the same settings is continued.",
            rich_help_panel=_PANEL,
        ),
    ],
    prompts: Annotated[
        list[pathlib.Path] | None,
        typer.Option(
            help="JSON lines with prompt, and source and split if known; .gz is "
            "unpacked. Repeatable.",
            rich_help_panel=_PANEL,
        ),
    ] = None,
    own: Annotated[
        int,
        typer.Option(
            min=0,
            help="User turns that the model writes itself, besides.",
            rich_help_panel=_PANEL,
        ),
    ] = 0,
    limit: Annotated[
        int | None,
        typer.Option(
            help="Prompts of the files, evenly spaced. [all]", rich_help_panel=_PANEL
        ),
    ] = None,
    held_out: Annotated[
        list[pathlib.Path] | None,
        typer.Option(
            help="Prompt file of a benchmark: what shares ten words in a row with it "
            "is left out. Repeatable.",
            rich_help_panel=_PANEL,
        ),
    ] = None,
    temperatures: Annotated[
        str,
        typer.Option(
            help="T:SHARE parted by commas: what answers are drawn at.",
            rich_help_panel=_PANEL,
        ),
    ] = "0:0.5,1:0.5",
    max_prompt_tokens: Annotated[
        int,
        typer.Option(help="Longer prompts are left out.", rich_help_panel=_PANEL),
    ] = 512,
    batch_size: Annotated[
        int, typer.Option(help="Prompts that run together.", rich_help_panel=_PANEL)
    ] = 32,
    shard_size: Annotated[
        int,
        typer.Option(
            help="Prompts a shard; what a kill loses at most.", rich_help_panel=_PANEL
        ),
    ] = 256,
    model: options.Model = None,
    dtype: options.Dtype = None,
    weights: options.Weights = None,
    no_cache: options.NoCache = False,
    max_new_tokens: options.MaxNewTokens = None,
    seed: options.Seed = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the card as one JSON object.")
    ] = False,
) -> None:
    """Lets a model answer prompts and keeps its answers in shards.

    After Ctrl-C, or a kill, the same command goes on with the shard that it was at.
    """
    if not out.absolute().parent.is_dir():
        raise ValueError(f"--out: there is no folder {out.parent}; make it first")
    if out.exists() and not out.is_dir():
        raise ValueError(f"--out: {out} is a file, expected a folder")
    if not prompts and not own:
        raise ValueError("--prompts or --own: give one of them, or there is nothing")
    chosen = recipe.read(None).changed(
        model=model,
        dtype=dtype,
        weights=weights,
        sampling={"max_new_tokens": max_new_tokens or 256, "seed": seed},
    )

    from specjax.cli import progress, session
    from specjax.evaluation import prompts as questions
    from specjax.training.data import harvest
    from specjax.training.data import prompts as prompts_lib

    settings = harvest.Settings(
        temperatures=_shares(temperatures),
        max_new_tokens=chosen.sampling.max_new_tokens,
        max_prompt_tokens=max_prompt_tokens,
        batch_size=batch_size,
        shard_size=shard_size,
        own=own,
        seed=chosen.sampling.seed,
    )
    settings.validate()
    given = [one for path in prompts or () for one in prompts_lib.read(path)]
    given = questions.spread(given, limit) if given else []
    forbidden = prompts_lib.held_out(held_out or ())
    lm = session.load(chosen, cache=not no_cache)
    out.mkdir(exist_ok=True)
    total = len(given) + own
    with progress.counted("prompts", total, lines=200) as notify:
        card = harvest.harvest(
            lm,
            given,
            out,
            settings,
            forbidden=forbidden,
            notify=lambda done, tokens: notify(done, f"{tokens} tokens"),
        )
    if as_json:
        print(json.dumps(card))
    else:
        _print(out, card)


def _shares(text: str) -> dict[float, float]:
    """Shares by temperature.

    Raises:
      ValueError: the text is of another form.
    """
    try:
        pairs = [part.split(":") for part in text.split(",")]
        shares = {float(temperature): float(share) for temperature, share in pairs}
    except ValueError as error:
        raise ValueError(
            f"--temperatures must be T:SHARE parted by commas, as in 0:0.5,1:0.5, got "
            f"{text!r}"
        ) from error
    if len(shares) < len(pairs):
        raise ValueError(f"--temperatures names one twice, got {text!r}")
    return shares


def _print(folder: pathlib.Path, card: dict) -> None:
    """The card as a table, on standard output."""
    import rich.console
    import rich.table

    table = rich.table.Table(show_header=False, title=str(folder), title_style="bold")
    table.add_column(style="cyan")
    table.add_column(overflow="fold")
    for name, value in card.items():
        if isinstance(value, dict):
            value = ", ".join(f"{key} {one}" for key, one in value.items()) or "none"
        table.add_row(name, str(value))
    console = rich.console.Console(width=None if sys.stdout.isatty() else 120)
    console.print(table)
