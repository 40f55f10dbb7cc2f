"""What tensors a checkpoint of a model must have, and what each format calls them.

A checkpoint holds *pieces*: q, k and v apart, gate and up apart, matrices rows first,
[outputs, inputs]. Names differ between formats, shapes do not.
"""

import dataclasses
from collections.abc import Mapping

from specjax.models import config as config_lib

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
    top, layer = pieces(config)
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


def pieces(config: config_lib.ModelConfig) -> tuple[dict, dict]:
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
