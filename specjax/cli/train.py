"""``specjax train``: drafters that learn from a target's own answers."""

import typer

from specjax.cli import errors
from specjax.cli.train_data import data

train = typer.Typer(
    help="Makes training data.", no_args_is_help=True, add_completion=False
)
for _command in (data,):
    train.command()(errors.guard(_command))
