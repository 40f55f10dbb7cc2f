"""``specjax.generate``: the engine without having to hold one."""

import collections
from collections.abc import Mapping
from typing import Any

from specjax import checkpoints, checks
from specjax.decoding import engine as engine_lib
from specjax.decoding import request
from specjax.decoding import result as result_lib
from specjax.drafters import registry

_DEFAULT = "auto"
_MOST = 4
# Engines with what their keys are the ids of: those stay taken while it is kept.
_kept: collections.OrderedDict[Any, tuple] = collections.OrderedDict()


def _engine(
    lm: checkpoints.LanguageModel,
    drafter: registry.Drafting | None,
    max_context: int | None,
) -> engine_lib.Engine:
    """The engine of these parts, kept so that a second call compiles nothing."""
    if max_context is not None:
        max_context = checks.whole("", "max_context", max_context)
    chosen = _DEFAULT if drafter is None else drafter
    # What is only named is the same drafter as often as it is spelled so.
    named = isinstance(chosen, str | Mapping)
    key = (id(lm), repr(chosen) if named else id(chosen), max_context)
    if key not in _kept:
        engine = engine_lib.Engine(lm, chosen, max_context=max_context)
        _kept[key] = (engine, lm, chosen)
        while len(_kept) > _MOST:
            _kept.popitem(last=False)
    _kept.move_to_end(key)
    return _kept[key][0]


def generate(
    lm: checkpoints.LanguageModel,
    prompt: request.Prompt | list[request.Prompt],
    *,
    drafter: registry.Drafting | None = None,
    max_context: int | None = None,
    **options: Any,
) -> result_lib.Result | list[result_lib.Result]:
    """Generates text with a loaded model.

    Args:
      lm: from ``specjax.load``.
      prompt: text, token ids, chat messages, or a list of such.
      drafter: what drafts, as ``Engine`` takes it: made by a function, or named as on
        the command line. By default ``auto``, which measures what rounds cost on this
        device once and drafts as much as pays.
      max_context: positions to hold; by default what the request needs.
      **options: see ``Engine.generate``.

    Returns:
      A Result, or a list of them for a batch or for several samples.

    Raises:
      ValueError: see ``Engine`` and ``Engine.generate``.
      TypeError: ``lm`` is no loaded model, or an argument is of the wrong kind.
    """
    return _engine(lm, drafter, max_context).generate(prompt, **options)


def stream(
    lm: checkpoints.LanguageModel,
    prompt: request.Prompt,
    *,
    drafter: registry.Drafting | None = None,
    max_context: int | None = None,
    **options: Any,
) -> engine_lib.Stream:
    """Like ``generate`` for one prompt, as an iterator of (text, tokens).

    Args:
      lm, prompt, drafter, max_context: see ``generate``.
      **options: see ``Engine.stream``.

    Returns:
      An iterator, whose ``result()`` gives the Result so far.
    """
    return _engine(lm, drafter, max_context).stream(prompt, **options)
