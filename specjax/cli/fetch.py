"""``specjax fetch``: a model onto this machine."""

from typing import Annotated

import typer


def fetch(
    model: Annotated[
        str, typer.Argument(help="smollm2-135m, hf:OWNER/NAME or a path.")
    ] = "smollm2-135m",
) -> None:
    """Gets a model and prints where it lies."""
    from specjax import checkpoints

    print(checkpoints.fetch(model))
