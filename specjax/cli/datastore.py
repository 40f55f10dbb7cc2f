"""``specjax datastore``: what drafters look up, made beforehand."""

import json
import pathlib
import sys
from typing import Annotated, Any

import typer

from specjax.cli import errors, options, recipe

_PANEL = "Datastore"


def build(
    out: Annotated[
        pathlib.Path,
        typer.Option(help="Folder of the datastore.", rich_help_panel=_PANEL),
    ],
    text: Annotated[
        list[pathlib.Path] | None,
        typer.Option(
            help="Corpus: .jsonl has a document a row (its text), other files one a "
            "paragraph; .gz is unpacked. Repeatable.",
            rich_help_panel=_PANEL,
        ),
    ] = None,
    prompts: Annotated[
        pathlib.Path | None,
        typer.Option(
            help="JSON lines with turns (the first is asked) or prompt: the documents "
            "are the model's answers.",
            rich_help_panel=_PANEL,
        ),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            help="Documents or prompts, evenly spaced. [all]", rich_help_panel=_PANEL
        ),
    ] = None,
    ngram: Annotated[
        int,
        typer.Option(
            help="Tokens of a model n-gram, its key included.", rich_help_panel=_PANEL
        ),
    ] = 5,
    max_phrases: Annotated[
        int, typer.Option(help="Model n-grams of a key.", rich_help_panel=_PANEL)
    ] = 7,
    max_ngrams: Annotated[
        int, typer.Option(help="Model n-grams in all.", rich_help_panel=_PANEL)
    ] = 100_000,
    batch_size: Annotated[
        int, typer.Option(help="Prompts that run together.", rich_help_panel=_PANEL)
    ] = 8,
    overwrite: Annotated[
        bool,
        typer.Option(
            "--overwrite",
            help="Replace the store and answers that are there.",
            rich_help_panel=_PANEL,
        ),
    ] = False,
    model: options.Model = None,
    dtype: options.Dtype = None,
    weights: options.Weights = None,
    no_cache: options.NoCache = False,
    max_new_tokens: options.MaxNewTokens = None,
) -> None:
    """Makes a datastore for a model, from texts or from its own answers to prompts.

    Answers are greedy and kept in the folder as they come: after Ctrl-C the same
    command goes on. A store that is there stays until the new one is whole.
    """
    if bool(text) == (prompts is not None):
        raise ValueError(
            "--text or --prompts: give one of them, the files that documents come from"
        )

    from specjax import datastores
    from specjax.cli import progress, session
    from specjax.datastores import answers as answers_lib
    from specjax.evaluation import prompts as prompts_lib

    sizes = datastores.Sizes(
        ngram=ngram, max_phrases=max_phrases, max_ngrams=max_ngrams
    )
    sizes.validate()
    answers = out / answers_lib.ROWS
    _check_folder(out, overwrite=overwrite, go_on=prompts is not None)
    if prompts is None:
        found = [part for path in text or () for part in datastores.read_texts(path)]
    else:
        found = datastores.read_prompts(prompts)
    found = prompts_lib.spread(found, limit)
    chosen = recipe.read(None).changed(
        model=model,
        dtype=dtype,
        weights=weights,
        sampling={"max_new_tokens": max_new_tokens},
    )
    lm = session.load(chosen, cache=not no_cache)
    if prompts is None:
        with progress.counted("documents", len(found), lines=10) as notify:
            store = datastores.build_from_texts(lm, found, sizes=sizes, notify=notify)
    else:
        out.mkdir(exist_ok=True)
        if overwrite:
            answers.unlink(missing_ok=True)
        with progress.counted("prompts", len(found), lines=len(found)) as notify:
            store = datastores.build_from_prompts(
                lm,
                found,
                rows=answers,
                max_new_tokens=chosen.sampling.max_new_tokens,
                batch_size=batch_size,
                sizes=sizes,
                notify=notify,
            )
    datastores.save(out, store)
    if prompts is None:
        answers.unlink(missing_ok=True)  # of the store that was overwritten
    _print(out, store.facts())


def info(
    folder: Annotated[pathlib.Path, typer.Argument(help="Folder of a datastore.")],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object.")
    ] = False,
) -> None:
    """Checks a datastore and says what it holds.

    Keys of --json, in this order: path, format, version, parts, fingerprint,
    vocab_size, documents, tokens, options (how it was made), megabytes (of each array).
    """
    from specjax import datastores

    facts = datastores.load(folder).facts()
    if as_json:
        print(json.dumps({"path": str(folder), **facts}))
    else:
        _print(folder, facts)


datastore = typer.Typer(
    help="Makes and describes datastores.", no_args_is_help=True, add_completion=False
)
for _command in (build, info):
    datastore.command()(errors.guard(_command))


def _check_folder(out: pathlib.Path, *, overwrite: bool, go_on: bool) -> None:
    """Refuses a folder that can't be made, or whose content would be lost unasked.

    Args:
      out: the folder.
      overwrite: whether content may be lost.
      go_on: whether answers that are there are gone on with.
    """
    from specjax.datastores import answers
    from specjax.drafters.lookup import datastore_files

    if not out.absolute().parent.is_dir():
        raise ValueError(f"--out: there is no folder {out.parent}; make it first")
    if out.exists() and not out.is_dir():
        raise ValueError(f"--out: {out} is a file, expected a folder")
    has_answers = (out / answers.ROWS).exists()
    has_store = (out / datastore_files.FACTS).exists()
    lost = has_store or has_answers
    if lost and not overwrite and not (go_on and has_answers):
        what = "a datastore" if has_store else "answers to prompts"
        raise ValueError(
            f"--out: {out} holds {what} already; name another folder or pass "
            "--overwrite"
        )


def _print(folder: pathlib.Path, facts: dict[str, Any]) -> None:
    """The facts as a table, on standard output."""
    import rich.console
    import rich.table

    table = rich.table.Table(show_header=False, title=str(folder), title_style="bold")
    table.add_column(style="cyan")
    table.add_column(overflow="fold")
    sizes = facts["megabytes"]
    rows = {
        "parts": ", ".join(facts["parts"]),
        "tokenizer": facts["fingerprint"],
        "vocabulary": facts["vocab_size"],
        "documents": facts["documents"],
        "tokens": facts["tokens"],
        **facts["options"],
        "megabytes": ", ".join(f"{name} {size:.2f}" for name, size in sizes.items()),
    }
    for name, value in rows.items():
        table.add_row(str(name), str(value))
    console = rich.console.Console(width=None if sys.stdout.isatty() else 120)
    console.print(table)
