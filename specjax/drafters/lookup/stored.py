"""Drafters whose option ``store`` names a datastore.

In Python one that can't do without is called with it, ``corpus(store)``; one that can
is two functions, ``suffix()`` and ``suffix_with_store(store)``.
"""

from collections.abc import Callable

from specjax import checkpoints
from specjax.core import contracts
from specjax.drafters import equipped, registry
from specjax.drafters import options as options_lib
from specjax.drafters.lookup import datastore as datastore_lib
from specjax.drafters.lookup import datastore_files

STORE = options_lib.Option(
    "store",
    options_lib.PATH,
    "folder of a datastore, which `specjax datastore build` makes.",
)
NEEDED = STORE._replace(required=True)


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
        too; None where one is needed.
    """

    def build(lm, options):
        rest = dict(options)
        if without is not None and "store" not in rest:
            return equipped.equip(without(**rest))
        return factory(open_store(name, lm, rest.pop("store")), **rest)

    return build


def open_store(
    name: str, lm: checkpoints.LanguageModel, path: str
) -> datastore_lib.Datastore:
    """The datastore that a drafter's option ``store`` names.

    Args:
      name: of the drafter, for messages.
      lm: the target.
      path: the option.

    Raises:
      ValueError: the store can't be loaded for the target.
    """
    try:
        return datastore_files.load(path, lm)
    except ValueError as error:
        raise ValueError(f"drafter {name!r}: {error}") from error
