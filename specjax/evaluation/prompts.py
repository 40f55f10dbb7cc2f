"""Prompt files of Spec-Bench's shape: one JSON object a line.

Each has ``question_id``, ``category`` and ``turns``, the user's messages in order.
"""

import dataclasses
import os
import pathlib
from collections.abc import Sequence
from typing import Any, TypeVar

from specjax import parsing

_Row = TypeVar("_Row")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Question:
    """One row of a prompt file.

    Attributes:
      question_id: number or text, its own within a file.
      category: for the tables.
      turns: the user's messages, at least one.
    """

    question_id: int | str
    category: str
    turns: tuple[str, ...]


def read(path: str | os.PathLike[str], limit: int | None = None) -> list[Question]:
    """Reads a prompt file.

    Args:
      path: the file.
      limit: how many to take, evenly spaced over the file; all by default.

    Raises:
      ValueError: there is no such file, it is empty, or a line is not a question; the
        message has the line's number.
    """
    path = pathlib.Path(path)
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise ValueError(f"dataset: can't read {path} ({error.strerror})") from error
    found: dict[int | str, Question] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        question = _parse(f"dataset: {path}:{number}", line)
        if question.question_id in found:
            raise ValueError(
                f"dataset: {path}:{number}: question_id {question.question_id!r} "
                "occurs twice; give each row its own"
            )
        found[question.question_id] = question
    if not found:
        raise ValueError(f"dataset: {path} holds no questions")
    return spread(list(found.values()), limit)


def spread(rows: Sequence[_Row], limit: int | None) -> list[_Row]:
    """``limit`` rows evenly spaced, floor(i * rows / limit); all if there are fewer.

    >>> spread(range(10), 4)
    [0, 2, 5, 7]

    Raises:
      ValueError: ``limit`` is below 1.
    """
    if limit is not None and limit < 1:
        raise ValueError(f"limit must be at least 1, got {limit}")
    if limit is None or limit >= len(rows):
        return list(rows)
    return [rows[i * len(rows) // limit] for i in range(limit)]


def _parse(where: str, line: bytes) -> Question:
    try:
        row: Any = parsing.json_value(line)
    except ValueError as error:  # of JSON or UTF-8
        raise ValueError(f"{where}: not a line of JSON in UTF-8 ({error})") from error
    if not isinstance(row, dict):
        raise ValueError(f"{where}: expected an object, got {type(row).__name__}")
    for key in ("question_id", "category", "turns"):
        if key not in row:
            raise ValueError(f"{where}: {key!r} is missing; it has {sorted(row)}")
    question_id, category, turns = row["question_id"], row["category"], row["turns"]
    if isinstance(question_id, bool) or not isinstance(question_id, int | str):
        raise ValueError(
            f"{where}: question_id must be a number or text, got {question_id!r}"
        )
    if not isinstance(category, str):
        raise ValueError(f"{where}: category must be text, got {category!r}")
    if not isinstance(turns, list) or not turns:
        raise ValueError(f"{where}: turns must be a list of texts, got {turns!r}")
    for turn in turns:
        if not isinstance(turn, str) or not turn.strip():
            raise ValueError(f"{where}: a turn must be text with words, got {turn!r}")
    return Question(question_id=question_id, category=category, turns=tuple(turns))
