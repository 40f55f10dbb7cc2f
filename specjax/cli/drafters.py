"""``specjax drafters``: which there are, and what each of them takes."""

import json
import sys
from typing import Annotated, Any

import typer


def drafters(
    name: Annotated[
        str | None, typer.Argument(help="One of them, to see its options.")
    ] = None,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print one JSON object, or a list without NAME."),
    ] = False,
) -> None:
    """Lists drafters, or the options of one.

    An option follows the name, as in `--drafter suffix:max_nodes=7:min_match=2`; what
    is a list of drafters goes into a recipe file, see --config.
    """
    from specjax import drafters as drafters_lib

    if name is None:
        found = [drafters_lib.describe(known) for known in drafters_lib.names()]
        if as_json:
            print(json.dumps([named.to_json() for named in found], indent=2))
        else:
            _print(("name", "drafts"), [(x.name, x.summary) for x in found])
        return
    named = drafters_lib.describe(name)
    if as_json:
        print(json.dumps(named.to_json(), indent=2))
        return
    rows = [
        (option.name, option.kind.name, _default(option), option.meaning)
        for option in named.options
    ]
    kinds = {option.kind.name: option.kind.must for option in named.options}
    print(f"{named.name}: {named.summary}")
    if rows:
        print()
        _print(("option", "type", "default", "meaning"), rows)
        print()
        _print(("type", "is"), list(kinds.items()))


def _default(option: Any) -> str:
    """The default as the command line spells it."""
    if option.default is None:
        return "required" if option.required else "-"
    if isinstance(option.default, tuple):
        return "+".join(map(str, option.default))
    text = str(option.default)
    return text.lower() if isinstance(option.default, bool) else text


def _print(columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    """A table on standard output, as wide as it needs to be off a terminal."""
    import rich.console
    import rich.table
    import rich.text

    console = rich.console.Console(width=None if sys.stdout.isatty() else 120)
    table = rich.table.Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(columns[0], style="cyan", no_wrap=True)
    for column in columns[1:]:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*map(rich.text.Text, row))
    console.print(table)
