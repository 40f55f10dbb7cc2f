"""Drafters whose option ``store`` names a datastore.

In Python one that can't do without is called with it, ``corpus(store)``; one that can
is two functions, ``suffix()`` and ``suffix_with_store(store)``.
"""

import os
from collections.abc import Callable
from typing import Any

from specjax import checkpoints
from specjax.core import contracts
from specjax.drafters import equipped, registry
from specjax.drafters.lookup import datastore as datastore_lib
from specjax.drafters.lookup import datastore_files


def builder(
    name: str,
    factory: Callable[..., equipped.Equipped],
    *,
    without: Callable[..., contracts.Drafter] | None = None,
) -> Callable[[checkpoints.LanguageModel, registry.Options], equipped.Equipped]:
    """A builder for ``registry.register_builder``.

    Args:
      name: of the drafter.
      factory: takes a Datastore and keyword-only options, all with defaults.
      without: what drafts where no store is named, by options that ``factory`` takes
        too; by default there must be one.
    """

    def build(lm, options):
        if without is not None and "store" not in options:
            return equipped.equip(without(**registry.convert(name, without, options)))
        store, rest = open_store(name, lm, options)
        return factory(store, **registry.convert(name, without or factory, rest))

    return build


def open_store(
    name: str, lm: checkpoints.LanguageModel, options: registry.Options
) -> tuple[datastore_lib.Datastore, dict[str, Any]]:
    """The datastore that a drafter's option ``store`` names, and its other options.

    Args:
      name: of the drafter, for messages.
      lm: the target.
      options: as the command line or a recipe gives them.

    Raises:
      ValueError: there is no such option, or the store can't be loaded for the target.
    """
    rest = dict(options)
    path = rest.pop("store", None)
    if not isinstance(path, str | os.PathLike) or not os.fspath(path):
        raise ValueError(
            f"drafter {name!r}: give store=FOLDER, a datastore that `specjax datastore "
            f"build` made, got {path!r}"
        )
    try:
        return datastore_files.load(path, lm), rest
    except ValueError as error:
        raise ValueError(f"drafter {name!r}: {error}") from error
