"""The kernels and their shapes, as cases to compile."""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.linear import arg_specs as linear_specs
from pallas_kernels.linear import tiled
from pallas_kernels.linear import tpu as linear_tpu
from pallas_kernels.tree_attention import arg_specs as attention_specs
from pallas_kernels.tree_attention import part, tree_attention
from pallas_kernels.verify import arg_specs as verify_specs
from specjax.core import noise


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """One program.

    Attributes:
      name: op and shapes.
      function: to be lowered.
      arguments: their shapes, and on several chips how they are split.
      kept: numbers of elements of arrays that nothing may copy or transpose.
      weights: numbers of elements of matrices that nothing may put into memory again.
      split: numbers of elements of weights that no chip may put together.
      mesh: chips that it runs on, None for one of any kind.
      kernel: whether it must hold a Pallas kernel.
      read: most bytes that it may read, by the compiler's count; None for no limit.
      donated: names of arguments that are given away.
    """

    name: str
    function: Callable[..., Any]
    arguments: dict[str, Any]
    kept: frozenset[int] = frozenset()
    weights: frozenset[int] = frozenset()
    split: frozenset[int] = frozenset()
    mesh: jax.sharding.Mesh | None = None
    kernel: bool = True
    read: float | None = None
    donated: tuple[str, ...] = ()


def cases() -> Iterator[Case]:
    """All of them."""
    yield from _attention()
    yield from _linear()
    yield from _draws()


def _attention() -> Iterator[Case]:
    for name, spec in attention_specs.MODELS.items():
        cache = math.prod(spec.arguments()["k_cache"].shape)
        for op in (tree_attention, part):
            yield Case(
                name=f"{op.__name__}: {name}",
                function=functools.partial(op, **spec.options()),
                arguments=spec.arguments(),
                kept=frozenset((cache, cache // spec.layers)),
            )


def _linear() -> Iterator[Case]:
    for name, spec in linear_specs.MODELS.items():
        weight = tiled.tiled_shapes(spec.inputs, spec.outputs, spec.kind)
        x = jax.ShapeDtypeStruct((spec.rows, spec.inputs), jnp.dtype(spec.dtype))
        yield Case(
            name=f"linear: {name}",
            function=linear_tpu.linear,
            arguments={"x": x, "weight": weight},
            kept=frozenset((math.prod(weight.whole.shape),)),
        )


def _draws() -> Iterator[Case]:
    """No kernel: XLA fuses noise and argmax, and reads each logit once."""
    for name, spec in verify_specs.MODELS.items():
        logits = spec.rows * spec.vocab_size * 4
        ids = spec.vocab_size * 4
        yield Case(
            name=f"draw by XLA: {name}",
            function=_draw,
            arguments=spec.arguments(),
            kernel=False,
            read=logits + 3 * ids,
        )


def _draw(logits, temperature, key, position):
    ids = jnp.arange(logits.shape[1], dtype=jnp.int32)
    noisy = logits + temperature[:, None] * noise.gumbel(key, position, ids)
    return jnp.argmax(noisy, axis=1).astype(jnp.int32)
