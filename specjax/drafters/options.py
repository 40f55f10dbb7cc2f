"""Options of drafters: of which kind they are, how text is read, what they mean.

What a factory takes is read off its signature and the Args of its docstring, so that
listings and messages can't say anything else than the code.
"""

import inspect
import math
import os
import re
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

FILLED_IN = "vocab_size"  # the registry takes it from the target: no one's choice
_ENTRY = re.compile(r"(?P<names>\*{0,2}\w+(?:, \w+)*): (?P<text>.*)")
_SWITCHES = {"true": True, "1": True, "false": False, "0": False}


class Kind(NamedTuple):
    """What values an option has.

    Attributes:
      name: a word for listings.
      must: what a value must be, for messages.
      read: gives the value of a text, or of what a recipe file holds; raises ValueError
        or TypeError where that is none.
    """

    name: str
    must: str
    read: Callable[[Any], Any]


class Option(NamedTuple):
    """One option of a drafter that has a name.

    Attributes:
      name: of the option.
      kind: of its values.
      meaning: for people.
      default: what holds where it is not given, None where nothing does or it follows
        from others, as the meaning says.
      required: whether it must be given.
    """

    name: str
    kind: Kind
    meaning: str = ""
    default: Any = None
    required: bool = False

    def read(self, drafter: str, value: Any) -> Any:
        """The value as the drafter takes it.

        Args:
          drafter: its name, for messages.
          value: as the command line or a recipe file gives it.

        Raises:
          ValueError: it is of another kind.
        """
        try:
            return self.kind.read(value)
        except (TypeError, ValueError):
            raise ValueError(
                f"drafter {drafter!r}: option {self.name!r} must be {self.kind.must}, "
                f"got {value!r}"
            ) from None

    def to_json(self) -> dict[str, Any]:
        """The option as a JSON-ready dict."""
        return {
            "name": self.name,
            "type": self.kind.name,
            "value": self.kind.must,
            "default": self.default,
            "required": self.required,
            "meaning": self.meaning,
        }


def _switch(value: Any) -> bool:
    text = str(value).strip().lower()
    if text not in _SWITCHES:
        raise ValueError(text)
    return _SWITCHES[text]


def _integer(value: Any) -> int:
    number = int(str(value).strip())  # by its text: 2.5 and True are none
    if abs(number) >= 2**31:
        raise ValueError("an i32 does not hold it")
    return number


def _number(value: Any) -> float:
    number = float(str(value).strip())
    if not math.isfinite(number):
        raise ValueError("not finite")
    return number


def _integers(value: Any) -> tuple[int, ...]:
    parts = value if isinstance(value, list | tuple) else str(value).split("+")
    return tuple(map(_integer, parts))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(type(value).__name__)
    return value


def _path(value: Any) -> str:
    path = os.fspath(value)
    if not isinstance(path, str) or not path:
        raise ValueError("no path")
    return path


def _paths(value: Any) -> tuple[str, ...]:
    return tuple(map(_path, value if isinstance(value, list | tuple) else [value]))


def _list(value: Any) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple) or not value:
        raise ValueError("no list")
    return tuple(value)


SWITCH = Kind("bool", "true or false", _switch)
INTEGER = Kind("int", "an integer", _integer)
NUMBER = Kind("float", "a finite number", _number)
INTEGERS = Kind("ints", "integers such as 5+10, or a list of them", _integers)
TEXT = Kind("text", "text", _text)
PATH = Kind("path", "a name or a path", _path)
PATHS = Kind("paths", "a name or a path, or a list of such", _paths)
DRAFTERS = Kind(
    "drafters",
    'a list of drafters in a recipe file that --config names, as ["NAME", ...]',
    _list,
)
_BY_DEFAULT = {bool: SWITCH, int: INTEGER, float: NUMBER, tuple: INTEGERS, str: TEXT}


def of(
    factory: Callable[..., Any], leave_out: Collection[str] = ()
) -> tuple[Option, ...]:
    """The options of a factory: its keyword-only parameters.

    Args:
      factory: its defaults tell the kinds, the Args of its docstring the meanings.
      leave_out: parameters that are none; ``vocab_size`` never is one.

    Raises:
      TypeError: a parameter has no default, or one of another type than bool, int,
        float, str or tuple.
    """
    told = _meanings(inspect.getdoc(factory) or "")
    found = []
    for parameter in inspect.signature(factory).parameters.values():
        name, default = parameter.name, parameter.default
        left_out = name == FILLED_IN or name in leave_out
        if parameter.kind is not parameter.KEYWORD_ONLY or left_out:
            continue
        if type(default) not in _BY_DEFAULT:
            raise TypeError(
                f"{factory.__name__}: option {name!r} must have a default that is a "
                "bool, int, float, str or tuple of integers"
            )
        kind = _BY_DEFAULT[type(default)]
        found.append(Option(name, kind, told.get(name, ""), default))
    return tuple(found)


def summary(function: Callable[..., Any]) -> str:
    """The first line of a docstring."""
    return _plain((inspect.getdoc(function) or "").partition("\n")[0])


def _meanings(doc: str) -> dict[str, str]:
    """What the Args of a docstring say about each parameter."""
    _, _, rest = doc.partition("\nArgs:\n")
    told: dict[str, str] = {}
    names: list[str] = []
    for line in rest.split("\n"):
        if not line.startswith("  "):
            break
        entry = _ENTRY.fullmatch(line[2:])
        if entry is not None:
            names = entry["names"].split(", ")
        text = entry["text"] if entry is not None else line.strip()
        for name in names:
            told[name] = f"{told[name]} {text}" if name in told else text
    return {name: _plain(text) for name, text in told.items()}


def _plain(text: str) -> str:
    return text.replace("``", "`")
