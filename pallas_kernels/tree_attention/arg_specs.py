"""Shapes of real models and corners that tests, gate and benchmarks share."""

import dataclasses

import jax
import jax.numpy as jnp


@dataclasses.dataclass(frozen=True, kw_only=True)
class ArgSpec:
    """Shapes and static options of one call.

    Attributes:
      rows: B.
      layers: of the stacked cache.
      groups: G, kv heads.
      heads: R, query heads for each.
      nodes: N.
      size: D, head size.
      slots: S.
      dtype: name of what activations and cache hold.
      window: 0 for none.
      cap: soft cap, 0 for none.
    """

    rows: int
    layers: int
    groups: int
    heads: int
    nodes: int
    size: int
    slots: int
    dtype: str = "bfloat16"
    window: int = 0
    cap: float = 0.0

    def arguments(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Shapes of the arrays that ``api.tree_attention`` takes."""
        own = (self.rows, self.groups, self.nodes, self.size)
        cached = (self.rows, self.layers, self.groups, self.slots, self.size)
        floats = {
            "q": (*own[:2], self.heads, *own[2:]),
            "k": own,
            "v": own,
            "k_cache": cached,
            "v_cache": cached,
        }
        made = {
            name: jax.ShapeDtypeStruct(shape, jnp.dtype(self.dtype))
            for name, shape in floats.items()
        }
        shape = (self.rows, self.nodes)
        return made | {
            "length": jax.ShapeDtypeStruct((self.rows,), jnp.int32),
            "depth": jax.ShapeDtypeStruct(shape, jnp.int32),
            "mask": jax.ShapeDtypeStruct((*shape, self.nodes), jnp.bool_),
            "layer": jax.ShapeDtypeStruct((), jnp.int32),
        }

    def options(self) -> dict[str, float | int]:
        """The static ones."""
        return {"scale": self.size**-0.5, "window": self.window, "cap": self.cap}


_SMOLLM2 = ArgSpec(rows=1, layers=30, groups=3, heads=3, nodes=1, size=64, slots=1024)
_LLAMA_8B = ArgSpec(rows=8, layers=32, groups=8, heads=4, nodes=1, size=128, slots=8192)
_GEMMA_27B = ArgSpec(
    rows=4, layers=10, groups=16, heads=2, nodes=16, size=128, slots=4096, window=1024
)


def _with(spec: ArgSpec, **changes) -> ArgSpec:
    return dataclasses.replace(spec, **changes)


# What compilers are asked for.
MODELS = {
    "smollm2-135m plain": _SMOLLM2,
    "smollm2-135m tree of 16": _with(_SMOLLM2, nodes=16),
    "smollm2-135m float32": _with(_SMOLLM2, nodes=16, dtype="float32"),
    "llama-3-8b plain": _LLAMA_8B,
    "llama-3-8b tree of 16": _with(_LLAMA_8B, nodes=16),
    "llama-3-8b tree of 64": _with(_LLAMA_8B, nodes=64),
    "llama-3-8b prompt of 512": _with(_LLAMA_8B, rows=1, nodes=512),
    "llama-3-8b one of four chips": _with(_LLAMA_8B, groups=2, nodes=16),
    "llama-2-70b one of eight chips": _with(
        _LLAMA_8B, layers=80, groups=1, heads=8, nodes=16, slots=4096
    ),
    "gemma-3-27b window": _GEMMA_27B,
    "gemma-2 soft cap": _with(_GEMMA_27B, size=256, groups=8, window=4096, cap=50.0),
    "one head, odd slots": ArgSpec(
        rows=3, layers=1, groups=1, heads=1, nodes=5, size=64, slots=40
    ),
}

# What tests run, of sizes that are primes where they can be.
SMALL = {
    "one head": ArgSpec(
        rows=2, layers=1, groups=1, heads=1, nodes=5, size=7, slots=11, dtype="float32"
    ),
    "many heads": ArgSpec(
        rows=3, layers=2, groups=2, heads=5, nodes=3, size=8, slots=37, dtype="float32"
    ),
    "blocks": ArgSpec(
        rows=3,
        layers=1,
        groups=3,
        heads=2,
        nodes=1,
        size=5,
        slots=1536,
        dtype="float32",
    ),
    "words": ArgSpec(
        rows=1, layers=1, groups=2, heads=2, nodes=67, size=5, slots=64, dtype="float32"
    ),
    "bfloat16": ArgSpec(
        rows=2, layers=2, groups=2, heads=3, nodes=7, size=16, slots=53
    ),
}
