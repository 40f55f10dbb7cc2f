"""Datastores: what was learnt before the first request, in memory and on disk.

A datastore belongs to one tokenizer and has up to three parts:

    part          arrays                                     who reads it
    corpus        text i32[M], order i32[M]                  `corpus`, `suffix`
    model_ngrams  phrase i32[V, G, W], count i32[V, G],      `model_ngrams`
                  total i32[V]
    successor     successor i32[V]                           `max_gram`, `cascade`

`datastore_files.py` keeps them on disk.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

FORMAT = "specjax-datastore"
VERSION = 1
CORPUS, MODEL_NGRAMS, SUCCESSOR = "corpus", "model_ngrams", "successor"
PARTS = {
    CORPUS: ("text", "order"),
    MODEL_NGRAMS: ("phrase", "count", "total"),
    SUCCESSOR: ("successor",),
}
# Tables with a row for each id, and what stands in the rows of ids never seen.
_ROWS = {"phrase": -1, "count": 0, "total": 0, "successor": -1}
_AXES = {"phrase": 3, "count": 2}  # of the others 1
Facts = dict[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Datastore:
    """What some documents taught, on the host. Make one with ``specjax.datastores``.

    Attributes:
      arrays: NumPy arrays by name, those of the parts that it has.
      fingerprint: of the tokenizer that the ids are of.
      vocab_size: V, ids are below it.
      documents, tokens: how many it was made from, separators not counted.
      options: how it was made; for people.
    """

    arrays: Mapping[str, np.ndarray]
    fingerprint: str
    vocab_size: int
    documents: int
    tokens: int
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of the parts that it has."""
        return tuple(part for part in PARTS if PARTS[part][0] in self.arrays)

    def arrays_of(self, part: str) -> dict[str, np.ndarray]:
        """The arrays of one part.

        Raises:
          ValueError: the store was made without it.
        """
        if part not in self.parts:
            raise ValueError(
                f"store: this datastore has no part {part!r}, it has "
                f"{', '.join(self.parts) or 'none'}; build one with it"
            )
        return {name: self.arrays[name] for name in PARTS[part]}

    def facts(self) -> Facts:
        """What the store is, ready for JSON, always in this order of keys.

        Sizes are in MB (10^6 bytes), arrays in the order of ``PARTS``.
        """
        names = [name for part in self.parts for name in PARTS[part]]
        return {
            "format": FORMAT,
            "version": VERSION,
            "parts": list(self.parts),
            "fingerprint": self.fingerprint,
            "vocab_size": self.vocab_size,
            "documents": self.documents,
            "tokens": self.tokens,
            "options": dict(self.options),
            "megabytes": {name: self.arrays[name].nbytes / 1e6 for name in names},
        }


def fit(arrays: Mapping[str, np.ndarray], vocab_size: int) -> dict[str, np.ndarray]:
    """Gives tables a row for each id, where embeddings are padded to another width.

    Args:
      arrays: by name, all ids in them below ``vocab_size``.
      vocab_size: V to be.
    """
    fitted = dict(arrays)
    for name, filler in _ROWS.items():
        if name in fitted and len(fitted[name]) != vocab_size:
            old = fitted[name][:vocab_size]
            rows = [(0, vocab_size - len(old))] + [(0, 0)] * (old.ndim - 1)
            fitted[name] = np.pad(old, rows, constant_values=filler)
    return fitted


def check_arrays(
    where: str,
    arrays: Mapping[str, np.ndarray],
    parts: Sequence[str],
    vocab_size: int,
) -> None:
    """Refuses arrays that a drafter can't read.

    Args:
      where: beginning of the messages.
      arrays: by name.
      parts: those that must be whole.
      vocab_size: ids must be below it.

    Raises:
      ValueError: an array is missing, misshapen or holds values out of range.
    """
    if not parts:
        raise ValueError(f"{where} has no part; expected some of {', '.join(PARTS)}")
    for name in (name for part in parts for name in PARTS[part]):
        if name not in arrays:
            raise ValueError(f"{where}: array {name!r} is missing; build it again")
        array, axes = arrays[name], _AXES.get(name, 1)
        if array.dtype != np.int32 or array.ndim != axes or not array.size:
            raise ValueError(
                f"{where}: array {name!r} must be int32 with {axes} axes and values, "
                f"got {array.dtype}{list(array.shape)}"
            )
        _check_range(where, name, array, _limit(name, arrays, vocab_size))
    for first, second, axes in (("text", "order", 1), ("phrase", "count", 2)):
        _check_fit(where, arrays, first, second, axes)
    _check_fit(where, arrays, "phrase", "total", 1)


def _limit(name: str, arrays, vocab_size: int) -> tuple[int, int]:
    """Lowest and highest value that an array may hold."""
    if name in ("text", "phrase", "successor"):
        return -1, vocab_size - 1
    if name == "order":
        return 0, arrays["text"].size - 1
    return 0, 2**31 - 1


def _check_range(where: str, name: str, array, limits: tuple[int, int]) -> None:
    low, high = int(array.min()), int(array.max())
    if low < limits[0] or high > limits[1]:
        raise ValueError(
            f"{where}: array {name!r} holds {low} to {high}, expected {limits[0]} to "
            f"{limits[1]}: it is damaged, or its ids are not all in the vocabulary"
        )


def _check_fit(where: str, arrays, first: str, second: str, axes: int) -> None:
    if first in arrays and arrays[first].shape[:axes] != arrays[second].shape[:axes]:
        raise ValueError(
            f"{where}: arrays {first!r} {list(arrays[first].shape)} and {second!r} "
            f"{list(arrays[second].shape)} do not belong together"
        )
