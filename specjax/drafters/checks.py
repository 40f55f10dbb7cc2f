"""What options of drafters are refused, and in which words."""

from collections.abc import Sequence


def at_least(drafter: str, least: int, **options: int) -> None:
    """Refuses options that are too small.

    Args:
      drafter: its name, the beginning of the message.
      least: the smallest value allowed.
      **options: by name.

    Raises:
      ValueError: one is below ``least``.
    """
    for name, value in options.items():
        if value < least:
            raise ValueError(f"{drafter}: {name} must be at least {least}, got {value}")


def smallest(drafter: str, option: str, value: int, limit: str, most: int) -> None:
    """Refuses a smallest size that is below 1 or above the largest.

    Args:
      drafter: its name, the beginning of the message.
      option: name of the smallest size.
      value: it.
      limit: name of the largest size.
      most: it.

    Raises:
      ValueError: ``value`` is not 1 to ``most``.
    """
    if not 1 <= value <= most:
        raise ValueError(
            f"{drafter}: {option} must be 1 to {limit}={most}, got {value}"
        )


def one_of(drafter: str, option: str, value: str, known: Sequence[str]) -> None:
    """Refuses a word that is not among those known.

    Args:
      drafter: its name, the beginning of the message.
      option: its name.
      value: as given.
      known: what it may be.

    Raises:
      ValueError: it is none of them.
    """
    if value not in known:
        raise ValueError(f"{drafter}: {option} must be one of {known}, got {value!r}")
