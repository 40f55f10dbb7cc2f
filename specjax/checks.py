"""What values are refused, and in which words.

``where`` is what a message begins with: the name of a drafter or of a function, or
nothing where the argument alone says enough.
"""

import difflib
import numbers
import operator
from collections.abc import Iterable, Sequence
from typing import Any

MAX_INT32 = 2**31 - 1


def integer(
    where: str, name: str, value: Any, least: int, most: int = MAX_INT32
) -> int:
    """The value as an int.

    Args:
      where: beginning of the message.
      name: of the argument.
      value: as given; NumPy's integers will do, a bool won't.
      least, most: what it may be.

    Raises:
      TypeError: it is no integer.
      ValueError: it is out of range.
    """
    found = whole(where, name, value)
    if not least <= found <= most:
        within = f"at least {least}" if found < least else f"at most {most}"
        raise ValueError(f"{_said(where, name)} must be {within}, got {value!r}")
    return found


def whole(where: str, name: str, value: Any) -> int:
    """The value as an int, however large. Arguments as for ``integer``.

    Raises:
      TypeError: it is no integer.
    """
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)
    except TypeError:
        message = f"{_said(where, name)} must be an integer, got {value!r}"
        raise TypeError(message) from None


def flag(where: str, name: str, value: Any) -> None:
    """Refuses what is neither True nor False. Arguments as for ``integer``.

    Raises:
      TypeError: it is neither.
    """
    if not isinstance(value, bool):
        raise TypeError(f"{_said(where, name)} must be True or False, got {value!r}")


def number(where: str, name: str, value: Any) -> None:
    """Refuses what is no real number, such as a bool. Arguments as for ``integer``.

    Raises:
      TypeError: it is none.
      ValueError: it is larger than a float can be.
    """
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        raise TypeError(f"{_said(where, name)} must be a number, got {value!r}")
    try:
        float(value)
    except OverflowError:
        raise ValueError(
            f"{_said(where, name)} must be a number that a float holds, got one of "
            f"{len(str(value))} digits"
        ) from None


def like(where: str, name: str, value: Any, default: Any) -> None:
    """Refuses a value of another kind than a default.

    Args:
      where, name, value: as for ``integer``.
      default: one that is no flag, integer, number, text or tuple says nothing.

    Raises:
      TypeError: it is of another kind, or holds what is no integer in a tuple.
    """
    if isinstance(default, bool):
        flag(where, name, value)
    elif isinstance(default, int):
        whole(where, name, value)
    elif isinstance(default, float):
        number(where, name, value)
    elif isinstance(default, str) and not isinstance(value, str):
        raise TypeError(f"{_said(where, name)} must be text, got {value!r}")
    elif isinstance(default, tuple):
        if not isinstance(value, tuple):
            raise TypeError(
                f"{_said(where, name)} must be a tuple of integers, got {value!r}"
            )
        for one in value:
            whole(where, name, one)


def _said(where: str, name: str) -> str:
    return f"{where}: {name}" if where else name


def token_id(name: str, token: Any, vocab_size: int) -> int:
    """An id as an int.

    Args:
      name: of the argument that holds it.
      token: as given.
      vocab_size: V.

    Raises:
      TypeError: it is no integer.
      ValueError: it is none of the vocabulary's.
    """
    try:
        return integer("", name, token, 0, vocab_size - 1)
    except ValueError:
        limits = f"ids are 0 to {vocab_size - 1}"
        raise ValueError(f"{name} holds id {token}; {limits}") from None
    except TypeError:
        raise TypeError(f"{name} holds {token!r}; ids are integers") from None


def at_least(where: str, least: int, **options: int) -> None:
    """Refuses options that are no integers or too small.

    Args:
      where: beginning of the message.
      least: the smallest value allowed.
      **options: by name.

    Raises:
      TypeError: one is no integer.
      ValueError: one is below ``least``.
    """
    for name, value in options.items():
        integer(where, name, value, least)


def smallest(where: str, option: str, value: int, limit: str, most: int) -> None:
    """Refuses a smallest size that is below 1 or above the largest.

    Args:
      where: beginning of the message.
      option: name of the smallest size.
      value: it.
      limit: name of the largest size.
      most: it.

    Raises:
      TypeError: ``value`` is no integer.
      ValueError: ``value`` is not 1 to ``most``.
    """
    whole(where, option, value)
    if not 1 <= value <= most:
        raise ValueError(f"{where}: {option} must be 1 to {limit}={most}, got {value}")


def one_of(where: str, option: str, value: str, known: Sequence[str]) -> None:
    """Refuses a word that is not among those known.

    Args:
      where: beginning of the message.
      option: its name.
      value: as given.
      known: what it may be.

    Raises:
      ValueError: it is none of them.
    """
    if value not in known:
        raise ValueError(f"{where}: {option} must be one of {known}, got {value!r}")


def suggestion(word: str, known: Iterable[str]) -> str:
    """What to end a clause with: "; did you mean 'x'?" where one comes close."""
    close = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""
