"""Maps the tensors of a checkpoint to the params of the decoder.

A checkpoint holds *pieces* (q, k and v apart, rows first), the decoder fuses them::

    piece              checkpoint        params, as `decoder.init_params` gives them
    embed, final_norm  [V, E], [E]       the same
    head               [V, E]            [E, V]
    q, k, v            [H*D, E], [G*D, E]  qkv [E, G, R + 2, D]
    q_bias, ...        [H*D], [G*D]      qkv_bias [G, R + 2, D]
    out                [E, H*D]          [H*D, E]
    gate, up           [I, E]            gate_up [E, 2, I]
    down               [E, I]            [I, E]

Kept as they are stored, matrices stay rows first: their params are
`linear.Packed`, one output a row, in the order of the fused axes above.

Names differ between formats, shapes do not.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from pallas_kernels import linear
from specjax.models import config as config_lib
from specjax.models import decoder, families

_HF_TOP = {
    "embed": "model.embed_tokens.weight",
    "final_norm": "model.norm.weight",
    "head": "lm_head.weight",
}
_HF_LAYER = {
    "attn_norm": "input_layernorm.weight",
    "q": "self_attn.q_proj.weight",
    "k": "self_attn.k_proj.weight",
    "v": "self_attn.v_proj.weight",
    "q_bias": "self_attn.q_proj.bias",
    "k_bias": "self_attn.k_proj.bias",
    "v_bias": "self_attn.v_proj.bias",
    "q_norm": "self_attn.q_norm.weight",
    "k_norm": "self_attn.k_norm.weight",
    "out": "self_attn.o_proj.weight",
    "out_bias": "self_attn.o_proj.bias",
    "mlp_norm": "post_attention_layernorm.weight",
    "gate": "mlp.gate_proj.weight",
    "up": "mlp.up_proj.weight",
    "gate_bias": "mlp.gate_proj.bias",
    "up_bias": "mlp.up_proj.bias",
    "down": "mlp.down_proj.weight",
    "down_bias": "mlp.down_proj.bias",
}
_HF_POST_NORMS = {
    "post_attn_norm": "post_attention_layernorm.weight",
    "mlp_norm": "pre_feedforward_layernorm.weight",
    "post_mlp_norm": "post_feedforward_layernorm.weight",
}
_GGUF_TOP = {
    "embed": "token_embd.weight",
    "final_norm": "output_norm.weight",
    "head": "output.weight",
}
_GGUF_LAYER = {
    "attn_norm": "attn_norm.weight",
    "q": "attn_q.weight",
    "k": "attn_k.weight",
    "v": "attn_v.weight",
    "q_bias": "attn_q.bias",
    "k_bias": "attn_k.bias",
    "v_bias": "attn_v.bias",
    "q_norm": "attn_q_norm.weight",
    "k_norm": "attn_k_norm.weight",
    "out": "attn_output.weight",
    "out_bias": "attn_output.bias",
    "post_attn_norm": "post_attention_norm.weight",
    "mlp_norm": "ffn_norm.weight",
    "gate": "ffn_gate.weight",
    "up": "ffn_up.weight",
    "gate_bias": "ffn_gate.bias",
    "up_bias": "ffn_up.bias",
    "down": "ffn_down.weight",
    "down_bias": "ffn_down.bias",
    "post_mlp_norm": "post_ffw_norm.weight",
}
_HF_HARMLESS = ("rotary_emb.inv_freq",)  # buffers that old checkpoints saved
_GGUF_HARMLESS = ("rope_freqs.weight",)  # read into the config


@dataclasses.dataclass(frozen=True)
class Naming:
    """Tensor names of one format.

    Attributes:
      top: name of each piece outside the layers.
      layer: name of each piece of a layer, after ``prefix``.
      prefix: of layer i, with "{}" for i.
      harmless: ends of names that may be there and are not used.
    """

    top: Mapping[str, str]
    layer: Mapping[str, str]
    prefix: str
    harmless: tuple[str, ...]


def hf_naming(config: config_lib.ModelConfig) -> Naming:
    """Names in a Hugging Face directory."""
    layer = {**_HF_LAYER, **(_HF_POST_NORMS if config.post_norms else {})}
    return Naming(_HF_TOP, layer, "model.layers.{}.", _HF_HARMLESS)


def gguf_naming() -> Naming:
    """Names in a GGUF file."""
    return Naming(_GGUF_TOP, _GGUF_LAYER, "blk.{}.", _GGUF_HARMLESS)


def expected_shapes(
    config: config_lib.ModelConfig, naming: Naming
) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor that a checkpoint must have."""
    top, layer = _pieces(config)
    shapes = {naming.top[piece]: shape for piece, shape in top.items()}
    for i in range(config.num_layers):
        for piece, shape in layer.items():
            shapes[naming.prefix.format(i) + naming.layer[piece]] = shape
    return shapes


