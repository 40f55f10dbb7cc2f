"""Published draft checkpoints of all kinds: what one is, and whether it fits a target.

Each kind is a file of its own: Medusa heads, and EAGLE-3 in two layouts, that of its
authors and that of ``speculators``.
"""

import os
import pathlib
from collections.abc import Callable
from typing import NamedTuple

from specjax.drafters.neural import (
    published_eagle3,
    published_files,
    published_host,
    published_medusa,
)

_SPECULATORS = "speculators_model_type"
_OTHERS = ("speculators_config", "draft_vocab_size")  # of kinds that we don't have
_MODEL = "model.layers.0."  # begins names of a whole language model


class _Kind(NamedTuple):
    """A kind of draft checkpoint."""

    drafter: str  # the name that drafts with it
    recognise: Callable[[published_files.Draft], bool]
    describe: Callable[[published_files.Draft], list[tuple[str, str]]]
    problems: Callable[..., list[str]]


_KINDS = (
    _Kind(
        "medusa",
        published_medusa.recognise,
        published_medusa.describe,
        published_medusa.problems,
    ),
    _Kind(
        "eagle3",
        published_eagle3.recognise,
        published_eagle3.describe,
        published_eagle3.problems,
    ),
)


class Report(NamedTuple):
    """What the headers of a draft checkpoint say.

    Attributes:
      drafter: name of the drafter that it is for, None if there is none.
      facts: for a table, as (name, value).
      problems: every reason why it would be refused, values aside.
    """

    drafter: str | None
    facts: list[tuple[str, str]]
    problems: list[str]


def is_draft(path: str | os.PathLike[str]) -> bool:
    """Whether a directory holds a draft checkpoint, not a whole language model.

    What can't be opened is taken for a language model, whose loader says more.
    """
    if not pathlib.Path(path).is_dir():
        return False
    try:
        draft = published_files.open_draft(path)
    except ValueError:
        return False
    if any(name.startswith(_MODEL) for name in draft.shapes):
        return False
    others = any(key in draft.config for key in (_SPECULATORS, *_OTHERS))
    return others or any(kind.recognise(draft) for kind in _KINDS)


def report(
    path: str | os.PathLike[str], host: published_host.Host | None, dtype: str
) -> Report:
    """What a draft checkpoint is, and what is wrong with it for a target.

    Args:
      path: the directory, of which ``is_draft``.
      host: the target, None where its config can't be read.
      dtype: that the weights will be held in.

    Raises:
      ValueError: it can't be opened.
    """
    draft = published_files.open_draft(path)
    kinds = [kind for kind in _KINDS if kind.recognise(draft)]
    if not kinds:
        known = draft.config.get(_SPECULATORS, "unknown")
        reason = (
            f"a draft of kind {known!r}; known are "
            f"{', '.join(kind.drafter for kind in _KINDS)}"
        )
        return Report(None, published_files.describe(draft, dtype), [reason])
    kind = kinds[0]
    return Report(
        drafter=kind.drafter,
        facts=[
            ("draft for", kind.drafter),
            *kind.describe(draft),
            *published_files.describe(draft, dtype),
        ],
        problems=kind.problems(draft, host),
    )
