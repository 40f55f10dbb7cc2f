"""What the weights of a checkpoint will take in memory, in the form they are held in.

Headers tell shapes and how tensors are stored. What readers make of a way to store them
is asked of the readers: they read the smallest matrix of each.
"""

import functools
import math
from collections.abc import Iterator
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
    for names in _matrices(config, naming, form):
        found = {formats[name] for name in names}
        kind = found.pop() if len(found) == 1 else "f32"
        rows = sum(shapes[name][0] for name in names), shapes[names[0]][1]
        if form in _TILED and names == [naming.top["embed"]] and not config.tied_head:
            size, held = math.prod(rows) * np.dtype(dtype).itemsize, None
        else:
            size, held = _HOLD[form](rows, kind, dtype)
        total += size
        kinds |= {held} - {None}
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
    matrices = [name for names in _matrices(config, naming, "") for name in names]
    matrices.sort(key=lambda name: math.prod(inspection.shapes[name]))
    smallest = {kinds[name]: name for name in reversed(matrices)}
    read = {kind: reader.stored(name)[1] for kind, name in smallest.items()}
    return naming, {name: read[kinds[name]] for name in matrices}


def _matrices(
    config: config_lib.ModelConfig, naming: layout.Naming, form: str
) -> Iterator[list[str]]:
    """Tensors of each matrix that the decoder has, or of each that is tiled."""
    yield [naming.top["embed"]]
    if not config.tied_head:
        yield [naming.top["head"]]
    for layer in range(config.num_layers):
        prefix = naming.prefix.format(layer)
        for pieces in fuse.matrices(halves=form not in _TILED):
            yield [prefix + naming.layer[piece] for piece in pieces]


Shape = tuple[int, int]  # outputs, inputs
_TILED = ("tiled", "int8")


def _stored(shape: Shape, kind: str, dtype: str) -> tuple[int, str]:
    """Bytes of a matrix stored in a format, and the format."""
    del dtype
    form = linear.FORMATS[kind]
    return math.prod(shape) // form.weights * form.size * form.dtype.itemsize, kind


def _decoded(shape: Shape, kind: str, dtype: str) -> tuple[int, str]:
    del kind
    return _stored(shape, "f32", dtype)


def _tiled(shape: Shape, kind: str, dtype: str) -> tuple[int, str | None]:
    outputs, inputs = shape
    if not linear.tileable(inputs, kind):
        return math.prod(shape) * np.dtype(dtype).itemsize, None
    return num_bytes(linear.shapes(inputs, outputs, kind)), kind


def _int8(shape: Shape, kind: str, dtype: str) -> tuple[int, str]:
    del kind, dtype
    outputs, inputs = shape
    return num_bytes(linear.shapes(inputs, outputs, "int8")), "int8"


_HOLD = {"stored": _stored, "decoded": _decoded, "tiled": _tiled, "int8": _int8}
