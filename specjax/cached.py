"""Parts that are made once of equal options, so that equal ones compile once."""

import functools
from collections.abc import Callable
from typing import TypeVar

_Made = TypeVar("_Made", bound=Callable)


def cached(factory: _Made) -> _Made:
    """Lets a factory return the same part for equal options.

    Raises (when called):
      TypeError: an option can't be compared by its hash, as a list can't.
    """
    kept = functools.cache(factory)

    @functools.wraps(factory)
    def make(*parts, **options):
        for name, value in options.items():
            try:
                hash(value)
            except TypeError:
                raise TypeError(
                    f"{factory.__name__}: {name} must be a plain value or a tuple, got "
                    f"{value!r:.80}"
                ) from None
        return kept(*parts, **options)

    return make  # type: ignore[return-value]
