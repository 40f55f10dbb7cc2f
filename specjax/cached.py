"""Factories of parts: what they refuse alike, and that equal options compile once."""

import functools
import inspect
from collections.abc import Callable
from typing import TypeVar

from specjax import checks

_Factory = TypeVar("_Factory", bound=Callable)


def cached(factory: _Factory) -> _Factory:
    """Lets a factory return the same part for equal options.

    Args:
      factory: of plain values, tuples, and parts that are made so too.

    Returns:
      The factory, which then raises TypeError for what can't be compared by its hash,
      as a list can't, and for a value of another kind than the parameter's default: a
      flag, an integer, a number, a text, or a tuple of integers.
    """
    signature = inspect.signature(factory)
    defaults = {p.name: p.default for p in signature.parameters.values()}
    kept = functools.cache(factory)
    where = factory.__name__

    @functools.wraps(factory)
    def make(*parts, **options):
        try:
            given = signature.bind(*parts, **options).arguments
        except TypeError as error:
            raise TypeError(f"{where}: {error}") from None
        for name, value in given.items():
            try:
                hash(value)
            except TypeError:
                raise TypeError(
                    f"{where}: {name} must be a plain value or a tuple, got "
                    f"{value!r:.80}"
                ) from None
            checks.like(where, name, value, defaults[name])
        return kept(*parts, **options)

    return make  # type: ignore[return-value]
