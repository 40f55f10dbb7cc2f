"""Documents on disk, in shards that are whole or not there.

A folder holds ``card.json`` and ``shard-00000.safetensors`` and so on, each with

    tokens u16[M] (i32 where ids need it), documents one after the other
    offsets i64[R + 1], where each begins, and the end
    answer u8[M], 1 on tokens that the target wrote
    temperature f32[R], split u8[R] (an index into ``SPLITS``), id u64[R]
"""

import json
import os
import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import safetensors
import safetensors.numpy

from specjax import files, parsing

TRAIN, VALIDATION = "train", "validation"
SPLITS = (TRAIN, VALIDATION)
CARD = "card.json"
FORMAT = "specjax-answers"
_FIELDS = {
    "tokens": (np.uint16, np.int32),
    "offsets": (np.int64,),
    "answer": (np.uint8,),
    "temperature": (np.float32,),
    "split": (np.uint8,),
    "id": (np.uint64,),
}
_SMALL_IDS = 2**16  # vocabularies up to this are kept in two bytes a token


class Document(NamedTuple):
    """A conversation and which of its tokens the target wrote.

    Attributes:
      tokens: i32[T].
      answer: bool[T].
      temperature: that the answer was drawn at.
      split: one of ``SPLITS``.
      id: 64 bits that tell it from all others.
    """

    tokens: np.ndarray
    answer: np.ndarray
    temperature: float
    split: str
    id: int


class Documents(NamedTuple):
    """Documents to learn from.

    Attributes:
      tokens: i32[T] of each.
      answer: bool[T] of each, tokens that the target wrote.
      temperature: f32[R].
    """

    tokens: list[np.ndarray]
    answer: list[np.ndarray]
    temperature: np.ndarray


def write(
    folder: pathlib.Path, index: int, documents: Sequence[Document], vocab_size: int
) -> None:
    """Writes one shard in one step.

    Args:
      folder: which exists.
      index: the shard's number.
      documents: what it holds.
      vocab_size: V, ids are below it.

    Raises:
      OSError: it can't be written; what was there stays.
    """
    kind = np.uint16 if vocab_size <= _SMALL_IDS else np.int32
    lengths = [len(one.tokens) for one in documents]
    arrays = {
        "tokens": _joined([one.tokens for one in documents], kind),
        "offsets": np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        "answer": _joined([one.answer for one in documents], np.uint8),
        "temperature": np.array([one.temperature for one in documents], np.float32),
        "split": np.array([SPLITS.index(one.split) for one in documents], np.uint8),
        "id": np.array([one.id for one in documents], np.uint64),
    }
    files.write(_path(folder, index), safetensors.numpy.save(arrays))


def _joined(parts: Sequence[np.ndarray], kind: type) -> np.ndarray:
    return np.concatenate([np.zeros((0,), kind), *(x.astype(kind) for x in parts)])


def count(folder: pathlib.Path) -> int:
    """How many shards there are, from the first one on without a gap."""
    index = 0
    while _path(folder, index).exists():
        index += 1
    return index


def ids(folder: pathlib.Path) -> set[int]:
    """Ids of all documents in the shards of a folder.

    Raises:
      ValueError: a shard is damaged.
    """
    found: set[int] = set()
    for index in range(count(folder)):
        found.update(_load(_path(folder, index))["id"].tolist())
    return found


def write_card(folder: pathlib.Path, facts: dict[str, Any]) -> None:
    """Writes the card in one step; see ``read_card``."""
    text = json.dumps({"format": FORMAT, **facts}, indent=2, ensure_ascii=False)
    files.write(folder / CARD, f"{text}\n".encode())


def read_card(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """The card of a folder.

    Raises:
      ValueError: there is none, or it is not one.
    """
    path = pathlib.Path(folder) / CARD
    try:
        card = parsing.json_value(path.read_bytes())
    except OSError as error:
        raise ValueError(
            f"data: can't read {path} ({error.strerror}); make the folder by "
            "`specjax train data`"
        ) from error
    except ValueError as error:
        raise ValueError(f"data: {path} is not JSON ({error})") from error
    if not isinstance(card, dict) or card.get("format") != FORMAT:
        raise ValueError(f"data: {path} is not a card of training data")
    return card


def read(
    folder: str | os.PathLike[str], split: str, *, fingerprint: str | None = None
) -> Documents:
    """Reads the documents of a split.

    Args:
      folder: with a card and shards.
      split: one of ``SPLITS``.
      fingerprint: of the tokenizer that ids must be of, None for any.

    Raises:
      ValueError: no data, another tokenizer, or a shard that is missing or damaged.
    """
    if split not in SPLITS:
        raise ValueError(f"split must be one of {', '.join(SPLITS)}, got {split!r}")
    folder = pathlib.Path(folder)
    card = read_card(folder)
    if fingerprint is not None and card.get("fingerprint") != fingerprint:
        raise ValueError(
            f"data: {folder} was made with another tokenizer ({card.get('model')!r}, "
            f"{card.get('fingerprint')}) than the target's ({fingerprint}); make data "
            "with this target"
        )
    number = card.get("shards")
    if not isinstance(number, int) or count(folder) < number:
        raise ValueError(
            f"data: {folder} has {count(folder)} shards from the first on, its card "
            f"says {number}; make it again or copy all of it"
        )
    found = Documents([], [], np.zeros((0,), np.float32))
    temperatures = [found.temperature]
    for index in range(number):
        shard = _load(_path(folder, index))
        wanted = np.flatnonzero(shard["split"] == SPLITS.index(split))
        temperatures.append(shard["temperature"][wanted])
        for at in wanted:
            part = slice(shard["offsets"][at], shard["offsets"][at + 1])
            found.tokens.append(shard["tokens"][part].astype(np.int32))
            found.answer.append(shard["answer"][part].astype(bool))
    return found._replace(temperature=np.concatenate(temperatures))


def _path(folder: pathlib.Path, index: int) -> pathlib.Path:
    return folder / f"shard-{index:05d}.safetensors"


def _load(path: pathlib.Path) -> dict[str, np.ndarray]:
    """Arrays of a shard, checked.

    Raises:
      ValueError: it is damaged.
    """
    try:
        arrays = safetensors.numpy.load_file(path)
    except (OSError, safetensors.SafetensorError) as error:
        raise ValueError(f"data: can't read {path} ({error}); copy it anew") from error
    for name, kinds in _FIELDS.items():
        if name not in arrays or arrays[name].dtype not in kinds:
            raise ValueError(f"data: {path} lacks the array {name!r}; copy it anew")
    offsets, size = arrays["offsets"], arrays["tokens"].size
    rows = len(arrays["id"])
    whole = len(offsets) == rows + 1 and offsets[0] == 0 and offsets[-1] == size
    whole &= bool(np.all(np.diff(offsets) > 0)) and len(arrays["answer"]) == size
    whole &= len(arrays["temperature"]) == len(arrays["split"]) == rows
    if not whole:
        raise ValueError(f"data: arrays of {path} do not fit each other; copy it anew")
    return arrays
