"""Prompts to learn from: where they come from, and which must not be used."""

import gzip
import hashlib
import os
import pathlib
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from specjax import parsing
from specjax.evaluation import prompts as questions_lib
from specjax.training.data import shards

RUN = 10  # words in a row that a prompt may not share with a held-out question
_VALIDATION = 0.05  # of prompts whose file does not say
_WORD = re.compile(r"\w+")


class Prompt(NamedTuple):
    """A user's message.

    Attributes:
      text: it.
      source: where it is from.
      split: one of ``shards.SPLITS``.
    """

    text: str
    source: str
    split: str

    @property
    def id(self) -> int:
        """64 bits of its words: equal for texts that differ in case and spaces."""
        return digest(" ".join(words(self.text)) or self.text)


class Kept(NamedTuple):
    """Prompts that may be used, and how many may not, by the reason."""

    prompts: list[Prompt]
    dropped: dict[str, int]


def words(text: str) -> list[str]:
    """Words of a text in lower case."""
    return _WORD.findall(text.lower())


def digest(*parts: object) -> int:
    """64 bits that depend on all parts and on nothing else."""
    text = "\x1f".join(map(str, parts))
    return int.from_bytes(hashlib.sha256(text.encode("utf-8", "replace")).digest()[:8])


def read(path: str | os.PathLike[str]) -> list[Prompt]:
    """Reads JSON lines with ``prompt``, and ``source`` and ``split`` if they are known.

    Args:
      path: the file; .gz is unpacked.

    Raises:
      ValueError: there is no such file, or a line is not a prompt.
    """
    path = pathlib.Path(path)
    try:
        raw = path.read_bytes()
        raw = gzip.decompress(raw) if path.suffix == ".gz" else raw
    except (OSError, EOFError) as error:
        raise ValueError(f"prompts: can't read {path} ({error})") from error
    found = []
    for number, line in enumerate(raw.split(b"\n"), start=1):
        if line.strip():
            found.append(_parse(f"prompts: {path}:{number}", path.name, line))
    if not found:
        raise ValueError(f"prompts: {path} holds no prompts")
    return found


def _parse(where: str, name: str, line: bytes) -> Prompt:
    try:
        row = parsing.json_value(line)
    except ValueError as error:
        raise ValueError(f"{where}: not a line of JSON ({error})") from error
    text = row.get("prompt") if isinstance(row, dict) else None
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"{where}: expected an object with 'prompt', a text")
    split = row.get("split", split_of(text))
    if split not in shards.SPLITS:
        raise ValueError(
            f"{where}: 'split' must be one of {', '.join(shards.SPLITS)}, got {split!r}"
        )
    return Prompt(text, str(row.get("source", name)), split)


def split_of(text: str) -> str:
    """The split of a prompt, by its words alone."""
    share = digest("split", *words(text)) / 2**64
    return shards.VALIDATION if share < _VALIDATION else shards.TRAIN


def runs(texts: Iterable[str], length: int = RUN) -> frozenset[tuple[str, ...]]:
    """All runs of so many words in some texts."""
    return frozenset(run for text in texts for run in _runs(words(text), length))


def held_out(paths: Sequence[str | os.PathLike[str]]) -> frozenset[tuple[str, ...]]:
    """Runs of words of all questions in prompt files of benchmarks.

    Raises:
      ValueError: a file can't be read.
    """
    questions = [q for path in paths for q in questions_lib.read(path)]
    return runs(turn for question in questions for turn in question.turns)


def clean(
    prompts: Sequence[Prompt],
    forbidden: frozenset[tuple[str, ...]],
    seen: Iterable[int] = (),
) -> Kept:
    """Leaves out prompts that occur twice or share a run of words with a benchmark.

    Args:
      prompts: in the order that the first of equal ones is kept by.
      forbidden: runs of words, see ``runs``.
      seen: ids that are taken.
    """
    taken, kept = set(seen), []
    dropped = {"twice": 0, "in a benchmark": 0}
    for prompt in prompts:
        if prompt.id in taken:
            dropped["twice"] += 1
        elif any(run in forbidden for run in _runs(words(prompt.text), RUN)):
            dropped["in a benchmark"] += 1
        else:
            taken.add(prompt.id)
            kept.append(prompt)
    return Kept(kept, dropped)


def _runs(found: list[str], length: int) -> Iterable[tuple[str, ...]]:
    return zip(*(found[at:] for at in range(length)), strict=False)
