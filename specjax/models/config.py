"""The numbers that describe one decoder of the Llama family."""

import dataclasses

import numpy as np

ROPE_KINDS = ("default", "linear", "llama3", "yarn")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RopeScaling:
    """How rotary frequencies are stretched beyond the trained context.

    Attributes:
      kind: one of ``ROPE_KINDS``.
      factor: stretch.
      low_freq_factor, high_freq_factor: bounds of the llama3 ramp.
      beta_fast, beta_slow: bounds of the yarn ramp, in rotations.
      original_context: context that the model was trained on.
      attention_factor: yarn's scale of cos and sin; None computes it.
    """

    kind: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    original_context: int = 0
    attention_factor: float | None = None


# Far above any model, so that a damaged header ends in an error and not in a hang.
_LARGEST = {
    "vocab_size": 2**24,
    "embed_size": 2**20,
    "num_layers": 2**12,
    "num_heads": 2**14,
    "num_kv_heads": 2**14,
    "head_size": 2**14,
    "mlp_size": 2**24,
    "max_context": 2**30,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Shapes and choices of a decoder; hashable, so it may be static.

    Attributes:
      family: name in ``families``, for messages.
      vocab_size: V, rows of the embedding.
      embed_size: E.
      num_layers: layers.
      num_heads: H, query heads.
      num_kv_heads: G, divides H.
      head_size: D.
      mlp_size: I.
      max_context: most positions.
      norm_eps: epsilon of the RMS norms.
      rope_theta: base of the rotary frequencies of global layers.
      rope_scaling: of global layers.
      local_rope_theta: base for layers with a window, None for the same.
      windows: sliding window of each layer, 0 for none; () means none at all.
      tied_head: whether the head is the embedding.
      qkv_bias, output_bias, mlp_bias: which projections have biases.
      qk_norm: RMS norm of each query and key head before rotation.
      post_norms: norms after attention and MLP too (Gemma).
      activation: "silu" or "gelu_tanh".
      embed_scale: factor on the embedding.
      query_scale: factor on attention scores, None for 1 / sqrt(D).
      attention_cap: soft cap on attention scores, 0 for none.
      final_cap: soft cap on logits, 0 for none.

    Raises:
      ValueError: a field is out of range, or some do not fit each other.
    """

    family: str
    vocab_size: int
    embed_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    mlp_size: int
    max_context: int
    norm_eps: float = 1e-5
    rope_theta: float = 10000.0
    rope_scaling: RopeScaling = RopeScaling()
    local_rope_theta: float | None = None
    windows: tuple[int, ...] = ()
    tied_head: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    post_norms: bool = False
    activation: str = "silu"
    embed_scale: float = 1.0
    query_scale: float | None = None
    attention_cap: float = 0.0
    final_cap: float = 0.0

    def __post_init__(self) -> None:
        for name, most in _LARGEST.items():
            value = getattr(self, name)
            if not isinstance(value, int) or not 1 <= value <= most:
                raise ValueError(f"config: {name} must be 1 to {most}, got {value!r}")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"config: num_heads must be a multiple of num_kv_heads, got "
                f"{self.num_heads} and {self.num_kv_heads}"
            )
        if self.windows and len(self.windows) != self.num_layers:
            raise ValueError(
                f"config: windows must have one entry a layer ({self.num_layers}), got "
                f"{len(self.windows)}"
            )
        if self.activation not in ("silu", "gelu_tanh"):
            raise ValueError(
                f"config: activation must be silu or gelu_tanh, got {self.activation!r}"
            )
        if self.rope_scaling.kind not in ROPE_KINDS:
            raise ValueError(
                "config: rope_scaling must be of a kind of "
                f"{', '.join(ROPE_KINDS)}, got {self.rope_scaling.kind!r}"
            )

    @property
    def group(self) -> int:
        """Query heads for each kv head."""
        return self.num_heads // self.num_kv_heads

    @property
    def scale(self) -> float:
        """Factor on attention scores."""
        if self.query_scale is not None:
            return self.query_scale
        return float(1.0 / np.sqrt(self.head_size))

    def window(self, layer: int) -> int:
        """Sliding window of a layer, 0 for none."""
        return self.windows[layer] if self.windows else 0
