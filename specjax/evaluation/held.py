"""What the weights of a checkpoint will take in memory, in the form they are held in.

Headers tell shapes and how tensors are stored. What readers make of a way to store them
is asked of the readers: they read the smallest matrix of each.
"""

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np

from pallas_kernels import linear
from specjax import checkpoints
from specjax.checkpoints import fuse, gguf, huggingface, layout
from specjax.models import config as config_lib
from specjax.models import decoder


class Held(NamedTuple):
    """Weights once loaded.

    Attributes:
      bytes: of all of them.
      formats: of the matrices.
    """

    bytes: int
    formats: tuple[str, ...]


def weights(
    inspection: checkpoints.Inspection,
    config: config_lib.ModelConfig,
    dtype: str,
    form: str,
) -> Held:
    """Bytes and formats of the weights of a checkpoint that would load.

    Args:
      inspection: of the checkpoint; it has no problems.
      config: the inspection's.
      dtype: of what is held as arrays.
      form: one of ``checkpoints.WEIGHTS``.
    """
    if form == "dense":
        return Held(num_bytes(param_shapes(config, dtype)), (dtype,))
    naming, formats = _formats(inspection, config)
    shapes = layout.expected_shapes(config, naming)
    total, kinds = 0, set()
    for prefix, pieces, names in _matrices(config, naming):
        found = [formats[prefix + names[piece]] for piece in pieces]
        sizes = [shapes[prefix + names[piece]] for piece in pieces]
        if form in ("stored", "decoded"):
            kind = _common(found) if form == "stored" else "f32"
            total += sum(_stored_bytes(shape, kind) for shape in sizes)
            kinds.add(kind)
            continue
        of = dict(zip(pieces, zip(sizes, found, strict=True), strict=True))
        parts = [
            _tiled([of[piece] for piece in part], form)
            for part in fuse.tiles(config, pieces)
        ]
        if parts and None not in parts:
            total += sum(map(num_bytes, parts))
            kinds |= {part.kind for part in parts if part}
        else:
            total += sum(map(math.prod, sizes)) * np.dtype(dtype).itemsize
    vectors = [shape for shape in shapes.values() if len(shape) == 1]
    total += sum(map(math.prod, vectors)) * np.dtype(dtype).itemsize
    return Held(total, tuple(sorted(kinds)) or (dtype,))


def param_shapes(config: config_lib.ModelConfig, dtype: str):
    """The params as XLA would hold them, by their shapes."""
    make = functools.partial(decoder.init_params, config, dtype=np.dtype(dtype))
    return jax.eval_shape(make, jax.random.key(0))


def num_bytes(shapes) -> int:
    """Bytes of a tree of arrays or shapes."""
    leaves = jax.tree.leaves(shapes)
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in leaves)


def _formats(
    inspection: checkpoints.Inspection, config: config_lib.ModelConfig
) -> tuple[layout.Naming, dict[str, str]]:
    """Names of the tensors, and the format in which kernels get each matrix."""
    if inspection.path.is_dir():
        naming = layout.hf_naming(config)
        reader = huggingface.open_directory(inspection.path)
        kinds = dict(reader.kinds)
    else:
        naming = layout.gguf_naming()
        reader = gguf.open_gguf(inspection.path)
        kinds = {name: info.kind.name for name, info in reader.tensors.items()}
    matrices = [
        prefix + names[piece]
        for prefix, pieces, names in _matrices(config, naming)
        for piece in pieces
    ]
    matrices.sort(key=lambda name: math.prod(inspection.shapes[name]))
    smallest = {kinds[name]: name for name in reversed(matrices)}
    read = {kind: reader.stored(name)[1] for kind, name in smallest.items()}
    return naming, {name: read[kinds[name]] for name in matrices}


def _matrices(
    config: config_lib.ModelConfig, naming: layout.Naming
) -> Iterator[tuple[str, tuple[str, ...], Mapping[str, str]]]:
    """Each matrix of the decoder: prefix of its tensors, its pieces, their names."""
    yield "", ("embed",), naming.top
    if not config.tied_head:
        yield "", ("head",), naming.top
    for layer in range(config.num_layers):
        for pieces in fuse.matrices():
            yield naming.prefix.format(layer), pieces, naming.layer


def _tiled(
    parts: Sequence[tuple[tuple[int, ...], str]], form: str
) -> linear.Tiled | None:
    """Shapes of pieces ((outputs, inputs), format) tiled as one, None if they can't."""
    inputs = parts[0][0][1]
    outputs = sum(shape[0] for shape, _ in parts)
    kind = "int8" if form == "int8" else _common([kind for _, kind in parts])
    if kind != "int8" and not linear.tileable(inputs, kind):
        return None
    return linear.tiled_shapes(inputs, outputs, kind)


def _common(kinds: Sequence[str]) -> str:
    """The format that pieces of one matrix are held in."""
    return kinds[0] if len(set(kinds)) == 1 else "f32"


def _stored_bytes(shape: tuple[int, ...], kind: str) -> int:
    form = linear.FORMATS[kind]
    return math.prod(shape) // form.weights * form.size * form.dtype.itemsize
