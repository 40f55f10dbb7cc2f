"""Files of texts and of prompts, checked as they are read.

What a document is goes by the file's name, `.gz` left out:

    .jsonl     every row {"text": ...} is one, blank lines in it and all
    the rest   every paragraph is one: lines up to the next blank one
"""

import gzip
import os
import pathlib
import re
import zlib
from collections.abc import Iterator
from typing import Any

from specjax import parsing

_BLANK = re.compile(r"\n[ \t]*(?:\n[ \t]*)+")


def read_texts(path: str | os.PathLike[str]) -> list[str]:
    """The documents of a file.

    Raises:
      ValueError: there is no such file, it holds no words, or is not what its name
        says; the message has the line's number.
    """
    path = pathlib.Path(path)
    where = f"text: {path}"
    if _is_rows(path):
        found = [
            _words(f"{where}:{number}", row, "text")
            for number, row in _rows(where, path)
        ]
    else:
        whole = _decode(where, _raw(where, path)).replace("\r\n", "\n")
        found = [part for part in _BLANK.split(whole) if part.strip()]
    if not found:
        raise ValueError(f"{where} holds no text")
    return found


def read_prompts(path: str | os.PathLike[str]) -> list[str]:
    """The prompts of a file of JSON lines: the first of "turns", or "prompt".

    Raises:
      ValueError: there is no such file, it holds no prompts, or a line is not one.
    """
    path = pathlib.Path(path)
    where = f"prompts: {path}"
    found = []
    for number, row in _rows(where, path):
        here = f"{where}:{number}"
        if "turns" in row:
            turns = row["turns"]
            if not isinstance(turns, list) or not turns:
                raise ValueError(
                    f"{here}: turns must be a list of texts, got {turns!r}"
                )
            row = {"turns": turns[0]}
        key = "turns" if "turns" in row else "prompt"
        found.append(_words(here, row, key))
    if not found:
        raise ValueError(f"{where} holds no prompts")
    return found


def _is_rows(path: pathlib.Path) -> bool:
    suffixes = [suffix.lower() for suffix in path.suffixes]
    return suffixes[-1:] == [".jsonl"] or suffixes[-2:] == [".jsonl", ".gz"]


def _rows(where: str, path: pathlib.Path) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(_raw(where, path).split(b"\n"), start=1):
        if not line.strip():
            continue
        _decode(f"{where}:{number}", line)
        try:
            row = parsing.json_value(line)
        except ValueError as error:
            raise ValueError(
                f"{where}:{number}: not a line of JSON ({error})"
            ) from error
        if not isinstance(row, dict):
            raise ValueError(
                f"{where}:{number}: expected an object, got {type(row).__name__}"
            )
        yield number, row


def _words(where: str, row: dict[str, Any], key: str) -> str:
    if key not in row:
        raise ValueError(f"{where}: {key!r} is missing; it has {sorted(row)}")
    text = row[key]
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"{where}: {key!r} must be text with words, got {text!r}")
    return text


def _raw(where: str, path: pathlib.Path) -> bytes:
    try:
        raw = path.read_bytes()
        return gzip.decompress(raw) if path.suffix.lower() == ".gz" else raw
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{where}: not a whole gzip file ({error})") from error
    except OSError as error:
        raise ValueError(f"{where}: can't be read ({error.strerror})") from error


def _decode(where: str, raw: bytes) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{where}: not UTF-8 (byte {error.start} is 0x{raw[error.start]:02x}); "
            "convert it first"
        ) from error
