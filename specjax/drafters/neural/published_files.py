"""Files of draft checkpoints: a directory with config.json and safetensors.

A matrix may be stored as int8 beside a tensor ``NAME_scale`` f32[outputs, 1], by which
its rows are multiplied; compressed-tensors names them so.
"""

import dataclasses
import json
import math
import os
import pathlib
import shutil
from collections.abc import Collection, Mapping
from typing import Any

import ml_dtypes
import numpy as np
from safetensors import numpy as safetensors_numpy

from specjax import checks, files
from specjax.checkpoints import huggingface

FORMATS = ("bfloat16", "float32", "int8")  # that ``write`` stores matrices in
SCALE = "_scale"
OWN = "specjax"  # key of what our own files say besides
_WEIGHTS = "model.safetensors"
_SINGLES = (_WEIGHTS, "medusa_lm_head.safetensors")
_NUMBERS = ("F64", "F32", "F16", "BF16")
_WHOLE = ("I64", "I32", "BOOL", "U8")


@dataclasses.dataclass(frozen=True)
class Draft:
    """An opened draft checkpoint, its tensors on disk.

    Attributes:
      path: the directory.
      config: parsed ``config.json``.
      shapes: of each tensor, scales left out.
      folder: the headers.
    """

    path: pathlib.Path
    config: dict[str, Any]
    shapes: dict[str, tuple[int, ...]]
    folder: huggingface.HfDirectory

    @property
    def own(self) -> Mapping[str, Any]:
        """What we wrote in the config besides; {} for those of others."""
        found = self.config.get(OWN)
        return found if isinstance(found, dict) else {}

    @property
    def formats(self) -> tuple[str, ...]:
        """How numbers are stored, such as ("BF16",)."""
        kinds = {self.folder.kinds[name] for name in self.shapes}
        return tuple(sorted(kinds - set(_WHOLE))) or tuple(sorted(kinds))

    def storage_problems(self, whole: Collection[str] = ()) -> list[str]:
        """Tensors that are stored in a way that is not read.

        Args:
          whole: names of those that hold ids or marks.
        """
        found = []
        for name in self.shapes:
            kind, expected = self.folder.kinds[name], _NUMBERS
            if name in whole:
                expected = _WHOLE
            elif kind == "I8" and self._scaled(name):
                continue
            if kind not in expected:
                found.append(
                    f"tensor {name} is stored as {kind}, expected one of "
                    f"{', '.join(expected)}, or I8 with rows' scales in {name}{SCALE}; "
                    "store it as one of them"
                )
        return found

    def whole(self, name: str) -> np.ndarray:
        """A tensor of ids or marks."""
        return self.folder.read(name)

    def read(self, name: str, dtype: np.dtype) -> np.ndarray:
        """A tensor of numbers.

        Args:
          name: of a tensor that ``storage_problems`` found nothing about.
          dtype: of the result.

        Raises:
          ValueError: it holds values that are not finite in ``dtype``.
        """
        value = self.folder.read(name)
        with np.errstate(all="ignore"):
            if self._scaled(name):
                scale = self.folder.read(name + SCALE).astype(np.float32)
                value = value.astype(np.float32) * scale
            value = value.astype(dtype, copy=False)
        if not np.isfinite(value.astype(np.float32, copy=False)).all():
            raise ValueError(
                f"{self.path}: tensor {name} holds NaN or infinite values as "
                f"{np.dtype(dtype).name}; the checkpoint is damaged, or its training "
                "diverged: take an earlier one"
            )
        return value

    def _scaled(self, name: str) -> bool:
        rows = self.shapes[name][:1]
        found = self.folder.shapes.get(name + SCALE)
        return self.folder.kinds[name] == "I8" and found in (rows, (*rows, 1))


def describe(draft: Draft, dtype: str) -> list[tuple[str, str]]:
    """Facts of any kind of draft, as (name, value).

    Args:
      draft: opened.
      dtype: that numbers will be held in.
    """
    kinds = draft.folder.kinds
    numbers = [name for name in draft.shapes if kinds[name] not in _WHOLE]
    count = sum(math.prod(draft.shapes[name]) for name in numbers)
    held = count * np.dtype(dtype).itemsize
    return [
        ("tensors", f"{len(draft.shapes)}, stored as {', '.join(draft.formats)}"),
        ("parameters", f"{count:,}"),
        (f"memory: weights, {dtype}", f"{held / 2**20:,.1f} MiB"),
    ]


def open_draft(path: str | os.PathLike[str]) -> Draft:
    """Reads the headers of a draft checkpoint.

    Raises:
      ValueError: there is none, or a file is not well-formed.
    """
    folder = huggingface.open_directory(pathlib.Path(path), singles=_SINGLES)
    shapes = {
        name: shape
        for name, shape in folder.shapes.items()
        if not (name.endswith(SCALE) and name.removesuffix(SCALE) in folder.shapes)
    }
    return Draft(folder.path, folder.config, shapes, folder)


def write(
    path: str | os.PathLike[str],
    tensors: Mapping[str, np.ndarray],
    config: Mapping[str, Any],
    *,
    form: str,
) -> None:
    """Writes a draft checkpoint.

    A new directory is there whole or not at all. In one that is there already each file
    is replaced in one step, the weights before the config.

    Args:
      path: the directory; its parent must exist.
      tensors: by name; those of whole numbers and marks are stored as they are.
      config: becomes ``config.json``.
      form: one of FORMATS; "int8" leaves vectors in bfloat16.

    Raises:
      ValueError: the form is not known, a tensor is not finite, or the directory can't
        be written.
    """
    checks.one_of("save", "form", form, FORMATS)
    stored: dict[str, np.ndarray] = {}
    for name, value in tensors.items():
        stored |= _stored(name, np.asarray(value), form)
    raw = {
        _WEIGHTS: safetensors_numpy.save(stored, metadata={"format": "pt"}),
        "config.json": json.dumps(dict(config), indent=2).encode() + b"\n",
    }
    folder = pathlib.Path(path)
    try:
        if folder.is_dir():
            for name, content in raw.items():
                files.write(folder / name, content)
            return
        part = folder.with_name(f"{folder.name}.{os.getpid()}.part")
        part.mkdir()
        try:
            for name, content in raw.items():
                files.write(part / name, content)
            os.replace(part, folder)
        except BaseException:  # Ctrl-C too
            shutil.rmtree(part, ignore_errors=True)
            raise
    except OSError as error:
        raise ValueError(
            f"path: can't write a draft checkpoint to {folder} ({error.strerror})"
        ) from error


def _stored(name: str, value: np.ndarray, form: str) -> dict[str, np.ndarray]:
    """A tensor as it goes to disk, with its scale if it has one."""
    if value.dtype == np.bool_ or np.issubdtype(value.dtype, np.integer):
        return {name: np.ascontiguousarray(value)}
    value = value.astype(np.float32)
    if not np.isfinite(value).all():
        raise ValueError(f"save: tensor {name} holds NaN or infinite values")
    if form == "float32":
        return {name: np.ascontiguousarray(value)}
    if form == "bfloat16" or value.ndim < 2:
        return {name: np.ascontiguousarray(value.astype(ml_dtypes.bfloat16))}
    scale = np.abs(value).max(axis=1, keepdims=True) / np.float32(127)
    whole = np.rint(value / np.where(scale == 0, 1, scale)).astype(np.int8)
    return {name: np.ascontiguousarray(whole), name + SCALE: scale}
