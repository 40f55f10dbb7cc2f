"""Text that others wrote, as values."""

import json
import tomllib
from collections.abc import Callable
from typing import Any


def json_value(raw: bytes) -> Any:
    """The value that JSON in UTF-8 stands for.

    Raises:
      ValueError: it is not JSON, not UTF-8, or nested too deeply.
    """
    return _parse(json.loads, raw)


def toml_tables(raw: bytes) -> dict[str, Any]:
    """The tables that TOML in UTF-8 stands for.

    Raises:
      ValueError: it is not TOML, not UTF-8, or nested too deeply.
    """
    return _parse(tomllib.loads, raw)


def _parse(parser: Callable[[str], Any], raw: bytes) -> Any:
    try:
        return parser(raw.decode("utf-8"))
    except RecursionError:
        raise ValueError("nested too deeply") from None