def problems(
    config: config_lib.ModelConfig,
    naming: Naming,
    shapes: Mapping[str, tuple[int, ...]],
) -> list[str]:
    """What is wrong with the tensors of a checkpoint; empty if nothing is.

    Args:
      config: what the checkpoint claims to be.
      naming: of its format.
      shapes: its tensors.
    """
    expected = expected_shapes(config, naming)
    found = []
    for name, shape in expected.items():
        if name not in shapes:
            found.append(f"tensor {name} is missing, expected shape {shape}")
        elif tuple(shapes[name]) != shape:
            found.append(
                f"tensor {name} has shape {tuple(shapes[name])}, expected {shape}"
            )
    ignored = naming.harmless
    if config.tied_head:
        ignored = (*ignored, naming.top["head"])
    for name in shapes:
        if name not in expected and not name.endswith(ignored):
            found.append(
                f"tensor {name} is not part of a {config.family} model of "
                f"{config.num_layers} layers"
            )
    return found


def read_params(
    config: config_lib.ModelConfig,
    naming: Naming,
    storage: families.Storage,
    read: Callable[[str], np.ndarray],
    *,
    dtype: np.dtype,
    scanned: bool,
    stored: Callable[[str], tuple[np.ndarray, str]] | None = None,
) -> decoder.Params:
    """Reads and fuses all tensors, one leaf of params at a time.

    Args:
      config: of the model; ``problems`` found none.
      naming: of the format.
      storage: how the family is stored in it.
      read: gives a tensor by name.
      dtype: of the params.
      scanned: whether to stack the layers.
      stored: gives a tensor's rows as they lie in the file and the name of their
        format; matrices are then kept so. Not with ``scanned``.

    Returns:
      Params in the form of ``decoder.init_params``, or of ``decoder.stack_layers``.

    Raises:
      ValueError: a tensor has values that are not finite in ``dtype``.
    """
    top, layer = _pieces(config)
    offset = {piece for piece in (*top, *layer) if piece.endswith("norm")}

    def piece(names: Mapping[str, str], key: str, prefix: str = "") -> np.ndarray:
        name = prefix + names[key]
        value = read(name)
        if storage.norm_offset and key in offset:
            value = value.astype(np.float32) + np.float32(storage.norm_offset)
        # A sum is finite only if all its terms are, and is faster than isfinite; it
        # may overflow all the same, so look closer then.
        with np.errstate(all="ignore"):
            value = value.astype(dtype, copy=False)
            total = np.sum(value, dtype=np.float32)
        if not np.isfinite(total) and not np.isfinite(value).all():
            raise _not_finite(name, dtype)
        if storage.interleaved_rope and key in ("q", "k", "q_bias", "k_bias"):
            value = _halves(value, config.head_size)
        return value

    def packed(names: Mapping[str, str], leaf: str, prefix: str = "") -> linear.Packed:
        keys = _FUSED.get(leaf, (leaf,))
        parts = [stored(prefix + names[key]) for key in keys] if stored else []
        kinds = {kind for _, kind in parts}
        if len(kinds) > 1 or not kinds <= set(linear.FORMATS):
            # One leaf has one format: decoded, they have the same.
            parts = [
                (np.asarray(read(prefix + names[key]), np.float32), "f32")
                for key in keys
            ]
        arrays = []
        for key, (rows, kind) in zip(keys, parts, strict=True):
            if not linear.finite(rows, kind):
                raise _not_finite(prefix + names[key], kind)
            turned = storage.interleaved_rope and key in ("q", "k")
            arrays.append(_halves(rows, config.head_size) if turned else rows)
        return linear.pack(_join_rows(config, leaf, arrays), parts[0][1])

    def layer_leaf(leaf: str, i: int) -> np.ndarray | linear.Packed:
        prefix = naming.prefix.format(i)
        if stored and leaf in _MATRICES:
            return packed(naming.layer, leaf, prefix)
        return _fuse(config, leaf, lambda key: piece(naming.layer, key, prefix))

    def top_matrix(key: str) -> jax.Array | linear.Packed:
        if stored:
            return packed(naming.top, key)
        value = piece(naming.top, key)  # [V, E]
        turned = value if key == "embed" else np.ascontiguousarray(value.T)
        return jax.device_put(turned)

    leaves = _layer_leaves(layer)
    if scanned:
        layers = {leaf: _stacked(config, leaf, layer_leaf) for leaf in leaves}
    else:
        layers = [
            {leaf: jax.device_put(layer_leaf(leaf, i)) for leaf in leaves}
            for i in range(config.num_layers)
        ]
    params = {
        "embed": top_matrix("embed"),
        "layers": layers,
        "final_norm": jax.device_put(piece(naming.top, "final_norm")),
    }
    if not config.tied_head:
        params["head"] = top_matrix("head")
    return params


