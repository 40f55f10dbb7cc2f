"""What a schema refuses, described in our words."""

from collections.abc import Iterable

import pydantic

from specjax import checks


def describe(error: pydantic.ValidationError, known: Iterable[str] = ()) -> str:
    """The first fault: where it is, what is wrong, what was got.

    Args:
      error: of a pydantic model.
      known: keys that one not known may be a slip for.
    """
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    if first["type"] == "missing":
        return f"{where} is missing"
    if first["type"] == "extra_forbidden":
        near = checks.suggestion(str(first["loc"][-1]), known)
        return f"{where} is not a known key{near}"
    said = first["msg"][:1].lower() + first["msg"][1:]
    said = f"{said}, got {first['input']!r:.80}"
    return f"{where}: {said}" if where else said
