"""Reads GGUF files.

The header is read here, with every length checked against the file: the `gguf`
package reads past the end of a truncated file without noticing and takes seconds for
a vocabulary. Quantised blocks are decoded by that package.
"""

import dataclasses
import functools
import math
import pathlib
import struct
from typing import Any

import gguf
import ml_dtypes
import numpy as np

from pallas_kernels import linear

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_ALIGNMENT = 32
_MAX_DIMENSIONS = 4
_ROWS = 1024  # decoded at once: the package needs as much memory again
# A float16 scale, and 32 whole numbers of at most 8 bits: the same numbers as in Q8_0.
_WHOLE = ("Q5_0", "IQ4_NL")
_NUMBERS = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}
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


@dataclasses.dataclass(frozen=True)
class TensorInfo:
    """Where one tensor lies.

    Attributes:
      shape: rows first, as in NumPy (GGUF writes them last first).
      kind: how its numbers are stored.
      offset: first byte, from the start of the file.
      num_bytes: length in the file.
    """

    shape: tuple[int, ...]
    kind: gguf.GGMLQuantizationType
    offset: int
    num_bytes: int


@dataclasses.dataclass(frozen=True)
class GgufFile:
    """The header of a GGUF file.

    Attributes:
      path: the file.
      metadata: keys and values; arrays are lists.
      tensors: by name, in file order.
    """

    path: pathlib.Path
    metadata: dict[str, Any]
    tensors: dict[str, TensorInfo]

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of each tensor."""
        return {name: info.shape for name, info in self.tensors.items()}

    def problems(self) -> list[str]:
        """Why tensors can't be read; empty if they can."""
        return [
            _unreadable(name, info.kind)
            for name, info in self.tensors.items()
            if not _readable(info.kind)
        ]

    def read(self, name: str) -> np.ndarray:
        """The tensor as float32, decoded if it is quantised.

        Raises:
          ValueError: ``problems`` names it.
        """
        info = self.tensors[name]
        if not _readable(info.kind):
            raise ValueError(_unreadable(name, info.kind))
        raw = self._raw(name)
        if info.kind.name == "F32":
            return np.array(raw.view("<f4")).reshape(info.shape)
        whole = np.empty((len(raw), info.shape[-1]), np.float32)
        for first in range(0, len(raw), _ROWS):
            whole[first : first + _ROWS] = _decode(raw[first : first + _ROWS], info)
        return whole.reshape(info.shape)

    def stored(self, name: str) -> tuple[np.ndarray, str]:
        """The tensor's rows in a format of the kernels, and that format's name.

        They are as they lie in the file where kernels have its format; else Q8_0, if
        that can hold the same numbers, or float32.
        """
        info = self.tensors[name]
        kind = info.kind.name.lower()
        if kind in linear.FORMATS:
            return np.array(self._raw(name).view(_NUMBERS.get(kind, np.uint8))), kind
        if info.kind.name in _WHOLE:
            return _as_q8_0(self._raw(name), info), "q8_0"
        return self.read(name), "f32"

    def _raw(self, name: str) -> np.ndarray:
        """Bytes u8[rows, bytes of a row]."""
        info = self.tensors[name]
        mapped = np.memmap(
            self.path, mode="r", offset=info.offset, shape=(info.num_bytes,)
        )
        rows = math.prod(info.shape[:-1])
        raw = mapped.view(np.ndarray)  # slices of a memmap are slow
        return raw.reshape(rows, info.num_bytes // max(rows, 1))


def open_gguf(path: str | pathlib.Path) -> GgufFile:
    """Reads the header of a GGUF file; tensors stay on disk.

    Raises:
      ValueError: the file is missing, truncated or not well-formed.
    """
    path = pathlib.Path(path)
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
    metadata = {}
    for _ in range(num_keys):
        key = cursor.text("a metadata key")
        if key in metadata:
            raise ValueError(f"{path}: metadata key {key} occurs twice")
        metadata[key] = cursor.value(key)
    if metadata.get("split.count", 1) != 1:
        raise ValueError(
            f"{path}: is one of {metadata['split.count']} parts of a model; merge "
            "them into one file with gguf-split"
        )
    entries = {}
    for _ in range(num_tensors):
        name, entry = cursor.tensor()
        if name in entries:
            raise ValueError(f"{path}: tensor {name} occurs twice")
        entries[name] = entry
    alignment = metadata.get("general.alignment", _ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1 or alignment % 8:
        raise ValueError(
            f"{path}: general.alignment must be a positive multiple of 8, got "
            f"{alignment!r}"
        )
    start = -(-cursor.at // alignment) * alignment
    tensors = {
        name: _place(path, size, name, entry, start) for name, entry in entries.items()
    }
    return GgufFile(path, metadata, tensors)


@functools.cache
def _readable(kind: gguf.GGMLQuantizationType) -> bool:
    """Whether the package decodes it, tried on one block."""
    _, size = gguf.GGML_QUANT_SIZES[kind]
    try:
        gguf.quants.dequantize(np.zeros((1, size), np.uint8), kind)
    except NotImplementedError:
        return False
    return True


def _unreadable(name: str, kind: gguf.GGMLQuantizationType) -> str:
    known = [other.name for other in gguf.GGMLQuantizationType if _readable(other)]
    return (
        f"tensor {name} is stored as {kind.name}, expected one of "
        f"{', '.join(known)}: convert the file to one of these"
    )


def _decode(rows: np.ndarray, info: TensorInfo) -> np.ndarray:
    """Rows u8[n, bytes] as float32."""
    with np.errstate(all="ignore"):  # Who reads them looks for what is not finite.
        return gguf.quants.dequantize(rows, info.kind)


def _as_q8_0(rows: np.ndarray, info: TensorInfo) -> np.ndarray:
    """Rows u8[n, bytes] of a format in ``_WHOLE``: the same scales, and whole numbers.

    With a scale of 1 the whole numbers are what the package decodes.
    """
    blocks = rows.reshape(len(rows), -1, gguf.GGML_QUANT_SIZES[info.kind][1])
    size = linear.FORMATS["q8_0"].size
    made = np.empty((*blocks.shape[:2], size), np.uint8)
    made[..., :2] = blocks[..., :2]
    for first in range(0, len(rows), _ROWS):
        part = np.array(blocks[first : first + _ROWS])
        part[..., :2] = np.array([1], "<f2").view(np.uint8)
        whole = _decode(part.reshape(len(part), -1), info).astype(np.int8)
        made[first : first + _ROWS, :, 2:] = whole.view(np.uint8).reshape(
            *part.shape[:2], -1
        )
    return made.reshape(len(rows), -1)


def _place(path, size, name, entry, start) -> TensorInfo:
    """Turns a header entry into a TensorInfo that lies inside the file."""
    shape, kind, offset = entry
    block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    if shape[-1] % block:
        raise ValueError(
            f"{path}: tensor {name} has rows of {shape[-1]}, expected a multiple of "
            f"{block} for {kind.name}"
        )
    count = 1
    for length in shape:  # Python integers: a corrupt header can't overflow.
        count *= length
    num_bytes = count // block * block_bytes
    if start + offset + num_bytes > size:
        raise ValueError(
            f"{path}: tensor {name} ends at byte {start + offset + num_bytes}, the "
            f"file at {size}; it is truncated or corrupt: fetch it again"
        )
    return TensorInfo(shape, kind, start + offset, num_bytes)


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

    def tensor(self) -> tuple[str, tuple]:
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
        return name, (shape, gguf.GGMLQuantizationType(kind), offset)
