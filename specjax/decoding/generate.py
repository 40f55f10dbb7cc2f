"""``specjax.generate``: the engine without having to hold one."""

import collections
from typing import Any

from specjax import checkpoints
from specjax.decoding import engine as engine_lib
from specjax.decoding import request
from specjax.decoding import result as result_lib
from specjax.drafters import registry

_MOST = 4
# Engines with what their keys are the ids of: those stay taken while it is kept.
_kept: collections.OrderedDict[Any, tuple] = collections.OrderedDict()


def _engine(lm, drafter, max_context) -> engine_lib.Engine:
    """The engine of these parts, kept so that a second call compiles nothing."""
    key = (id(lm), id(drafter), max_context)
    if key not in _kept:
        chosen = registry.make("auto", lm) if drafter is None else drafter
        engine = engine_lib.Engine(lm, chosen, max_context=max_context)
        _kept[key] = (engine, lm, drafter)
        while len(_kept) > _MOST:
            _kept.popitem(last=False)
    _kept.move_to_end(key)
    return _kept[key][0]


def generate(
    lm: checkpoints.LanguageModel,
    prompt: request.Prompt | list[request.Prompt],
    *,
    drafter: Any = None,
    max_context: int | None = None,
    **options: Any,
) -> result_lib.Result | list[result_lib.Result]:
    """Generates text with a loaded model.

    Args:
      lm: from ``specjax.load``.
      prompt: text, token ids, chat messages, or a list of such.
      drafter: what drafts; by default ``auto``, which measures what rounds cost on
        this device once and drafts as much as pays.
      max_context: positions to hold; by default what the request needs.
      **options: see ``Engine.generate``.

    Returns:
      A Result, or a list of them for a batch or for several samples.

    Raises:
      ValueError: see ``Engine`` and ``Engine.generate``.
    """
    return _engine(lm, drafter, max_context).generate(prompt, **options)


def stream(
    lm: checkpoints.LanguageModel,
    prompt: request.Prompt,
    *,
    drafter: Any = None,
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
