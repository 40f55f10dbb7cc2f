"""The GPU kernels and their shapes, beside what XLA makes of the same."""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.linear import arg_specs as linear_specs
from pallas_kernels.linear import linear, tiled
from pallas_kernels.tree_attention import arg_specs as attention_specs
from pallas_kernels.tree_attention import tree_attention

_LAYERS = 8  # of a cache, so that it fits a small GPU
_WEIGHTS = 1 << 28  # bytes of different weights in a program, to outgrow caches
_COPIES = 32  # of them at most


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """One op with the shapes of a model, called several times in one program.

    Attributes:
      name: op and shapes.
      calls: in one program, each on other weights or another layer of the cache.
      read: bytes that a call cannot do without.
      program: (backend, **arguments) to the results of all calls.
      arguments: their shapes.
      length: where the arguments have lengths, what they all are.
    """

    name: str
    calls: int
    read: int
    program: Callable[..., list[jax.Array]]
    arguments: dict[str, Any]
    length: int | None = None

    def values(self) -> dict[str, Any]:
        """Arguments in these shapes: random numbers, all lengths the same."""
        leaves, kinds = jax.tree.flatten(self.arguments)
        keys = jax.random.split(jax.random.key(0), len(leaves))
        made = [_random(*pair) for pair in zip(keys, leaves, strict=True)]
        values = jax.tree.unflatten(kinds, made)
        if self.length is None:
            return values
        rows, nodes = values["depth"].shape
        chain = jnp.arange(nodes, dtype=jnp.int32)
        return values | {
            "length": jnp.full((rows,), self.length, jnp.int32),
            "depth": jnp.broadcast_to(chain, (rows, nodes)),
            "mask": jnp.broadcast_to(jnp.tri(nodes, dtype=bool), (rows, nodes, nodes)),
        }


def cases() -> Iterator[Case]:
    """All of them."""
    for name, spec in attention_specs.MODELS.items():
        for share, said in ((1, "full"), (4, "a quarter full")):
            yield _attention(f"{name}, {said}", spec, spec.slots // share)
    for name, spec in linear_specs.MODELS.items():
        yield _linear(name, spec)


def _attention(name: str, spec: attention_specs.ArgSpec, length: int) -> Case:
    calls = min(spec.layers, _LAYERS)
    spec = dataclasses.replace(spec, layers=calls)
    arguments = spec.arguments()
    del arguments["layer"]
    seen = min(length, spec.window) if spec.window else length
    numbers = 2 * spec.rows * spec.groups * seen * spec.size
    return Case(
        name=f"tree_attention: {name}",
        calls=calls,
        read=numbers * jnp.dtype(spec.dtype).itemsize,
        program=functools.partial(_layers, calls=calls, options=spec.options()),
        arguments=arguments,
        length=length,
    )


def _layers(backend, *, calls, options, **arrays):
    return [
        tree_attention(**arrays, **options, layer=jnp.int32(at), backend=backend)
        for at in range(calls)
    ]


def _linear(name: str, spec: linear_specs.ArgSpec) -> Case:
    weight = tiled.tiled_shapes(spec.inputs, spec.outputs, spec.kind)
    read = sum(
        math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(weight)
    )
    calls = max(1, min(_COPIES, _WEIGHTS // read))
    x = jax.ShapeDtypeStruct((spec.rows, spec.inputs), jnp.dtype(spec.dtype))
    return Case(
        name=f"linear: {name}",
        calls=calls,
        read=read,
        program=_products,
        arguments={"x": x, "weights": [weight] * calls},
    )


def _products(backend, *, x, weights):
    return [linear(x, weight, backend=backend) for weight in weights]


def _random(key, leaf):
    if jnp.issubdtype(leaf.dtype, jnp.floating):
        return jax.random.normal(key, leaf.shape, leaf.dtype)
    if leaf.dtype == bool:
        return jnp.ones(leaf.shape, bool)
    if leaf.dtype == jnp.int32:
        return jnp.zeros(leaf.shape, jnp.int32)
    return jax.random.bits(key, leaf.shape, jnp.uint8).astype(leaf.dtype)
