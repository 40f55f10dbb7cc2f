"""Loads models, whole or only their headers."""

import dataclasses
import os
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from pallas_kernels import linear
from specjax.checkpoints import chat, fuse, gguf, huggingface, layout, names
from specjax.checkpoints import tokenizer as tokenizer_lib
from specjax.models import config as config_lib
from specjax.models import decoder, families, placement
from specjax.models import model as model_lib

WEIGHTS = ("stored", "decoded", "tiled", "int8", "dense")
_HELD = {  # what ``fuse.read_params`` makes of them
    "stored": "packed",
    "decoded": "packed",
    "tiled": "tiled",
    "int8": "int8",
    "dense": "dense",
}
# The forms that can be stacked and split over a mesh.
_ANYWHERE = ("dense", "int8")
DTYPES = ("float32", "bfloat16", "float16")  # that params may have
# What reading a value of the wrong kind raises.
_MALFORMED = (
    TypeError,
    AttributeError,
    LookupError,
    ArithmeticError,
    RecursionError,
)
_GGUF_STOPS = ("eos", "eot", "eom")


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class LanguageModel:
    """A model with its weights and its language.

    Attributes:
      name: what it was loaded by.
      model: shapes and choices, static.
      params: weights, in the form that ``model`` says.
      tokenizer: text to ids and back.
      chat_template: None for a model without one.
      stop_ids: tokens that end an answer.
      fingerprint: of the tokenizer.
      mesh: whose devices hold the weights, None for the default device.
    """

    name: str
    model: model_lib.Model
    params: decoder.Params
    tokenizer: tokenizer_lib.Tokenizer
    chat_template: chat.ChatTemplate | None
    stop_ids: tuple[int, ...]
    fingerprint: str
    mesh: jax.sharding.Mesh | None = None

    @property
    def weights(self) -> str:
        """Formats of the matrices in fewer bits, such as "q4_1, q8_0", or "dense"."""
        leaves = jax.tree.leaves(self.params, is_leaf=_is_kept)
        kinds = {leaf.kind for leaf in leaves if _is_kept(leaf)}
        return ", ".join(sorted(kinds)) or "dense"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Inspection:
    """What the headers of a checkpoint say.

    Attributes:
      path: the file or directory.
      config: None if it is not one that can be read; then ``problems`` says why.
      shapes: of each tensor in the checkpoint.
      fingerprint: of the tokenizer, None if it can't be read.
      vocab_size: of the tokenizer, 0 if it can't be read.
      stop_ids: tokens that end an answer.
      has_chat_template: whether it has one.
      problems: every reason why ``load`` would refuse it, values aside.
    """

    path: pathlib.Path
    config: config_lib.ModelConfig | None
    shapes: dict[str, tuple[int, ...]]
    fingerprint: str | None
    vocab_size: int
    stop_ids: tuple[int, ...]
    has_chat_template: bool
    problems: list[str]


@dataclasses.dataclass(frozen=True)
class _Format:
    """The parts of an opened checkpoint, each read when called."""

    path: pathlib.Path
    shapes: dict[str, tuple[int, ...]]
    problems: Callable[[], list[str]]
    config: Callable[[], config_lib.ModelConfig]
    naming: Callable[[config_lib.ModelConfig], layout.Naming]
    storage: Callable[[config_lib.ModelConfig], families.Storage]
    read: Callable[[str], np.ndarray]
    stored: Callable[[str], tuple[np.ndarray, str]]
    tokenizer: Callable[[], tokenizer_lib.Tokenizer]
    chat_template: Callable[[tokenizer_lib.Tokenizer], chat.ChatTemplate | None]
    stop_ids: Callable[[tokenizer_lib.Tokenizer], tuple[int, ...]]


def load(
    name: str | os.PathLike[str],
    *,
    dtype: Any = None,
    scanned: bool = False,
    weights: str | None = None,
    mesh: jax.sharding.Mesh | None = None,
) -> LanguageModel:
    """Loads a model with its tokenizer.

    Args:
      name: see ``names.fetch``: a known name, "hf:owner/name" or a path.
      dtype: "float32", "bfloat16" or "float16"; None takes float32 on CPU, where
        narrow matrix products are slow, and bfloat16 elsewhere.
      scanned: whether to stack the layers, which compiles big models faster and is
        slower on CPU.
      weights: "stored" keeps matrices as the checkpoint has them, quantised ones too:
        less memory, and on CPU native kernels multiply them several times faster;
        "decoded" gives the same kernels float32. "tiled" is for accelerators what
        "stored" is for CPU: blocks of Q8_0, Q4_0 and Q4_1 as their kernels read them,
        all else as arrays. "int8" rounds every matrix to 8 bits with one scale for
        each output, which changes what the model says. "dense" makes arrays of
        ``dtype`` for XLA. None is "stored" where native kernels serve, on CPU with a
        compiler, in float32, with layers apart, and "dense" elsewhere.
      mesh: with axes "data" and "model", or one of them (``specjax.make_mesh``): each
        device is sent its own part of every param, and what decodes is split over
        them. The host holds one param at a time.

    Returns:
      The model, its params on the default device or the mesh.

    Raises:
      ValueError: the checkpoint is not one that can be read, or is damaged; the
        message says what is wrong with which tensor or file. Or the mesh does not
        divide the model.
    """
    dtype = _dtype(dtype)
    mesh = None if mesh is None else placement.automatic(mesh)
    form = _form(weights, dtype, scanned, mesh)
    opened = _open(names.fetch(name))
    try:
        return _read(os.fspath(name), opened, dtype, scanned, form, mesh)
    except ValueError as error:
        raise ValueError(f"{opened.path}: {error}") from error
    except _MALFORMED as error:
        raise ValueError(f"{opened.path}: {_malformed(error)}") from error


