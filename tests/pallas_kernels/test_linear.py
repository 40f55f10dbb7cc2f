"""linear: native code and jnp against the NumPy reference, and GGUF's own decoder."""

import functools

import gguf
import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

from pallas_kernels import linear as linear_lib
from pallas_kernels.linear import cpu, formats, reference, xla

QUANTISED = ("q8_0", "q4_0", "q4_1")
KINDS = tuple(linear_lib.FORMATS)
# inputs, outputs: whole tiles, parts of one, less than a vector, more than a task
SHAPES = {"tiles": (64, 24), "odd": (96, 13), "narrow": (32, 1), "wide": (160, 611)}
NATIVE = pytest.param("native", marks=pytest.mark.native)


def packed(kind, inputs, outputs, seed=0):
    """Random weights in a format, as the packed leaf."""
    weights = np.random.default_rng(seed).standard_normal((outputs, inputs))
    weights = weights.astype(np.float32)
    if kind in QUANTISED:
        rows = gguf.quants.quantize(weights, gguf.GGMLQuantizationType[kind.upper()])
    else:
        rows = weights.astype(linear_lib.FORMATS[kind].dtype)
    return linear_lib.Packed(jnp.asarray(rows), kind)


def interleaved(weight, lanes=16):
    return formats.interleave(np.asarray(weight.rows), weight.kind, lanes)


@pytest.fixture(scope="module")
def matrix_unit():
    """Tests of weights that this machine has no instructions for are left out."""
    if not cpu.available() or cpu.lanes() == 1:
        pytest.skip("no matrix unit here")


def rows_of(count, inputs, seed=1):
    random = np.random.default_rng(seed)
    return jnp.asarray(random.standard_normal((count, inputs)), jnp.float32)


@functools.cache
def form(backend):
    return jax.jit({"native": cpu.linear, "xla": xla.linear}[backend])


def tolerance(x, weight):
    """Of a sum of K products in float32, each as large as they get."""
    largest = np.abs(np.asarray(linear_lib.decode(weight))).max() * np.abs(x).max()
    return 2.0**-23 * np.sqrt(x.shape[1]) * 4 * largest


@pytest.mark.parametrize("backend", ["xla", NATIVE])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_equals_the_reference(shape, kind, backend):
    weight, x = packed(kind, *shape), rows_of(5, shape[0])
    got = form(backend)(x, weight)
    wanted = reference.linear(np.asarray(x), np.asarray(weight.rows), kind)
    np.testing.assert_allclose(got, wanted, rtol=0, atol=tolerance(x, weight))


@pytest.mark.parametrize("kind", QUANTISED)
def test_decodes_as_gguf_does(kind):
    weight = packed(kind, 96, 7)
    wanted = gguf.quants.dequantize(
        np.asarray(weight.rows), gguf.GGMLQuantizationType[kind.upper()]
    )
    np.testing.assert_array_equal(linear_lib.decode(weight), wanted)


def test_a_block_by_hand():
    """Scale 0.5, least value -1; byte 0x3A gives weight 0 from A, weight 16 from 3."""
    head = np.array([0.5, -1.0], np.float16).tobytes()
    block = np.frombuffer(head + bytes([0x3A] + [0] * 15), np.uint8)
    weight = linear_lib.Packed(jnp.asarray(block[None]), "q4_1")
    got = np.asarray(linear_lib.decode(weight))[0]
    assert got[0] == 0.5 * 10 - 1
    assert got[16] == 0.5 * 3 - 1
    assert set(got[1:16]) == set(got[17:]) == {-1.0}


@pytest.mark.native
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 7, 16, 33])
def test_a_row_is_the_same_among_any_number_of_rows(count, kind):
    weight, x = packed(kind, 96, 45), rows_of(33, 96)
    alone = np.concatenate([form("native")(x[i : i + 1], weight) for i in range(33)])
    np.testing.assert_array_equal(form("native")(x[:count], weight), alone[:count])


@pytest.mark.native
@hypothesis.settings(max_examples=20)
@hypothesis.given(seed=st.integers(0, 2**16), scale=st.sampled_from([1e-4, 1.0, 1e4]))
@pytest.mark.parametrize("kind", QUANTISED)
def test_any_values(kind, seed, scale):
    weight = packed(kind, 64, 24, seed)
    x = rows_of(3, 64, seed + 1) * scale
    wanted = reference.linear(np.asarray(x), np.asarray(weight.rows), kind)
    got = form("native")(x, weight)
    np.testing.assert_allclose(got, wanted, rtol=0, atol=tolerance(x, weight))


@pytest.mark.native
def test_calls_from_several_threads_do_not_mix():
    """A second caller at the same time does its work alone."""
    from concurrent import futures

    weight, x = packed("q4_1", 160, 611), rows_of(64, 160)
    call = jax.jit(cpu.linear)
    wanted = np.asarray(call(x, weight))
    with futures.ThreadPoolExecutor(4) as pool:
        many = list(pool.map(lambda _: np.asarray(call(x, weight)), range(40)))
    for got in many:
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.usefixtures("matrix_unit")
@pytest.mark.parametrize("kind", QUANTISED)
@pytest.mark.parametrize("count", [1, 2, 3, 5, 6, 10, 11, 16, 17, 40])
@pytest.mark.parametrize("shape", [(64, 16), (352, 48), (32, 1024)], ids=str)
def test_the_matrix_unit_equals_the_reference(shape, count, kind):
    """Numbers of rows on both sides of every change of instructions or tiles."""
    weight, x = packed(kind, *shape), rows_of(count, shape[0])
    got = form("native")(x, interleaved(weight))
    wanted = reference.linear(np.asarray(x), np.asarray(weight.rows), kind)
    np.testing.assert_allclose(got, wanted, rtol=0, atol=tolerance(x, weight))


