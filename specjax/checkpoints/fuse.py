"""Reads the pieces of a checkpoint and fuses them into the params of the decoder.

Pieces are rows first, the decoder multiplies from the right::

    piece              checkpoint        params, as `decoder.init_params` gives them
    embed, final_norm  [V, E], [E]       the same
    head               [V, E]            [E, V]
    q, k, v            [H*D, E], [G*D, E]  qkv [E, G * (R + 2) * D]
    q_bias, ...        [H*D], [G*D]      qkv_bias [G, R + 2, D]
    out                [E, H*D]          [H*D, E]
    gate, up           [I, E]            gate_up, a list of two [E, I]
    down               [E, I]            [I, E]

Matrices may be kept in fewer bits, by one of three ways to hold them:

"packed"   as they are stored, rows first: `linear.Packed`, one output a row, in the
           order of the fused axes above; gate_up is one, gate before up
"tiled"    with the values that they are stored with, as accelerators read them:
           `linear.Tiled`; arrays where their format can't be
"int8"     `linear.Tiled`, rounded to 8 bits with a scale for each output

Tiled, embed is kept so where it is the head too.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels import linear
from specjax.checkpoints import layout
from specjax.models import config as config_lib
from specjax.models import decoder, families, placement

_MATRICES = ("qkv", "out", "gate_up", "down")
_FUSED = {
    "qkv": ("q", "k", "v"),
    "qkv_bias": ("q_bias", "k_bias", "v_bias"),
    "gate_up": ("gate", "up"),
    "gate_up_bias": ("gate_bias", "up_bias"),
}


def read_params(
    config: config_lib.ModelConfig,
    naming: layout.Naming,
    storage: families.Storage,
    read: Callable[[str], np.ndarray],
    *,
    dtype: np.dtype,
    scanned: bool,
    form: str = "dense",
    stored: Callable[[str], tuple[np.ndarray, str]] | None = None,
    mesh: jax.sharding.Mesh | None = None,
) -> decoder.Params:
    """Reads and fuses all tensors, one leaf of params at a time.

    Args:
      config: of the model; ``layout.problems`` found none.
      naming: of the format.
      storage: how the family is stored in it.
      read: gives a tensor by name.
      dtype: of the params.
      scanned: whether to stack the layers.
      form: how matrices are held, "dense" or as above. Only "dense" and "int8" ones
        can be stacked or split over a mesh.
      stored: gives a tensor's rows in a format of the kernels, and its name; not for
        "dense", and float32 for "int8".
      mesh: whose devices are to hold the params; None for the default device.

    Returns:
      Params in the form of ``decoder.init_params``, or of ``decoder.stack_layers``.

    Raises:
      ValueError: a tensor has values that are not finite in ``dtype``.
    """
    source = _Source(config, naming, storage, read, form, stored, dtype, mesh)
    leaves = _layer_leaves(layout.pieces(config)[1])
    if scanned:
        layers = {leaf: _stacked(source, leaf) for leaf in leaves}
    else:
        layers = [
            {leaf: source.put(leaf, _layer_leaf(source, leaf, i)) for leaf in leaves}
            for i in range(config.num_layers)
        ]
    params = {
        "embed": _top_matrix(source, "embed"),
        "layers": layers,
        "final_norm": source.put("final_norm", _piece(source, "final_norm")),
    }
    if not config.tied_head:
        params["head"] = _top_matrix(source, "head")
    return params


@dataclasses.dataclass(frozen=True)
class _Source:
    """Arguments of ``read_params``."""

    config: config_lib.ModelConfig
    naming: layout.Naming
    storage: families.Storage
    read: Callable[[str], np.ndarray]
    form: str
    stored: Callable[[str], tuple[np.ndarray, str]] | None
    dtype: np.dtype
    mesh: jax.sharding.Mesh | None

    def put(self, leaf: str, value: Any) -> Any:
        """A param of a layer or outside them where it belongs."""
        if isinstance(value, linear.Packed):
            return jax.device_put(value)
        return jax.tree_util.tree_map_with_path(
            lambda path, array: placement.put(
                self.mesh, array, decoder.axes_of(leaf, path)
            ),
            value,
        )

    def name(self, key: str, layer: int | None) -> str:
        """Of a piece, in a layer or outside them."""
        if layer is None:
            return self.naming.top[key]
        return self.naming.prefix.format(layer) + self.naming.layer[key]


def matrices() -> list[tuple[str, ...]]:
    """The pieces of each matrix of a layer: they lie in it together, in one format."""
    return [_FUSED.get(leaf, (leaf,)) for leaf in _MATRICES]


def tiles(config, pieces: tuple[str, ...]) -> list[tuple[str, ...]]:
    """How the pieces of a matrix are tiled, each entry as one; none of them if [].

    Where one of several entries can't be, the whole matrix is an array.

    Args:
      config: of the model.
      pieces: of a matrix of a layer, or ("embed",) or ("head",).
    """
    if pieces == ("embed",) and not config.tied_head:
        return []  # its rows are only looked up
    return [(piece,) for piece in pieces] if pieces == _FUSED["gate_up"] else [pieces]


def _layer_leaf(source: _Source, leaf: str, layer: int) -> Any:
    kept = _kept(source, leaf, layer) if leaf in _MATRICES else None
    if kept is not None:
        return kept
    return _fuse(source.config, leaf, lambda key: _piece(source, key, layer))


def _top_matrix(source: _Source, key: str) -> Any:
    kept = _kept(source, key)
    if kept is not None:
        return source.put(key, kept)
    value = _piece(source, key)  # [V, E]
    turned = value if key == "embed" else np.ascontiguousarray(value.T)
    return source.put(key, turned)


def _kept(source: _Source, leaf: str, layer: int | None = None) -> Any:
    """A matrix held in one of the ways above, None where it is to be an array."""
    keys = _FUSED.get(leaf, (leaf,))
    if source.form == "dense":
        return None
    if source.form == "packed":
        return linear.pack(*_stored(source, leaf, keys, layer))
    made = [_tiled(source, leaf, part, layer) for part in tiles(source.config, keys)]
    if not made or any(part is None for part in made):
        return None
    return made if len(made) > 1 else made[0]


def _tiled(source: _Source, leaf, keys, layer) -> linear.Tiled | None:
    """Pieces as one matrix with the stored values, or those of 8 bits."""
    rows, kind = _stored(source, leaf, keys, layer)
    if source.form == "int8":
        split = source.mesh is not None and source.mesh.size > 1
        return linear.quantise(rows.T, padded=not split)
    stored = linear.FORMATS[kind]
    inputs = rows.shape[1] // stored.size * stored.weights
    return linear.tile(rows, kind) if linear.tileable(inputs, kind) else None


def _piece(source: _Source, key: str, layer: int | None = None) -> np.ndarray:
    """A piece in the dtype of the params, checked."""
    name, storage = source.name(key, layer), source.storage
    value = source.read(name)
    if storage.norm_offset and key.endswith("norm"):
        value = value.astype(np.float32) + np.float32(storage.norm_offset)
    # A sum is finite only if all its terms are, and is faster than isfinite; it
    # may overflow all the same, so look closer then.
    with np.errstate(all="ignore"):
        value = value.astype(source.dtype, copy=False)
        total = np.sum(value, dtype=np.float32)
    if not np.isfinite(total) and not np.isfinite(value).all():
        raise _not_finite(name, source.dtype)
    if storage.interleaved_rope and key in ("q", "k", "q_bias", "k_bias"):
        value = _halves(value, source.config.head_size)
    return value


def _stored(source: _Source, leaf, keys, layer) -> tuple[np.ndarray, str]:
    """Rows of a matrix in the format that its pieces are stored in, and its name."""
    parts, kind = _same_format(source, [source.name(key, layer) for key in keys])
    arrays = []
    for key, rows in zip(keys, parts, strict=True):
        if not linear.finite(rows, kind):
            raise _not_finite(source.name(key, layer), kind)
        turned = source.storage.interleaved_rope and key in ("q", "k")
        arrays.append(_halves(rows, source.config.head_size) if turned else rows)
    return _join_rows(source.config, leaf, arrays), kind


def _same_format(source: _Source, names: list[str]) -> tuple[list[np.ndarray], str]:
    """Rows of tensors and the format they share: float32 if they are stored in many."""
    assert source.stored is not None
    rows, kinds = zip(*map(source.stored, names), strict=True)
    if len(set(kinds)) == 1:
        return list(rows), kinds[0]
    decoded = [
        part if kind == "f32" else np.asarray(source.read(name), np.float32)
        for name, part, kind in zip(names, rows, kinds, strict=True)
    ]
    return decoded, "f32"


def _not_finite(name: str, kind: Any) -> ValueError:
    return ValueError(
        f"tensor {name} holds NaN or infinite values as {kind}; the checkpoint is "
        "damaged, or needs a wider dtype"
    )


def _stacked(source: _Source, leaf: str) -> Any:
    """One param of all layers, [layers, ...], put together where it is to lie."""
    layers = source.config.num_layers
    first = source.put(leaf, _layer_leaf(source, leaf, 0))
    where = jax.tree_util.tree_map_with_path(
        lambda path, one: placement.home(
            source.mesh, ("layers", *decoder.axes_of(leaf, path)), 1 + one.ndim
        ),
        first,
    )

    def add(whole, layer, index):
        return jax.tree.map(
            lambda all_, one: jax.lax.dynamic_update_index_in_dim(all_, one, index, 0),
            whole,
            layer,
        )

    blank = jax.jit(
        lambda: jax.tree.map(lambda x: jnp.zeros((layers, *x.shape), x.dtype), first),
        out_shardings=where,
    )
    add = jax.jit(add, donate_argnums=0, out_shardings=where)
    whole = add(blank(), first, 0)
    for i in range(1, layers):
        whole = add(whole, source.put(leaf, _layer_leaf(source, leaf, i)), i)
    return whole


def _layer_leaves(pieces: Mapping[str, Any]) -> list[str]:
    """Names of a layer's params."""
    parts = {part for fused in _FUSED.values() for part in fused}
    whole = [piece for piece in pieces if piece not in parts]
    return whole + [leaf for leaf, fused in _FUSED.items() if fused[0] in pieces]


