"""Numbers out of the metadata of checkpoints, checked."""

from collections.abc import Mapping
from typing import Any


def integer(raw: Mapping[str, Any], key: str, default: int | None = None) -> int:
    """The integer under a key.

    Args:
      raw: the metadata.
      key: its name there.
      default: what an absent one means, None if it must be there.

    Raises:
      ValueError: it is missing, or not a positive integer.
    """
    value = raw.get(key, default)
    if isinstance(value, list) and value and len(set(value)) == 1:
        value = value[0]  # GGUF: one number a layer, all the same.
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        got = "nothing" if value is None else repr(value)
        raise ValueError(f"config: {key} must be a positive integer, got {got}")
    return value


def positive(scaling: Mapping[str, Any], key: str) -> float:
    """The number under a key of a rope scaling, which must have it.

    Raises:
      ValueError: it is missing, or not a positive number.
    """
    value = scaling.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        raise ValueError(
            f"config: rope scaling needs a positive {key}, got {value!r} in "
            f"{dict(scaling)}"
        )
    return float(value)