def _read(name: str, opened: _Format, dtype, scanned, form, mesh) -> LanguageModel:
    config = opened.config()
    if mesh is not None:
        placement.check(mesh, config)
    naming = opened.naming(config)
    _refuse(layout.problems(config, naming, opened.shapes) + opened.problems())
    tokenizer = opened.tokenizer()
    _refuse(_vocabulary_problems(config, tokenizer))
    template, stop_ids = opened.chat_template(tokenizer), opened.stop_ids(tokenizer)
    params = fuse.read_params(
        config,
        naming,
        opened.storage(config),
        opened.read,
        dtype=dtype,
        scanned=scanned,
        form=_HELD[form],
        stored=_rows(opened, form),
        mesh=mesh,
    )
    return LanguageModel(
        name=name,
        model=model_lib.Model(config=config, dtype=dtype.name),
        params=params,
        tokenizer=tokenizer,
        chat_template=template,
        stop_ids=stop_ids,
        fingerprint=tokenizer.fingerprint(),
        mesh=mesh,
    )


def inspect(name: str | os.PathLike[str]) -> Inspection:
    """Reads the headers of a checkpoint and finds what is wrong with it.

    Args:
      name: as for ``load``.

    Raises:
      ValueError: there is no such checkpoint, or its files can't be opened at all.
    """
    opened = _open(names.fetch(name))
    found = opened.problems()

    def attempt(part: Callable, *arguments: Any) -> Any:
        try:
            return part(*arguments)
        except ValueError as error:
            found.append(str(error))
        except _MALFORMED as error:
            found.append(_malformed(error))
        return None

    config = attempt(opened.config)
    tokenizer = attempt(opened.tokenizer)
    if config is not None:
        found += layout.problems(config, opened.naming(config), opened.shapes)
    if config is not None and tokenizer is not None:
        found += _vocabulary_problems(config, tokenizer)
    stop_ids = attempt(opened.stop_ids, tokenizer) if tokenizer else None
    template = attempt(opened.chat_template, tokenizer) if tokenizer else None
    return Inspection(
        path=opened.path,
        config=config,
        shapes=opened.shapes,
        fingerprint=tokenizer.fingerprint() if tokenizer else None,
        vocab_size=tokenizer.vocab_size if tokenizer else 0,
        stop_ids=stop_ids or (),
        has_chat_template=template is not None,
        problems=found,
    )


def settle(dtype: Any = None, weights: str | None = None) -> tuple[str, str]:
    """Dtype and form of weights that ``load`` takes for these arguments.

    Raises:
      ValueError: there is no such dtype or form.
    """
    chosen = _dtype(dtype)
    return chosen.name, _form(weights, chosen, scanned=False, mesh=None)


def truncate(lm: LanguageModel, layers: int) -> LanguageModel:
    """The model cut to its first layers, with the norm and head that it has.

    It shares every array with ``lm``: a draft model that costs no memory.

    Args:
      lm: the model, its layers unrolled.
      layers: how many to keep, 1 to all of them.

    Raises:
      ValueError: there are not that many layers, or they are stacked.
    """
    config = lm.model.config
    if isinstance(layers, bool) or not isinstance(layers, int):
        raise ValueError(f"layers: expected an integer, got {layers!r}")
    if not 1 <= layers <= config.num_layers:
        raise ValueError(
            f"layers: expected 1 to {config.num_layers}, the layers of {lm.name}, "
            f"got {layers}"
        )
    if isinstance(lm.params["layers"], dict):
        raise ValueError(
            f"layers: {lm.name} holds stacked layers, which can't be cut without a "
            "copy; load it with scanned=False"
        )
    cut = dataclasses.replace(
        config, num_layers=layers, windows=config.windows[:layers]
    )
    return dataclasses.replace(
        lm,
        name=f"{lm.name}[:{layers}]",
        model=dataclasses.replace(lm.model, config=cut),
        params={**lm.params, "layers": lm.params["layers"][:layers]},
    )


def _is_kept(leaf: Any) -> bool:
    return isinstance(leaf, linear.Packed | linear.Tiled)


def _dtype(dtype: Any) -> np.dtype:
    if dtype is None:
        dtype = "float32" if jax.default_backend() == "cpu" else "bfloat16"
    try:
        chosen = np.dtype(dtype)
    except TypeError:
        chosen = None
    if chosen is None or chosen.name not in DTYPES:
        raise ValueError(f"dtype: expected one of {', '.join(DTYPES)}, got {dtype!r}")
    return chosen


