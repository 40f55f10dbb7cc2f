"""Shapes of real models and corners that tests, gate and benchmarks share."""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class ArgSpec:
    """One product of n rows with a matrix of K inputs and M outputs.

    Attributes:
      rows: n.
      inputs: K.
      outputs: M.
      kind: how the weights are stored.
      dtype: of x and of the result.
    """

    rows: int
    inputs: int
    outputs: int
    kind: str
    dtype: str = "bfloat16"


KINDS = ("int8", "q8_0", "q4_0", "q4_1")
_MATRICES = {  # inputs, outputs
    "smollm2-135m qkv": (576, 960),
    "smollm2-135m down": (1536, 576),
    "llama-3-8b gate and up": (4096, 28672),
    "llama-3-8b down": (14336, 4096),
    "llama-3-8b head": (4096, 128256),
}

# What compilers are asked for.
MODELS = {
    f"{name}, {kind}": ArgSpec(rows=16, inputs=inputs, outputs=outputs, kind=kind)
    for name, (inputs, outputs) in _MATRICES.items()
    for kind in KINDS
} | {
    "smollm2-135m qkv, 1 row in float32": ArgSpec(
        rows=1, inputs=576, outputs=960, kind="q4_1", dtype="float32"
    ),
    "llama-3-8b down, 64 rows": ArgSpec(
        rows=64, inputs=14336, outputs=4096, kind="q8_0"
    ),
}

# What tests run: one tile, several, and none that divides.
SMALL = {
    "one tile": (3, 64, 7),
    "several tiles": (17, 1536, 640),
    "odd outputs": (1, 192, 130),
}
