"""Reads directories of Hugging Face: config, safetensors, generation config."""

import contextlib
import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import safetensors

from pallas_kernels import linear
from specjax import parsing

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_READABLE = ("F32", "F16", "BF16", "F64")


@dataclasses.dataclass(frozen=True)
class HfDirectory:
    """The headers of a checkpoint.

    Attributes:
      path: the directory.
      config: parsed `config.json`.
      generation_config, tokenizer_config: parsed, {} where there is none.
      shapes: of each tensor.
      kinds: how the numbers of each tensor are stored, such as "BF16".
      files: the file that holds each tensor.
    """

    path: pathlib.Path
    config: dict[str, Any]
    generation_config: dict[str, Any]
    tokenizer_config: dict[str, Any]
    shapes: dict[str, tuple[int, ...]]
    kinds: dict[str, str]
    files: dict[str, pathlib.Path]

    def problems(self) -> list[str]:
        """Why tensors can't be read; empty if they can."""
        return [
            f"tensor {name} is stored as {kind}, expected one of "
            f"{', '.join(_READABLE)}: quantised checkpoints are not read"
            for name, kind in self.kinds.items()
            if kind not in _READABLE
        ]

    def read(self, name: str) -> np.ndarray:
        """The tensor as it is stored (bfloat16 too); ``problems`` is empty."""
        with _opened(self.files[name]) as file:
            return file.get_tensor(name)

    def stored(self, name: str) -> tuple[np.ndarray, str]:
        """The tensor's rows in a format of the kernels, and that format's name.

        They are as they lie in the file where kernels have its format, else float32.
        """
        kind = self.kinds[name].lower()
        if kind in linear.FORMATS:
            return self.read(name), kind
        return self.read(name).astype(np.float32), "f32"


def open_directory(
    path: str | pathlib.Path, *, singles: Sequence[str] = (_SINGLE,)
) -> HfDirectory:
    """Reads the headers of a directory; tensors stay on disk.

    Args:
      path: the directory.
      singles: names that a file of all tensors may have, the first that is there.

    Raises:
      ValueError: a file is missing, truncated or not well-formed.
    """
    path = pathlib.Path(path)
    config = read_json(path / "config.json")
    if config is None:
        raise ValueError(
            f"{path}: expected config.json and safetensors here, found no config.json"
        )
    names = _shards(path, singles)
    shapes, kinds, files = {}, {}, {}
    for file_path, promised in names.items():
        with _opened(file_path) as file:
            held = set(file.keys())
            lacking = sorted((promised or set()) - held)
            if lacking:
                raise ValueError(
                    f"{file_path}: lacks tensor {lacking[0]}, which {_INDEX} says is "
                    "here; fetch the checkpoint again"
                )
            for name in sorted(held):
                if name in files:
                    raise ValueError(
                        f"{path}: tensor {name} is both in {files[name].name} and in "
                        f"{file_path.name}; remove the file that does not belong"
                    )
                header = file.get_slice(name)
                shapes[name] = tuple(header.get_shape())
                kinds[name] = str(header.get_dtype())
                files[name] = file_path
    return HfDirectory(
        path=path,
        config=config,
        generation_config=read_json(path / "generation_config.json") or {},
        tokenizer_config=read_json(path / "tokenizer_config.json") or {},
        shapes=shapes,
        kinds=kinds,
        files=files,
    )


def read_json(path: pathlib.Path) -> dict[str, Any] | None:
    """A parsed JSON object, None where there is no such file.

    Raises:
      ValueError: it is not a JSON object in UTF-8.
    """
    if not path.is_file():
        return None
    try:
        parsed = parsing.json_value(path.read_bytes())
    except OSError as error:
        raise ValueError(f"{path}: can't be read ({error})") from error
    except ValueError as error:  # JSON and UTF-8 errors are both
        raise ValueError(f"{path}: not valid JSON ({error})") from error
    if not isinstance(parsed, dict):
        raise ValueError(f"{path}: expected an object, got {type(parsed).__name__}")
    return parsed


def _shards(
    path: pathlib.Path, singles: Sequence[str]
) -> Mapping[pathlib.Path, set[str] | None]:
    """Files of weights, each with the tensors that the index promises."""
    index = read_json(path / _INDEX)
    if index is None:
        for name in singles:
            if (path / name).is_file():
                return {path / name: None}
        raise ValueError(
            f"{path}: expected {' or '.join((*singles, _INDEX))}, found neither; "
            "pickled weights (.bin, .pt) are not read: convert them to safetensors"
        )
    promised = index.get("weight_map")
    if not isinstance(promised, dict) or not promised:
        raise ValueError(f"{path / _INDEX}: expected a weight_map of tensors to files")
    shards: dict[pathlib.Path, set[str]] = {}
    for tensor, name in promised.items():
        if pathlib.PurePath(name).name != name:
            raise ValueError(
                f"{path / _INDEX}: expected file names in this directory, got {name!r}"
            )
        shards.setdefault(path / name, set()).add(tensor)
    for shard in shards:
        if not shard.is_file():
            raise ValueError(
                f"{shard}: this shard is missing, {_INDEX} names it; fetch it again"
            )
    return shards


@contextlib.contextmanager
def _opened(path: pathlib.Path):
    try:
        file = safetensors.safe_open(str(path), framework="numpy")
    except Exception as error:  # SafetensorError, or OSError by platform
        raise ValueError(
            f"{path}: not a whole safetensors file ({error}); it is truncated or "
            "corrupt: fetch it again"
        ) from error
    with file:
        yield file