@pytest.mark.usefixtures("matrix_unit")
@pytest.mark.parametrize("kind", QUANTISED)
def test_the_matrix_unit_gives_a_row_the_same_bits_among_others(kind):
    weight, x = interleaved(packed(kind, 352, 48)), rows_of(40, 352)
    alone = np.concatenate([form("native")(x[i : i + 1], weight) for i in range(40)])
    for count in (2, 3, 5, 6, 10, 11, 16, 17, 40):
        np.testing.assert_array_equal(form("native")(x[:count], weight), alone[:count])


@pytest.mark.usefixtures("matrix_unit")
@hypothesis.settings(max_examples=20)
@hypothesis.given(
    seed=st.integers(0, 2**16),
    scale=st.sampled_from([1e-20, 1e-4, 1.0, 1e15]),
    count=st.integers(1, 20),
)
@pytest.mark.parametrize("kind", QUANTISED)
def test_the_matrix_unit_takes_any_values(kind, seed, scale, count):
    """Great and small ones in one block, zeros and blocks of them."""
    weight = packed(kind, 96, 16, seed)
    random = np.random.default_rng(seed)
    x = np.array(rows_of(count, 96, seed + 1)) * scale
    x *= 10.0 ** random.integers(-6, 3, x.shape)
    x[random.random(x.shape) < 0.3] = 0
    x[:, 32:64] *= random.random() < 0.5
    x = x.astype(np.float32)
    wanted = reference.linear(x, np.asarray(weight.rows), kind)
    got = form("native")(x, interleaved(weight))
    np.testing.assert_allclose(got, wanted, rtol=0, atol=tolerance(x, weight))


@pytest.mark.usefixtures("matrix_unit")
@pytest.mark.parametrize("count", [1, 2, 5, 17])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_the_matrix_unit_hides_no_number_that_is_not_finite(bad, count):
    weight, x = interleaved(packed("q4_1", 64, 16)), np.array(rows_of(count, 64))
    x[count // 2, 40] = bad
    got = np.isfinite(form("native")(jnp.asarray(x), weight)).all(axis=1)
    np.testing.assert_array_equal(got, np.arange(count) != count // 2)


@pytest.mark.parametrize("kind", QUANTISED)
@pytest.mark.parametrize("lanes", [2, 16])
def test_interleaved_weights_are_the_same_weights(kind, lanes):
    weight = packed(kind, 96, 32)
    other = interleaved(weight, lanes)
    assert (other.lanes, other.shape) == (lanes, weight.shape)
    assert other.rows.nbytes == weight.rows.nbytes
    np.testing.assert_array_equal(linear_lib.decode(other), linear_lib.decode(weight))
    index = jnp.asarray([[31, 0, 17], [5, 5, 16]], jnp.int32)
    np.testing.assert_array_equal(
        linear_lib.take_rows(other, index), linear_lib.take_rows(weight, index)
    )
    x = rows_of(3, 96)
    np.testing.assert_array_equal(form("xla")(x, other), form("xla")(x, weight))


def test_an_interleaved_block_by_hand():
    """Two outputs, a block each: scales, least values, then words in turn."""
    block = np.arange(20, dtype=np.uint8)
    rows = np.stack([block, block + 100])
    got = formats.interleave(rows, "q4_1", 2)
    halves = [0, 1, 100, 101, 2, 3, 102, 103]
    words = [w + o + i for w in (4, 8, 12, 16) for o in (0, 100) for i in range(4)]
    assert got.rows.reshape(-1).tolist() == halves + words


@pytest.mark.parametrize(("kind", "outputs"), [("f32", 16), ("q8_0", 24)])
def test_what_does_not_fit_lanes_stays_as_it_is(kind, outputs):
    rows = np.asarray(packed(kind, 32, outputs).rows)
    kept = formats.interleave(rows, kind, 16)
    assert kept.lanes == 1
    np.testing.assert_array_equal(kept.rows, rows)


def test_leading_axes_and_plain_arrays():
    weight = packed("f32", 32, 12)
    x = rows_of(6, 32).reshape(2, 3, 32)
    array = weight.rows.T.reshape(32, 3, 4)
    assert linear_lib.linear(x, weight).shape == (2, 3, 12)
    np.testing.assert_allclose(
        linear_lib.linear(x, weight), linear_lib.linear(x, array), atol=1e-5
    )


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_taken_as_they_decode(kind):
    weight = packed(kind, 64, 9)
    index = jnp.asarray([[8, 0, 3], [3, 3, 1]], jnp.int32)
    wanted = linear_lib.decode(weight)[index]
    np.testing.assert_array_equal(linear_lib.take_rows(weight, index), wanted)


def test_bfloat16_rows_go_through_xla():
    weight, x = packed("q8_0", 64, 9), rows_of(2, 64)
    got = linear_lib.linear(x.astype(jnp.bfloat16), weight)
    assert got.dtype == jnp.bfloat16
    wanted = linear_lib.linear(x, weight)
    np.testing.assert_allclose(got.astype(jnp.float32), wanted, rtol=0.05, atol=0.3)


def test_another_number_of_inputs_is_refused():
    with pytest.raises(ValueError, match="x must have 64 inputs"):
        linear_lib.linear(rows_of(2, 32), packed("q8_0", 64, 9))


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_that_are_not_finite_are_found(kind):
    rows = np.array(packed(kind, 64, 3).rows)
    assert linear_lib.finite(rows, kind)
    if kind in QUANTISED:
        rows[1, :2] = np.array([np.nan], np.float16).view(np.uint8)
    else:
        rows[1, 5] = np.inf
    assert not linear_lib.finite(rows, kind)
