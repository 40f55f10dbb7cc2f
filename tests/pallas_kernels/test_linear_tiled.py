"""linear: weights as accelerators read them, and how the public function takes them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import linear as linear_lib
from pallas_kernels.linear import api, tiled
from tests.pallas_kernels.weight_cases import check, decoded, stored

BLOCKS = tiled.KINDS


@pytest.mark.parametrize("kind", BLOCKS)
def test_tiles_hold_the_very_values_of_the_file(kind):
    made = stored(128, 5, kind, seed=2)
    values = tiled.decode(tiled.tile(made, kind))
    np.testing.assert_allclose(values, decoded(made, kind), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("kind", "inputs", "wanted"),
    [
        ("q8_0", 96, True),
        ("q4_1", 96, False),
        ("q4_1", 128, True),
        ("q6_k", 256, False),
        ("f32", 64, False),
    ],
)
def test_what_can_be_tiled_is_known_before(kind, inputs, wanted):
    assert linear_lib.tileable(inputs, kind) == wanted
    form = linear_lib.FORMATS[kind]
    rows = np.zeros((4, inputs // form.weights * form.size), form.dtype)
    if wanted:
        assert linear_lib.tile(rows, kind).shape == (inputs, 4)
    else:
        with pytest.raises(
            ValueError, match=r"kind must be one of|needs inputs in 64s"
        ):
            linear_lib.tile(rows, kind)


@pytest.mark.parametrize("kind", BLOCKS)
def test_shapes_of_blocks_are_told_before(kind):
    made = linear_lib.tile(stored(128, 5, kind), kind)
    assert jax.eval_shape(lambda: made) == linear_lib.tiled_shapes(128, 5, kind)
    assert made.whole.shape[1] == 128


@pytest.mark.parametrize(("padded", "width"), [(True, 128), (False, 5)])
def test_shapes_of_int8_are_told_before(padded, width):
    made = linear_lib.quantise(np.ones((128, 5)), padded=padded)
    told = linear_lib.tiled_shapes(128, 5, "int8", padded=padded)
    assert jax.eval_shape(lambda: made) == told
    assert made.whole.shape == (128, width)


def test_int8_is_off_by_half_a_step_at_most():
    weights = np.random.default_rng(4).standard_normal((96, 6)).astype(np.float32)
    weights[:, 2] = 0.0
    error = np.abs(np.asarray(tiled.decode(linear_lib.quantise(weights))) - weights)
    assert (error <= np.abs(weights).max(axis=0) / 127 * 0.501).all()


def test_inputs_that_four_bits_cannot_split_are_refused():
    with pytest.raises(ValueError, match="q4_0 needs inputs in 64s, got 96"):
        tiled.tile(stored(96, 4, "q4_0"), "q4_0")


@pytest.mark.parametrize("kind", [*BLOCKS, "int8"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_without_an_accelerator_xla_multiplies_them(kind, dtype):
    random = np.random.default_rng(5)
    if kind == "int8":
        weight = linear_lib.quantise(random.standard_normal((192, 7), np.float32))
        weights = tiled.decode(weight)
    else:
        made = stored(192, 7, kind)
        weight, weights = tiled.tile(made, kind), decoded(made, kind)
    x = jnp.asarray(random.standard_normal((2, 3, 192)), dtype)
    got = jax.jit(linear_lib.linear)(x, weight)
    assert got.shape == (2, 3, 7)
    assert got.dtype == x.dtype
    wide = linear_lib.linear(x, weight, dtype=jnp.float32)
    np.testing.assert_array_equal(wide.astype(dtype), got)
    flat = x.reshape(6, 192).astype(jnp.float32)
    check(got.reshape(6, 7), flat, weights)


@pytest.mark.parametrize("kind", [*BLOCKS, "int8"])
def test_rows_are_taken_as_they_decode(kind):
    if kind == "int8":
        random = np.random.default_rng(6)
        weight = linear_lib.quantise(random.standard_normal((64, 9), np.float32))
    else:
        weight = tiled.tile(stored(64, 9, kind), kind)
    index = jnp.asarray([[3, 0], [8, 3]], jnp.int32)
    got = linear_lib.take_rows(weight, index)
    np.testing.assert_array_equal(got, tiled.decode(weight).T[index])


@pytest.mark.parametrize(
    ("platform", "rows", "served"),
    [
        ("cpu", 4, "xla"),
        ("tpu", 256, "tpu, xla"),
        ("tpu", 257, "xla"),
        ("gpu", 64, "xla, gpu"),
        ("gpu", 65, "xla"),
    ],
)
def test_a_backend_that_is_not_there_is_refused(platform, rows, served, monkeypatch):
    monkeypatch.setattr(api.backends, "platform", lambda: platform)
    weight = tiled.tile(stored(64, 8, "q8_0"), "q8_0")
    x = jnp.ones((rows, 64), jnp.float32)
    with pytest.raises(ValueError, match=f"must be one of {served} for .* 'native'"):
        linear_lib.linear(x, weight, backend="native")


def test_inputs_that_the_tpu_kernel_can_not_cut_are_left_to_xla(monkeypatch):
    monkeypatch.setattr(api.backends, "platform", lambda: "tpu")
    weight = linear_lib.quantise(np.random.default_rng(7).standard_normal((100, 8)))
    x = jnp.ones((3, 100), jnp.float32)
    check(linear_lib.linear(x, weight), x, tiled.decode(weight))
    with pytest.raises(ValueError, match="must be one of xla for"):
        linear_lib.linear(x, weight, backend="tpu")


@pytest.mark.parametrize(("platform", "asked"), [("tpu", None), ("gpu", "gpu")])
def test_a_program_for_an_accelerator_takes_the_kernel(platform, asked, monkeypatch):
    monkeypatch.setattr(api.backends, "platform", lambda: platform)
    weight = tiled.tile(stored(64, 8, "q4_1"), "q4_1")
    x = jnp.ones((3, 64), jnp.float32)

    def made(backend):  # a function of its own: traces are kept by function
        program = jax.make_jaxpr(lambda *a: linear_lib.linear(*a, backend=backend))
        return str(program(x, weight))

    assert "pallas_call" in made(asked)
    assert "pallas_call" not in made("xla")
    assert ("pallas_call" in made(None)) == (platform == "tpu")


def test_an_array_is_for_xla_alone():
    x, weight = jnp.ones((2, 3), jnp.float32), jnp.ones((3, 4), jnp.float32)
    assert linear_lib.linear(x, weight, backend="xla").shape == (2, 4)
    with pytest.raises(ValueError, match="must be one of xla for"):
        linear_lib.linear(x, weight, backend="tpu")
