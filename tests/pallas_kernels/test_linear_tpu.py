"""linear: the TPU kernel, interpreted, against the NumPy reference."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels.linear import arg_specs, tiled, tpu, tuning
from tests.pallas_kernels.weight_cases import check, decoded, stored

BLOCKS = ("q8_0", "q4_0", "q4_1")
SMALL = pytest.mark.parametrize(
    "shape", arg_specs.SMALL.values(), ids=list(arg_specs.SMALL)
)


@functools.partial(jax.jit, static_argnames="tiles")
def run(x, weight, tiles=None):
    return tpu.linear(x, weight, tiles=tiles, interpret=pltpu.InterpretParams())


@SMALL
@pytest.mark.parametrize("kind", BLOCKS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_blocks_equal_the_reference(shape, kind, dtype):
    rows, inputs, outputs = shape
    made = stored(inputs, outputs, kind)
    x = np.random.default_rng(1).standard_normal((rows, inputs))
    x = jnp.asarray(x, dtype)
    weight = tiled.tile(made, kind)
    check(run(x, weight).astype(dtype), x.astype(jnp.float32), decoded(made, kind))


@SMALL
def test_int8_per_output_equals_the_reference(shape):
    rows, inputs, outputs = shape
    random = np.random.default_rng(3)
    weight = tiled.quantise(
        random.standard_normal((inputs, outputs)).astype(np.float32)
    )
    x = random.standard_normal((rows, inputs)).astype(np.float32)
    check(run(jnp.asarray(x), weight), x, tiled.decode(weight))


@pytest.mark.parametrize("kind", ["int8", *BLOCKS])
def test_a_layer_of_stacked_weights_is_found(kind):
    alone = [_weight(kind, seed) for seed in range(3)]
    stack = jax.tree.map(lambda *leaves: jnp.stack(leaves), *alone)
    x = np.random.default_rng(9).standard_normal((5, 192)).astype(np.float32)
    for at, weight in enumerate(alone):
        layer = dataclasses.replace(stack, layer=jnp.int32(at))
        assert layer.shape == weight.shape
        got = run(jnp.asarray(x), layer)
        np.testing.assert_array_equal(got, run(jnp.asarray(x), weight))
        np.testing.assert_array_equal(
            tiled.decode(tiled.of_layer(layer)), tiled.decode(weight)
        )


def _weight(kind, seed):
    if kind == "int8":
        random = np.random.default_rng(seed)
        return tiled.quantise(random.standard_normal((192, 130)).astype(np.float32))
    return tiled.tile(np.roll(stored(192, 130, kind), seed, axis=0), kind)


def test_a_row_does_not_depend_on_the_others_bit_for_bit():
    weight = tiled.tile(stored(512, 128, "q4_1"), "q4_1")
    x = np.random.default_rng(5).standard_normal((16, 512)).astype(np.float32)
    whole = run(jnp.asarray(x), weight)
    for rows in (1, 3, 8):
        np.testing.assert_array_equal(run(jnp.asarray(x[:rows]), weight), whole[:rows])


@pytest.mark.parametrize("spec", arg_specs.MODELS.values(), ids=list(arg_specs.MODELS))
def test_shapes_are_those_of_what_is_made_and_tiles_divide_them(spec):
    weight = tiled.tiled_shapes(spec.inputs, spec.outputs, spec.kind)
    assert weight.shape == (spec.inputs, spec.outputs)
    inputs, outputs = weight.whole.shape
    tiles = tuning.choose(inputs, outputs)
    assert inputs % tiles.inputs == 0
    assert outputs % tiles.outputs == 0
