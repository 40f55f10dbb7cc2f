"""The op by native code, on CPU: see cpu.cc."""

import jax
import jax.numpy as jnp

from pallas_kernels.linear import formats
from pallas_kernels.native import build


def available() -> bool:
    """Whether the native code is there; the first call compiles it."""
    names = [f"linear_{kind}" for kind in formats.FORMATS]
    if lanes() > 1:
        names += [f"linear_{kind}_x{lanes()}" for kind in formats.INTERLEAVED]
    return build.load("linear", names)


def lanes() -> int:
    """How many outputs' blocks this machine likes to have beside each other."""
    library = build.library("linear")
    return library.linear_lanes() if library else 1


def serves(weight: formats.Packed) -> bool:
    """Whether native code multiplies these weights as they lie.

    Weights that were packed on another machine may be interleaved in a way that this
    one has no instructions for.
    """
    return available() and weight.lanes in (1, lanes())


def linear(x: jax.Array, weight: formats.Packed) -> jax.Array:
    """Sums f32[N, M] of ``api.linear``; x is f32[N, K]."""
    name = f"linear_{weight.kind}"
    if weight.lanes > 1:
        name += f"_x{weight.lanes}"
    result = jax.ShapeDtypeStruct((x.shape[0], weight.shape[1]), jnp.float32)
    call = jax.ffi.ffi_call(name, result, vmap_method="sequential")
    return call(x, weight.rows)
