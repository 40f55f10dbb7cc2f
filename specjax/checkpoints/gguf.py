"""Reads GGUF files: their tensors, as they are stored or decoded.

Quantised blocks are decoded by the `gguf` package; headers are read by
`gguf_header.py`.
"""

import dataclasses
import functools
import math
import pathlib
from typing import Any

import gguf
import ml_dtypes
import numpy as np

from pallas_kernels import linear
from specjax.checkpoints import gguf_header

_ALIGNMENT = 32
_ROWS = 1024  # decoded at once: the package needs as much memory again
# A float16 scale, and 32 whole numbers of at most 8 bits: the same numbers as in Q8_0.
_WHOLE = ("Q5_0", "IQ4_NL")
_NUMBERS = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}


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
    header = gguf_header.read(path)
    metadata, size = header.metadata, path.stat().st_size
    if metadata.get("split.count", 1) != 1:
        raise ValueError(
            f"{path}: is one of {metadata['split.count']} parts of a model; merge "
            "them into one file with gguf-split"
        )
    alignment = metadata.get("general.alignment", _ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1 or alignment % 8:
        raise ValueError(
            f"{path}: general.alignment must be a positive multiple of 8, got "
            f"{alignment!r}"
        )
    start = -(-header.end // alignment) * alignment
    tensors = {
        name: _place(path, size, name, entry, start)
        for name, entry in header.entries.items()
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


def _place(
    path: pathlib.Path, size: int, name: str, entry: gguf_header.Entry, start: int
) -> TensorInfo:
    """Where an entry of a header lies in a file of ``size`` bytes, checked.

    Args:
      path: for messages.
      size: of the file.
      name: of the tensor.
      entry: what the header says of it.
      start: byte where tensors begin.

    Raises:
      ValueError: a row is no whole number of blocks, or the file ends before it.
    """
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
