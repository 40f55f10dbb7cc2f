"""The file of a benchmark: one JSON row a line, added as prompts are done.

A prompt's rows, one a drafter, are written together; a run that was interrupted goes
on after the last prompt that is whole.
"""

import json
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import pydantic

from specjax import files, invalid, parsing

Row = dict[str, Any]
_Count = Annotated[int, pydantic.Field(ge=0, lt=2**53)]  # exact as a float
_Measure = Annotated[float, pydantic.Field(ge=0, allow_inf_nan=False)]


def _writable(text: str) -> str:
    """Refuses half a surrogate pair, which no file in UTF-8 holds."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("must be whole characters") from None
    return text


_Text = Annotated[str, pydantic.AfterValidator(_writable)]


class _Settings(pydantic.BaseModel):
    """How rows were made; only what tables and reports look at is named."""

    sampling: dict[str, Any] = {}


class _Result(pydantic.BaseModel):
    """What a row must hold for tables and reports; it may hold more."""

    model_config = pydantic.ConfigDict(strict=True)

    question_id: int | _Text
    category: _Text
    turn: _Count
    drafter: _Text
    tokens: list[int]
    identical: bool
    first_difference: _Count | None = None
    margin_at_difference: _Measure | None = None
    decode_seconds: _Measure
    new_tokens: _Count
    target_calls: _Count
    drafted: _Count
    accepted: _Count
    accepted_per_depth: list[_Count]
    batch: Annotated[_Count, pydantic.Field(ge=1)] = 1
    settings: _Settings = _Settings()
    drafter_mb: _Measure = 0.0
    propose_ms: _Measure = 0.0
    observe_ms: _Measure = 0.0
    drafted_per_source: dict[_Text, _Count] = {}
    accepted_per_source: dict[_Text, _Count] = {}


def read(path: str | os.PathLike[str]) -> list[Row]:
    """Reads results; a last line that was cut short is left out.

    Raises:
      ValueError: there is no such file, or a line is not a result.
    """
    path = pathlib.Path(path)
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise ValueError(f"results: can't read {path} ({error.strerror})") from error
    lines = raw.split(b"\n")
    found = []
    for number, line in enumerate(lines[:-1], start=1):  # the last has no line break
        try:
            row = parsing.json_value(line)
        except ValueError as error:
            raise ValueError(
                f"results: {path}:{number}: not a line of JSON ({error})"
            ) from error
        try:
            _Result.model_validate(row)
        except pydantic.ValidationError as error:
            raise ValueError(
                f"results: {path}:{number}: not a row of `bench`, "
                f"{invalid.describe(error)}"
            ) from error
        found.append(row)
    return found


def resume(path: pathlib.Path, settings: Mapping[str, Any], whole: int) -> list[Row]:
    """Rows that an earlier run with the same settings left, partial prompts dropped.

    Args:
      path: the file; there may be none yet.
      settings: of this run.
      whole: rows of a prompt and turn that is done: one a drafter.

    Raises:
      ValueError: it was written with other settings.
    """
    if not path.exists():
        return []
    kept = read(path)
    for row in kept:
        _check_settings(path, row.get("settings", {}), settings)
    counts: dict[Any, int] = {}
    for row in kept:
        counts[key(row)] = counts.get(key(row), 0) + 1
    broken = {k[0] for k, count in counts.items() if count != whole}
    kept = [row for row in kept if row["question_id"] not in broken]
    files.write(path, b"".join(map(_line, kept)))
    return kept


def append(path: pathlib.Path, rows: Sequence[Row]) -> None:
    """Adds rows in one write."""
    with path.open("ab") as file:
        file.write(b"".join(map(_line, rows)))
        file.flush()
        os.fsync(file.fileno())


def key(row: Row) -> tuple[Any, int]:
    """Which prompt a row belongs to: question and turn."""
    return row["question_id"], row["turn"]


def _line(row: Row) -> bytes:
    return json.dumps(row, ensure_ascii=False).encode("utf-8", "replace") + b"\n"


def _check_settings(path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    before, now = _flat(before), _flat(now)
    for name in {**before, **now}:
        if before.get(name) != now.get(name):
            raise ValueError(
                f"out: {path} was written with {name}={before.get(name)!r}, this run "
                f"has {now.get(name)!r}; name another file or pass --overwrite"
            )


def _flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    flat = {**settings, **settings.get("sampling", {})}
    return {name: value for name, value in flat.items() if name != "sampling"}