def _fuse(config, leaf: str, piece: Callable[[str], np.ndarray]) -> Any:
    """One leaf of a layer's params: pieces joined, [out, in] turned to [in, out]."""
    if leaf not in _FUSED:
        return np.ascontiguousarray(piece(leaf).T)
    parts = [piece(key) for key in _FUSED[leaf]]
    if leaf == "gate_up":
        return [np.ascontiguousarray(part.T) for part in parts]
    if leaf == "gate_up_bias":
        return np.stack(parts)
    joined = _by_group(config, parts)  # [G, R + 2, D] or [G * (R + 2) * D, E]
    return joined if joined.ndim == 3 else np.ascontiguousarray(joined.T)


def _by_group(config, parts: list[np.ndarray]) -> np.ndarray:
    """Rows of q, k and v as they follow each other, kv head after kv head."""
    inner = parts[0].shape[1:]
    groups = (config.num_kv_heads, -1, config.head_size, *inner)
    joined = np.concatenate([part.reshape(groups) for part in parts], axis=1)
    return joined.reshape(-1, *inner) if inner else joined


def _join_rows(config, leaf: str, parts: list[np.ndarray]) -> np.ndarray:
    """Rows [outputs, bytes] of a leaf, outputs in the order of its fused axes."""
    if leaf == "qkv":
        return _by_group(config, parts)
    return np.concatenate(parts) if len(parts) > 1 else parts[0]


def _halves(value: np.ndarray, head_size: int) -> np.ndarray:
    """Rows of heads from pairs (0, 1), (2, 3), ... to two halves."""
    paired = value.reshape(-1, head_size // 2, 2, *value.shape[1:])
    return paired.swapaxes(1, 2).reshape(value.shape)
