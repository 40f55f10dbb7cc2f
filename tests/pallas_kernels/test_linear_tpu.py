"""linear: the TPU kernel, interpreted, against the NumPy reference."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels.linear import arg_specs, reference, tpu, tuning

BLOCKS = ("q8_0", "q4_0", "q4_1")
SMALL = pytest.mark.parametrize(
    "shape", arg_specs.SMALL.values(), ids=list(arg_specs.SMALL)
)


def stored(inputs, outputs, kind, seed=0):
    """Random blocks with finite scales."""
    random = np.random.default_rng(seed)
    size, count = {"q8_0": (34, 1), "q4_0": (18, 1), "q4_1": (20, 2)}[kind]
    blocks = random.integers(0, 256, (outputs, inputs // 32, size), np.uint8)
    scales = random.standard_normal((outputs, inputs // 32, count)).astype(np.float16)
    blocks[..., : 2 * count] = scales.view(np.uint8)
    return blocks.reshape(outputs, -1)


@functools.partial(jax.jit, static_argnames="tiles")
def run(x, weight, tiles=None):
    return tpu.linear(x, weight, tiles=tiles, interpret=pltpu.InterpretParams())


def check(got, x, weights):
    """Within what so many products are rounded by, in the dtype of x."""
    x, weights = np.asarray(x, np.float64), np.asarray(weights, np.float64)
    unit = float(jnp.finfo(got.dtype).eps)
    bound = 4 * unit * np.sqrt((x**2) @ (weights**2)) + 1e-6
    error = np.abs(np.asarray(got, np.float64) - x @ weights)
    assert (error <= bound * np.log2(x.shape[1])).all(), (error / bound).max()


@SMALL
@pytest.mark.parametrize("kind", BLOCKS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_blocks_equal_the_reference(shape, kind, dtype):
    rows, inputs, outputs = shape
    made = stored(inputs, outputs, kind)
    x = np.random.default_rng(1).standard_normal((rows, inputs))
    x = jnp.asarray(x, dtype)
    weights = np.stack([reference.decode_row(row, kind) for row in made]).T
    check(run(x, tpu.tile(made, kind)), x.astype(jnp.float32), weights)


@pytest.mark.parametrize("kind", BLOCKS)
def test_tiles_hold_the_very_values_of_the_file(kind):
    made = stored(128, 5, kind, seed=2)
    weights = np.stack([reference.decode_row(row, kind) for row in made]).T
    decoded = tpu.decode(tpu.tile(made, kind))
    np.testing.assert_allclose(decoded, weights, rtol=1e-6, atol=1e-6)


@SMALL
def test_int8_per_output_equals_the_reference(shape):
    rows, inputs, outputs = shape
    random = np.random.default_rng(3)
    weight = tpu.quantise(random.standard_normal((inputs, outputs)).astype(np.float32))
    x = random.standard_normal((rows, inputs)).astype(np.float32)
    check(run(jnp.asarray(x), weight), x, tpu.decode(weight))


def test_int8_is_off_by_half_a_step_at_most():
    weights = np.random.default_rng(4).standard_normal((96, 6)).astype(np.float32)
    weights[:, 2] = 0.0
    error = np.abs(np.asarray(tpu.decode(tpu.quantise(weights))) - weights)
    assert (error <= np.abs(weights).max(axis=0) / 127 * 0.501).all()


def test_a_row_does_not_depend_on_the_others_bit_for_bit():
    weight = tpu.tile(stored(512, 128, "q4_1"), "q4_1")
    x = np.random.default_rng(5).standard_normal((16, 512)).astype(np.float32)
    whole = run(jnp.asarray(x), weight)
    for rows in (1, 3, 8):
        np.testing.assert_array_equal(run(jnp.asarray(x[:rows]), weight), whole[:rows])


def test_inputs_that_four_bits_cannot_split_are_refused():
    with pytest.raises(ValueError, match="q4_0 needs inputs in 64s, got 96"):
        tpu.tile(stored(96, 4, "q4_0"), "q4_0")


@pytest.mark.parametrize("spec", arg_specs.MODELS.values(), ids=list(arg_specs.MODELS))
def test_shapes_are_those_of_what_is_made_and_tiles_divide_them(spec):
    weight = tpu.shapes(spec.inputs, spec.outputs, spec.kind)
    assert weight.shape == (spec.inputs, spec.outputs)
    inputs, outputs = weight.whole.shape
    tiles = tuning.choose(inputs, outputs)
    assert inputs % tiles.inputs == 0
    assert outputs % tiles.outputs == 0