def _not_finite(name: str, kind: Any) -> ValueError:
    return ValueError(
        f"tensor {name} holds NaN or infinite values as {kind}; the checkpoint is "
        "damaged, or needs a wider dtype"
    )


def _stacked(config, leaf: str, layer_leaf) -> jax.Array:
    """One leaf of all layers, [layers, ...]."""
    first = layer_leaf(leaf, 0)
    whole = np.empty((config.num_layers, *first.shape), first.dtype)
    whole[0] = first
    for i in range(1, config.num_layers):
        whole[i] = layer_leaf(leaf, i)
    return jax.device_put(whole)


def _pieces(config: config_lib.ModelConfig) -> tuple[dict, dict]:
    """Shapes of the pieces outside the layers, and of those of one layer."""
    c = config
    queries, keys = c.num_heads * c.head_size, c.num_kv_heads * c.head_size
    top = {"embed": (c.vocab_size, c.embed_size), "final_norm": (c.embed_size,)}
    if not c.tied_head:
        top["head"] = (c.vocab_size, c.embed_size)
    layer: dict[str, tuple[int, ...]] = {
        "attn_norm": (c.embed_size,),
        "q": (queries, c.embed_size),
        "k": (keys, c.embed_size),
        "v": (keys, c.embed_size),
        "out": (c.embed_size, queries),
        "mlp_norm": (c.embed_size,),
        "gate": (c.mlp_size, c.embed_size),
        "up": (c.mlp_size, c.embed_size),
        "down": (c.embed_size, c.mlp_size),
    }
    if c.qkv_bias:
        layer |= {"q_bias": (queries,), "k_bias": (keys,), "v_bias": (keys,)}
    if c.output_bias:
        layer["out_bias"] = (c.embed_size,)
    if c.mlp_bias:
        layer |= {"gate_bias": (c.mlp_size,), "up_bias": (c.mlp_size,)}
        layer["down_bias"] = (c.embed_size,)
    if c.qk_norm:
        layer |= {"q_norm": (c.head_size,), "k_norm": (c.head_size,)}
    if c.post_norms:
        layer |= {"post_attn_norm": (c.embed_size,), "post_mlp_norm": (c.embed_size,)}
    return top, layer


_MATRICES = ("qkv", "out", "gate_up", "down")
_FUSED = {
    "qkv": ("q", "k", "v"),
    "qkv_bias": ("q_bias", "k_bias", "v_bias"),
    "gate_up": ("gate", "up"),
    "gate_up_bias": ("gate_bias", "up_bias"),
}


def _layer_leaves(pieces: Mapping[str, Any]) -> list[str]:
    """Names of a layer's params."""
    parts = {part for fused in _FUSED.values() for part in fused}
    whole = [piece for piece in pieces if piece not in parts]
    return whole + [leaf for leaf, fused in _FUSED.items() if fused[0] in pieces]


def _fuse(config, leaf: str, piece: Callable[[str], np.ndarray]) -> np.ndarray:
    """One leaf of a layer's params: pieces joined, then [out, in] to [in, out]."""
    if leaf not in _FUSED:
        value = piece(leaf)
        return np.ascontiguousarray(value.T)
    parts = [piece(key) for key in _FUSED[leaf]]
    inner = parts[0].shape[1:]  # (E,) or ()
    if leaf.startswith("qkv"):
        groups = (config.num_kv_heads, -1, config.head_size)
        parts = [part.reshape(*groups, *inner) for part in parts]
        shape, axis = (config.num_kv_heads, config.group + 2, config.head_size), 1
    else:
        parts = [part[None] for part in parts]
        shape, axis = (2, config.mlp_size), 0
    whole = np.empty((*inner, *shape), parts[0].dtype)
    # A view in the order of the parts: they are copied once, straight into place.
    view = np.moveaxis(whole, 0, -1) if inner else whole
    np.concatenate(parts, axis=axis, out=view)
    return whole


def _join_rows(config, leaf: str, parts: list[np.ndarray]) -> np.ndarray:
    """Rows [outputs, bytes] of a leaf, outputs in the order of its fused axes."""
    if leaf != "qkv":
        return np.concatenate(parts) if len(parts) > 1 else parts[0]
    groups = (config.num_kv_heads, -1, config.head_size, parts[0].shape[-1])
    joined = np.concatenate([part.reshape(groups) for part in parts], axis=1)
    return joined.reshape(-1, parts[0].shape[-1])


def _halves(value: np.ndarray, head_size: int) -> np.ndarray:
    """Rows of heads from pairs (0, 1), (2, 3), ... to two halves."""
    paired = value.reshape(-1, head_size // 2, 2, *value.shape[1:])
    return paired.swapaxes(1, 2).reshape(value.shape)