def _form(weights: str | None, dtype: np.dtype, scanned: bool, mesh: Any) -> str:
    """The form of the matrices, one of WEIGHTS."""
    if weights is None:
        fits = not scanned and dtype == np.float32 and jax.default_backend() == "cpu"
        fits = fits and mesh is None
        return "stored" if fits and linear.available() else "dense"
    if weights not in WEIGHTS:
        raise ValueError(
            f"weights: expected one of {', '.join(WEIGHTS)}, got {weights!r}"
        )
    if mesh is not None and weights not in _ANYWHERE:
        raise ValueError(
            f"weights: {weights} matrices can't be split over a mesh; load with "
            "weights='dense' or 'int8', or without a mesh"
        )
    if scanned and weights not in _ANYWHERE:
        raise ValueError(
            f"weights: {weights} matrices can't be stacked; load with weights='dense' "
            "or 'int8', or with scanned=False"
        )
    return weights


def _rows(opened: _Format, form: str) -> Callable | None:
    """What gives the rows of a matrix and their format; None where it is an array."""
    if form in ("decoded", "int8"):
        return lambda name: (np.asarray(opened.read(name), np.float32), "f32")
    return None if form == "dense" else opened.stored


def _malformed(error: Exception) -> str:
    return (
        "config or metadata is malformed: a value is of another kind than its key "
        f"stands for ({type(error).__name__}: {error})"
    )


def _refuse(found: list[str]) -> None:
    if found:
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise ValueError(
            f"{found[0]}{more}; the checkpoint is not whole, or not of this family"
        )


def _vocabulary_problems(config, tokenizer) -> list[str]:
    if tokenizer.vocab_size <= config.vocab_size:
        return []
    return [
        f"the tokenizer has {tokenizer.vocab_size} ids, the model's embedding only "
        f"{config.vocab_size}; they do not belong together"
    ]


def _open(path: pathlib.Path) -> _Format:
    try:
        return _open_directory(path) if path.is_dir() else _open_gguf(path)
    except _MALFORMED as error:
        raise ValueError(f"{path}: {_malformed(error)}") from error


def _open_gguf(path: pathlib.Path) -> _Format:
    file = gguf.open_gguf(path)

    def config():
        factors = None
        if "rope_freqs.weight" in file.tensors:
            factors = file.read("rope_freqs.weight")
        return families.from_gguf(
            file.metadata,
            tied_head="output.weight" not in file.tensors,
            rope_factors=factors,
        )

    def token(tokenizer, kind: str) -> str:
        index = file.metadata.get(f"tokenizer.ggml.{kind}_token_id")
        return "" if index is None else tokenizer.token(index) or ""

    def chat_template(tokenizer):
        return chat.from_gguf(
            file.metadata, token(tokenizer, "bos"), token(tokenizer, "eos")
        )

    def stop_ids(tokenizer):
        keys = [f"tokenizer.ggml.{kind}_token_id" for kind in _GGUF_STOPS]
        return _stops([file.metadata.get(key) for key in keys], tokenizer)

    return _Format(
        path=path,
        shapes=file.shapes,
        problems=file.problems,
        config=config,
        naming=lambda _: layout.gguf_naming(),
        storage=families.gguf_storage,
        read=file.read,
        stored=file.stored,
        tokenizer=lambda: tokenizer_lib.from_gguf(file.metadata),
        chat_template=chat_template,
        stop_ids=stop_ids,
    )


def _open_directory(path: pathlib.Path) -> _Format:
    folder = huggingface.open_directory(path)

    def stop_ids(tokenizer):
        ids = []
        for source in (folder.generation_config, folder.config):
            given = source.get("eos_token_id")
            ids += given if isinstance(given, list) else [given]
        eos = chat.token_text(folder.tokenizer_config.get("eos_token"))
        return _stops([*ids, tokenizer.token_id(eos)], tokenizer)

    return _Format(
        path=path,
        shapes=folder.shapes,
        problems=folder.problems,
        config=lambda: families.from_hf(folder.config),
        naming=layout.hf_naming,
        storage=families.hf_storage,
        read=folder.read,
        stored=folder.stored,
        tokenizer=lambda: tokenizer_lib.from_json(path / "tokenizer.json"),
        chat_template=lambda _: chat.from_directory(path, folder.tokenizer_config),
        stop_ids=stop_ids,
    )


def _stops(ids: list[Any], tokenizer: tokenizer_lib.Tokenizer) -> tuple[int, ...]:
    """Those that are given, once each; one outside the vocabulary is an error."""
    given = list(dict.fromkeys(i for i in ids if i is not None))
    for index in given:
        inside = isinstance(index, int) and 0 <= index < tokenizer.vocab_size
        if not inside:
            raise ValueError(
                f"eos_token_id: expected ids in 0..{tokenizer.vocab_size - 1}, got "
                f"{index!r}"
            )
    return tuple(given)
