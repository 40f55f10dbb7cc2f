"""Reads the headers of GGUF files, every length checked against the file.

The `gguf` package reads past the end of a truncated file without noticing and takes
seconds for a vocabulary.
"""

import pathlib
import struct
from typing import Any, NamedTuple

import gguf
import numpy as np

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_MAX_DIMENSIONS = 4
_SCALARS: dict[int, str] = {
    gguf.GGUFValueType.UINT8: "<u1",
    gguf.GGUFValueType.INT8: "<i1",
    gguf.GGUFValueType.UINT16: "<u2",
    gguf.GGUFValueType.INT16: "<i2",
    gguf.GGUFValueType.UINT32: "<u4",
    gguf.GGUFValueType.INT32: "<i4",
    gguf.GGUFValueType.FLOAT32: "<f4",
    gguf.GGUFValueType.BOOL: "?",
    gguf.GGUFValueType.UINT64: "<u8",
    gguf.GGUFValueType.INT64: "<i8",
    gguf.GGUFValueType.FLOAT64: "<f8",
}


class Entry(NamedTuple):
    """What a header says of one tensor.

    Attributes:
      shape: rows first, as in NumPy (GGUF writes them last first).
      kind: how its numbers are stored.
      offset: first byte, from where tensors begin.
    """

    shape: tuple[int, ...]
    kind: gguf.GGMLQuantizationType
    offset: int


class Header(NamedTuple):
    """The header of a GGUF file.

    Attributes:
      metadata: keys and values; arrays are lists.
      entries: by name, in file order.
      end: the first byte after it.
    """

    metadata: dict[str, Any]
    entries: dict[str, Entry]
    end: int


def read(path: pathlib.Path) -> Header:
    """Reads the header of a file.

    Raises:
      ValueError: the file is missing, truncated or not well-formed.
    """
    if not path.is_file():
        raise ValueError(f"{path}: expected a GGUF file, found no such file")
    size = path.stat().st_size
    if size < len(_MAGIC):
        raise ValueError(f"{path}: {size} bytes are too short for a GGUF file")
    try:
        data = np.memmap(path, mode="r")
    except OSError as error:
        raise ValueError(f"{path}: can't be read ({error})") from error
    cursor = _Cursor(path, data)
    if bytes(cursor.take(4, "magic")) != _MAGIC:
        raise ValueError(
            f"{path}: not a GGUF file (it does not begin with 'GGUF'); expected a "
            "model in GGUF or a directory with config.json"
        )
    version = cursor.number("<u4", "version")
    if version not in _VERSIONS:
        raise ValueError(
            f"{path}: GGUF version {version} is not read; expected one of "
            f"{_VERSIONS}, little-endian"
        )
    num_tensors = cursor.number("<u8", "tensor count")
    num_keys = cursor.number("<u8", "key count")
    metadata: dict[str, Any] = {}
    for _ in range(num_keys):
        key = cursor.text("a metadata key")
        if key in metadata:
            raise ValueError(f"{path}: metadata key {key} occurs twice")
        metadata[key] = cursor.value(key)
    entries: dict[str, Entry] = {}
    for _ in range(num_tensors):
        name, entry = cursor.entry()
        if name in entries:
            raise ValueError(f"{path}: tensor {name} occurs twice")
        entries[name] = entry
    return Header(metadata, entries, cursor.at)


class _Cursor:
    """Reads a header in order and never past the end of the file."""

    def __init__(self, path: pathlib.Path, data: np.ndarray) -> None:
        self.path, self.at = path, 0
        self._data = data.data

    def take(self, count: int, what: str) -> memoryview:
        end = self.at + count
        if end > len(self._data):
            raise ValueError(
                f"{self.path}: ends inside {what} (byte {end} of "
                f"{len(self._data)}); it is truncated or corrupt: fetch it again"
            )
        self.at, start = end, self.at
        return self._data[start:end]

    def number(self, dtype: str, what: str) -> Any:
        width = np.dtype(dtype).itemsize
        return np.frombuffer(self.take(width, what), dtype)[0].item()

    def text(self, what: str) -> str:
        (length,) = struct.unpack("<Q", self.take(8, what))
        try:
            return str(self.take(length, what), "utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"{self.path}: {what} is not UTF-8 ({error})") from error

    def value(self, key: str) -> Any:
        what = f"metadata {key}"
        return self._typed(self.number("<u4", what), what)

    def _typed(self, kind: int, what: str) -> Any:
        if kind == gguf.GGUFValueType.STRING:
            return self.text(what)
        if kind == gguf.GGUFValueType.ARRAY:
            item, count = self.number("<u4", what), self.number("<u8", what)
            if item in _SCALARS:
                dtype = np.dtype(_SCALARS[item])
                raw = self.take(count * dtype.itemsize, what)
                return np.frombuffer(raw, dtype).tolist()
            if item == gguf.GGUFValueType.STRING:
                return [self.text(what) for _ in range(count)]
            kind = item
        if kind not in _SCALARS:
            raise ValueError(
                f"{self.path}: {what} has type {kind}, which is not known; the file "
                "is corrupt or newer than this reader"
            )
        return self.number(_SCALARS[kind], what)

    def entry(self) -> tuple[str, Entry]:
        name = self.text("a tensor name")
        what = f"tensor {name}"
        rank = self.number("<u4", what)
        if not 1 <= rank <= _MAX_DIMENSIONS:
            raise ValueError(
                f"{self.path}: {what} has {rank} dimensions, expected 1 to "
                f"{_MAX_DIMENSIONS}"
            )
        shape = tuple(self.number("<u8", what) for _ in range(rank))[::-1]
        kind = self.number("<u4", what)
        if kind not in list(gguf.GGMLQuantizationType):
            raise ValueError(f"{self.path}: {what} has unknown storage type {kind}")
        offset = self.number("<u8", what)
        return name, Entry(shape, gguf.GGMLQuantizationType(kind), offset)
