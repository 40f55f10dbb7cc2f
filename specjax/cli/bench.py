"""``specjax bench``: drafters side by side on a file of prompts."""

import pathlib
import re
from typing import Annotated

import typer

from specjax.cli import options, recipe

_PANEL = "Benchmark"
_COMMA = re.compile(r",(?!\s*[-+.\d])")  # before a number it is part of a value


def bench(
    dataset: Annotated[
        pathlib.Path,
        typer.Option(
            help="Prompts: JSON lines with question_id, category, turns.",
            rich_help_panel=_PANEL,
        ),
    ],
    drafters: Annotated[
        str | None,
        typer.Option(
            help="NAME:key=value:... parted by commas, see `specjax drafters`; none is "
            "always added. [none and auto, or the recipe's]",
            rich_help_panel=_PANEL,
        ),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(help="Prompts, evenly spaced. [all]", rich_help_panel=_PANEL),
    ] = None,
    out: Annotated[
        pathlib.Path | None,
        typer.Option(
            help="File of JSON lines; one with the same settings is continued.",
            rich_help_panel=_PANEL,
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Begin anew.", rich_help_panel=_PANEL)
    ] = False,
    turns: Annotated[
        str,
        typer.Option(
            help="first, or all for whole conversations.", rich_help_panel=_PANEL
        ),
    ] = "first",
    repeats: Annotated[
        int,
        typer.Option(
            help="Alternating runs; times are medians.", rich_help_panel=_PANEL
        ),
    ] = 1,
    batch_size: Annotated[
        int, typer.Option(help="Prompts that run together.", rich_help_panel=_PANEL)
    ] = 1,
    keep: Annotated[
        bool,
        typer.Option(
            "--keep",
            help="Let what a drafter learnt go on from prompt to prompt.",
            rich_help_panel=_PANEL,
        ),
    ] = False,
    reference: Annotated[
        pathlib.Path | None,
        typer.Option(
            help="Results whose `none` decides what is identical, say of another "
            "batch size. [this run's]",
            rich_help_panel=_PANEL,
        ),
    ] = None,
    config: options.Config = None,
    model: options.Model = None,
    verifier: options.Verifier = None,
    dtype: options.Dtype = None,
    weights: options.Weights = None,
    mesh: options.Mesh = None,
    max_context: options.MaxContext = None,
    no_cache: options.NoCache = False,
    chat: options.Chat = None,
    max_new_tokens: options.MaxNewTokens = None,
    min_new_tokens: options.MinNewTokens = None,
    temperature: options.Temperature = None,
    top_k: options.TopK = None,
    top_p: options.TopP = None,
    min_p: options.MinP = None,
    repetition_penalty: options.RepetitionPenalty = None,
    presence_penalty: options.PresencePenalty = None,
    frequency_penalty: options.FrequencyPenalty = None,
    stop: options.Stop = None,
    ignore_eos: options.IgnoreEos = None,
    seed: options.Seed = None,
) -> None:
    """Measures drafters against plain decoding on the same prompts.

    Drafters take turns prompt by prompt in one process; compilation and warm-up come
    first. Ctrl-C leaves in --out what is done; the same command goes on from there.
    """
    chosen = recipe.read(config).changed(
        model=model,
        verifier=verifier,
        dtype=dtype,
        weights=weights,
        mesh=mesh,
        max_context=max_context,
        sampling={
            "max_new_tokens": max_new_tokens,
            "min_new_tokens": min_new_tokens,
            "temperature": temperature,
            "top_k": top_k,
            "top_p": top_p,
            "min_p": min_p,
            "repetition_penalty": repetition_penalty,
            "presence_penalty": presence_penalty,
            "frequency_penalty": frequency_penalty,
            "stop": tuple(stop) if stop else None,
            "ignore_eos": ignore_eos,
            "seed": seed,
        },
    )
    if out is not None and not out.parent.is_dir():
        raise ValueError(f"--out: there is no folder {out.parent}; make it first")

    from specjax.cli import progress, session
    from specjax.evaluation import bench as bench_lib
    from specjax.evaluation import plan as plan_lib
    from specjax.evaluation import prompts, rows, table

    plan = plan_lib.Plan(
        sampling=session.sampling_options(chosen.sampling),
        turns=turns,
        repeats=repeats,
        batch_size=batch_size,
        chat=chat,
        max_context=chosen.max_context,
        dataset=dataset.name,
        keep=keep,
    )
    wanted = _specs(drafters, chosen.drafter)
    session.check_names(chosen, wanted.values())
    questions = prompts.read(dataset, limit)
    compared = [] if reference is None else rows.read(reference)
    lm = session.load(chosen, cache=not no_cache)
    made = {label: session.drafter(asked, lm) for label, asked in wanted.items()}
    if overwrite and out is not None:
        out.unlink(missing_ok=True)
    with progress.shown(len(questions)) as notify:
        measured = bench_lib.run(
            lm,
            made,
            questions,
            plan,
            verifier=session.verifier(chosen),
            verifier_name=chosen.verifier,
            out=out,
            reference=compared,
            notify=notify,
        )
    progress.print_table(table.summarise(measured))


def _specs(
    text: str | None, from_recipe: recipe.DrafterRecipe
) -> dict[str, recipe.DrafterRecipe]:
    """Each drafter by its label, "none" first unless it is listed."""
    if text is None:
        specs = {from_recipe.name: from_recipe}
    else:
        specs = {}
        for part in _COMMA.split(text):
            spec = part.strip()
            if not spec or spec in specs:
                got = "twice " + repr(spec) if spec else "an empty name"
                raise ValueError(
                    f"--drafters must be names parted by commas, got {got}"
                )
            specs[spec] = recipe.DrafterRecipe(name=spec)
    none = recipe.DrafterRecipe(name="none")
    return specs if "none" in specs else {"none": none, **specs}
