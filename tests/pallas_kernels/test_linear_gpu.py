"""linear: the GPU kernel against the NumPy reference, interpreted or compiled."""

import functools

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

from pallas_kernels.linear import arg_specs, gpu, linear, tiled, tuning_gpu
from tests.pallas_kernels import gpu_cases
from tests.pallas_kernels.weight_cases import check, decoded, stored

SMALL = pytest.mark.parametrize(
    "shape", arg_specs.SMALL.values(), ids=list(arg_specs.SMALL)
)


@functools.partial(jax.jit, static_argnames=("interpret", "tiles"))
def run(x, weight, interpret, tiles=None):
    return gpu.linear(x, weight, tiles=tiles, interpret=interpret)


@gpu_cases.HOW
@SMALL
@pytest.mark.parametrize("kind", tiled.KINDS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_blocks_equal_the_reference(shape, kind, dtype, interpret):
    rows, inputs, outputs = shape
    made = stored(inputs, outputs, kind)
    x = jnp.asarray(np.random.default_rng(1).standard_normal((rows, inputs)), dtype)
    got = run(x, tiled.tile(made, kind), interpret)
    assert got.dtype == jnp.float32
    check(got.astype(dtype), x.astype(jnp.float32), decoded(made, kind))


@gpu_cases.HOW
@pytest.mark.parametrize("shape", [*arg_specs.SMALL.values(), (2, 77, 5)])
def test_int8_per_output_equals_the_reference(shape, interpret):
    rows, inputs, outputs = shape
    random = np.random.default_rng(3)
    weight = tiled.quantise(random.standard_normal((inputs, outputs), np.float32))
    x = random.standard_normal((rows, inputs), np.float32)
    check(run(jnp.asarray(x), weight, interpret), x, tiled.decode(weight))


@gpu_cases.HOW
@hypothesis.settings(max_examples=6)
@hypothesis.given(seed=st.integers(0, 2**16), rows=st.sampled_from([1, 16, 64]))
@pytest.mark.parametrize("kind", tiled.KINDS)
def test_any_values_and_numbers_of_rows(kind, interpret, seed, rows):
    made = stored(256, 40, kind, seed)
    x = np.random.default_rng(seed).standard_normal((rows, 256)).astype(np.float32)
    got = run(jnp.asarray(x), tiled.tile(made, kind), interpret)
    check(got, x, decoded(made, kind))


@gpu_cases.HOW
@pytest.mark.parametrize("shares", [1, 2, 5])  # 12 blocks a part: the last has fewer
def test_shares_of_the_inputs_add_up(shares, interpret):
    made = stored(768, 130, "q4_1")
    x = np.random.default_rng(7).standard_normal((5, 768)).astype(np.float32)
    tiles = tuning_gpu.Tiles(outputs=64, shares=shares)
    got = run(jnp.asarray(x), tiled.tile(made, "q4_1"), interpret, tiles)
    check(got, x, decoded(made, "q4_1"))


@gpu_cases.NO_WARNING
@pytest.mark.parametrize("name", arg_specs.MODELS)
def test_models_are_lowered_for_a_gpu(name):
    spec = arg_specs.MODELS[name]
    weight = tiled.tiled_shapes(spec.inputs, spec.outputs, spec.kind)
    x = jax.ShapeDtypeStruct((spec.rows, spec.inputs), jnp.dtype(spec.dtype))
    function = functools.partial(linear, backend="gpu")
    assert gpu_cases.kernels(function, x=x, weight=weight) == 1
    assert gpu_cases.kernels(linear, x=x, weight=weight) == 0  # only where asked for


def test_more_rows_than_fit_are_refused():
    weight = tiled.tiled_shapes(64, 128, "int8")
    x = jax.ShapeDtypeStruct((65, 64), jnp.dtype("bfloat16"))
    with pytest.raises(ValueError, match=r"must be one of xla .* got 'gpu'"):
        gpu_cases.kernels(functools.partial(linear, backend="gpu"), x=x, weight=weight)


@pytest.mark.parametrize("spec", arg_specs.MODELS.values(), ids=list(arg_specs.MODELS))
def test_tiles_of_models_divide_them_and_leave_work_for_each(spec):
    inputs, outputs = tiled.tiled_shapes(
        spec.inputs, spec.outputs, spec.kind
    ).whole.shape
    tiles = tuning_gpu.choose(inputs, outputs)
    assert outputs % tiles.outputs == 0
    assert inputs >= 8 * tiled.BLOCK * tiles.shares


def test_tiles_that_triton_cannot_have_are_refused():
    with pytest.raises(ValueError, match="a power of two and shares 1 or more"):
        tuning_gpu.Tiles(outputs=96, shares=1)
