"""The op by Pallas, on TPU: weights stay whole numbers until they are in VMEM."""

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels.linear import tiled, tuning

_ROWS = 16  # of x, padded to: what a tile of bfloat16 holds
_MOST_ROWS = 256  # of x, that fit VMEM beside the weights


def serves(rows: int, weight: tiled.Tiled) -> bool:
    """Whether so many rows fit VMEM, and the kernel can cut the weights.

    For more rows XLA decodes the weights once; int8 may have odd numbers of inputs.
    """
    return rows <= _MOST_ROWS and weight.whole.shape[-2] % tiled.BLOCK == 0


def linear(
    x: jax.Array,
    weight: tiled.Tiled,
    *,
    tiles: tuning.Tiles | None = None,
    interpret=False,
) -> jax.Array:
    """y = x W.

    A row's sums do not depend on how many rows there are: each is a row of the matrix
    unit, and inputs are cut alike.

    Args:
      x: f[n, K], bfloat16 or float32; weights are rounded to its dtype.
      weight: of K inputs and M outputs.
      tiles: how to cut the work, chosen for the shape if None.
      interpret: True or ``pltpu.InterpretParams`` runs the kernel on CPU.

    Returns:
      f32[n, M].
    """
    count = x.shape[0]
    layer = weight.layer
    if layer is None:
        weight, layer = jax.tree.map(lambda array: array[None], weight), 0
    layers, parts, blocks, _ = weight.scale.shape
    inputs, outputs = weight.whole.shape[1:]
    if tiles is None:
        tiles = tuning.choose(inputs, outputs)
    x = jnp.pad(x, ((0, -count % _ROWS), (0, 0)))
    rows = x.shape[0]
    x = x.reshape(rows, parts, inputs).swapaxes(0, 1)  # f[P, n, K / P]

    scaled = blocks if blocks == 1 else tiles.inputs // tiled.BLOCK
    scales = pl.BlockSpec(
        (None, parts, scaled, tiles.outputs),
        lambda out, step, at: (at[0], 0, 0 if blocks == 1 else step, out),
    )
    whole = weight.whole
    if not interpret:  # XLA may want to move small weights to VMEM before
        whole = pltpu.with_memory_space_constraint(whole, pltpu.HBM)
    numbers = [weight.scale] if weight.least is None else [weight.scale, weight.least]
    made = pl.pallas_call(
        functools.partial(_kernel, kind=weight.kind),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(pl.cdiv(outputs, tiles.outputs), inputs // tiles.inputs),
            in_specs=[
                pl.BlockSpec(
                    (parts, rows, tiles.inputs), lambda _, step, at: (0, 0, step)
                ),
                pl.BlockSpec(
                    (None, tiles.inputs, tiles.outputs),
                    lambda out, step, at: (at[0], step, out),
                ),
                *[scales] * len(numbers),
            ],
            out_specs=pl.BlockSpec((rows, tiles.outputs), lambda out, *_: (0, out)),
            scratch_shapes=[pltpu.VMEM((rows, tiles.outputs), jnp.float32)],
        ),
        out_shape=jax.ShapeDtypeStruct((rows, outputs), jnp.float32),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary")
        ),
        cost_estimate=pl.CostEstimate(
            flops=2 * rows * parts * inputs * outputs,
            bytes_accessed=sum(
                a.size // layers * a.dtype.itemsize for a in (whole, *numbers)
            ),
            transcendentals=0,
        ),
        interpret=interpret,
        name=f"linear_{weight.kind}",
    )(jnp.asarray(layer, jnp.int32)[None], x, whole, *numbers)
    return made[:count, : weight.outputs]


def _kernel(_, x, whole, scale, *refs, kind):
    """Adds a tile of inputs to a tile of outputs.

    Args:
      _: i32[1], which layer, in SMEM.
      x: f[P, n, inputs].
      whole: [inputs, outputs], whole numbers.
      scale: f32[P, blocks, outputs].
      refs: least as ``scale`` if there is one, out f32[n, outputs], sums as ``out``.
    """
    *least, out, sums = refs

    @pl.when(pl.program_id(1) == 0)
    def _start():
        sums[...] = jnp.zeros_like(sums)

    exact = x.dtype == jnp.float32
    for index, part in enumerate(tiled.parts(whole[...], kind)):
        if kind == "int8":  # scaled at the end
            weights = part.astype(jnp.float32)
        else:
            lowest = least[0][index] if least else None
            weights = tiled.scaled(part, scale[index], lowest, kind)
        sums[...] += jax.lax.dot(
            x[index],
            weights.astype(x.dtype),
            precision=jax.lax.Precision.HIGHEST if exact else None,
            preferred_element_type=jnp.float32,
        )

    @pl.when(pl.program_id(1) == pl.num_programs(1) - 1)
    def _write():
        made = sums[...]
        out[...] = made * scale[0] if kind == "int8" else made
