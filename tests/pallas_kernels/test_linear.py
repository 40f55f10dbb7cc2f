"""linear: native code and jnp against the NumPy reference, and GGUF's own decoder."""

import functools
from concurrent import futures

import gguf
import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

from pallas_kernels import linear as linear_lib
from pallas_kernels.linear import cpu, formats, reference, xla
from tests import gguf_blocks

KINDS = tuple(linear_lib.FORMATS)
QUANTISED = tuple(k for k in KINDS if linear_lib.FORMATS[k].num_halves)
INTERLEAVED = formats.INTERLEAVED
# blocks of inputs, outputs: whole tiles, parts of one, few, more than a task
SHAPES = {"tiles": (2, 24), "odd": (3, 13), "narrow": (1, 1), "wide": (2, 611)}
SMALLEST = 2.0**-126  # smaller products may count as zeros
NATIVE = pytest.param("native", marks=pytest.mark.native)


def width(kind, blocks):
    """Inputs of so many blocks, of 32 where a format has none."""
    return blocks * max(linear_lib.FORMATS[kind].weights, 32)


def packed(kind, inputs, outputs, seed=0):
    """Random weights about 1 in a format, as the packed leaf."""
    if kind.endswith("_k"):  # A scale of 2^-10 to 2^-5 is multiplied by whole numbers.
        rows = gguf_blocks.random_rows(kind.upper(), outputs, inputs, seed, (5, 10))
        return linear_lib.Packed(jnp.asarray(rows), kind)
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
    """Of sums of K products in float32, for each row and output f64[N, M].

    Numbers too small for float32 may be flushed to zero.
    """
    x = np.abs(np.asarray(x, np.float64))
    weights = np.abs(np.asarray(linear_lib.decode(weight), np.float64))
    rounding = 2.0**-23 * np.sqrt(x.shape[1]) * (x @ weights.T)
    return rounding + SMALLEST * (x.shape[1] + weights.sum(axis=1))


def unit_tolerance(x, weight):
    """Of the matrix unit, for each row and output f64[N, M].

    Each number of a block of 32 is off by up to 1.5 steps, each about 2^-23 of the
    block's greatest (half of one by rounding, up to one by how a step is computed), or
    is taken for zero where that is 1e-30 or less. Blocks are added in float32.
    """
    least = 0.0
    if weight.kind == "q4_1":  # Products with scales and with these are summed apart.
        blocks = np.asarray(weight.rows).reshape(weight.rows.shape[0], -1, 20)
        halves = np.ascontiguousarray(blocks[..., 2:4]).view(np.float16)
        least = np.abs(np.repeat(halves[..., 0].astype(np.float64), 32, axis=1))
    sizes = np.abs(np.asarray(linear_lib.decode(weight), np.float64)) + 2 * least
    x = np.abs(np.asarray(x, np.float64))
    greatest = x.reshape(len(x), -1, 32).max(axis=-1)  # [N, blocks]
    off = np.where(greatest > 1e-30, 1.5 * 2.0**-23 * greatest, greatest)
    splitting = off @ sizes.reshape(len(sizes), -1, 32).sum(axis=-1).T
    return splitting + (greatest.shape[1] + 4) * 2.0**-24 * (x @ sizes.T) + SMALLEST


def assert_close(got, wanted, allowed):
    """Each number is off by no more than its own tolerance."""
    error = np.abs(np.asarray(got, np.float64) - wanted)
    worst = np.unravel_index(np.argmax(error - allowed), error.shape)
    assert (error <= allowed).all(), (worst, got[worst], wanted[worst], allowed[worst])


def by_blocks(rows, seed):
    """Rows whose blocks of 32 are each scaled by their own power, many to zero."""
    random = np.random.default_rng(seed)
    powers = [0, 0, 1e-40, 1e-35, 1e-29, 1e-20, 1e-4, 1.0, 1e15]
    blocks = np.array(rows).reshape(len(rows), -1, 32)
    scaled = blocks * random.choice(powers, (*blocks.shape[:2], 1))
    scaled[random.random(scaled.shape) < 0.2] = 0
    return scaled.astype(np.float32).reshape(rows.shape)


@pytest.mark.parametrize("backend", ["xla", NATIVE])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_equals_the_reference(shape, kind, backend):
    inputs = width(kind, shape[0])
    weight, x = packed(kind, inputs, shape[1]), rows_of(5, inputs)
    got = form(backend)(x, weight)
    wanted = reference.linear(np.asarray(x), np.asarray(weight.rows), kind)
    assert_close(got, wanted, tolerance(x, weight))


@pytest.mark.parametrize("kind", QUANTISED)
def test_decodes_as_gguf_does(kind):
    """Blocks of every pattern of bits with finite scales, compiled and not."""
    rows = gguf_blocks.random_rows(kind.upper(), 40, width(kind, 3))
    weight = linear_lib.Packed(jnp.asarray(rows), kind)
    wanted = gguf_blocks.dequantize(rows, kind.upper())
    np.testing.assert_array_equal(linear_lib.decode(weight), wanted)
    np.testing.assert_array_equal(jax.jit(linear_lib.decode)(weight), wanted)


@pytest.mark.native
@pytest.mark.parametrize("kind", QUANTISED)
def test_native_code_decodes_as_gguf_does(kind):
    """A row with a single one gives the weights themselves."""
    inputs = width(kind, 2)
    rows = gguf_blocks.random_rows(kind.upper(), 21, inputs)
    weight = linear_lib.Packed(jnp.asarray(rows), kind)
    got = form("native")(jnp.eye(inputs, dtype=jnp.float32), weight)
    np.testing.assert_array_equal(got, gguf_blocks.dequantize(rows, kind.upper()).T)


@pytest.mark.parametrize("kind", QUANTISED)
def test_the_reference_decodes_as_gguf_does(kind):
    rows = packed(kind, width(kind, 2), 3).rows
    got = [reference.decode_row(row, kind) for row in np.asarray(rows)]
    wanted = gguf_blocks.dequantize(rows, kind.upper())
    np.testing.assert_allclose(got, wanted, rtol=2.0**-23)


def test_a_block_by_hand():
    """Scale 0.5, least value -1; byte 0x3A gives weight 0 from A, weight 16 from 3."""
    head = np.array([0.5, -1.0], np.float16).tobytes()
    block = np.frombuffer(head + bytes([0x3A] + [0] * 15), np.uint8)
    weight = linear_lib.Packed(jnp.asarray(block[None]), "q4_1")
    got = np.asarray(linear_lib.decode(weight))[0]
    assert got[0] == 0.5 * 10 - 1
    assert got[16] == 0.5 * 3 - 1
    assert set(got[1:16]) == set(got[17:]) == {-1.0}


def test_a_block_of_six_bits_by_hand():
    """Scale 0.5, groups times 3; 5 in four bits and 2 above them is 37, so 5 from 32.

    Weights 0 and 64 share a byte of four bits: 5 below, 9 above. Of the quarters of
    byte 128 the first is weight 0's and the third weight 64's: 2 and 3.
    """
    block = np.zeros(210, np.uint8)
    block[0], block[128], block[192:208] = 0x95, 0b00_11_00_10, 3
    block[208:] = np.array([0.5], np.float16).view(np.uint8)
    got = np.asarray(linear_lib.decode(linear_lib.Packed(block[None], "q6_k")))[0]
    assert got[0] == 0.5 * 3 * (5 + 2 * 16 - 32)
    assert got[64] == 0.5 * 3 * (9 + 3 * 16 - 32)
    assert set(np.delete(got, [0, 64])) == {0.5 * 3 * -32}


def test_a_block_of_groups_by_hand():
    """Scale 0.5, least 0.25. Group 0: 33 and 2; group 4 has low bits 7 and 1 in byte 8.

    Its upper bits are the first bytes' own: 33 is 0b100001, and byte 0 is 0b10_100001,
    so that group 4 has 7 + 2 * 16 = 39. Byte 4 is 0b01_000010: 1 + 1 * 16 = 17.
    """
    block = np.zeros(144, np.uint8)
    block[:4] = np.array([0.5, 0.25], np.float16).view(np.uint8)
    block[4], block[8], block[12] = 0b10_100001, 0b01_000010, 0x17
    block[16], block[16 + 64] = 0x0C, 0x0A
    got = np.asarray(linear_lib.decode(linear_lib.Packed(block[None], "q4_k")))[0]
    assert got[0] == 0.5 * 33 * 12 - 0.25 * 2
    assert got[128] == 0.5 * 39 * 10 - 0.25 * 17
    assert set(got[32:128]) == set(got[160:]) == {0.0}


@pytest.mark.native
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 7, 16, 33])
def test_a_row_is_the_same_among_any_number_of_rows(count, kind):
    inputs = width(kind, 3)
    weight, x = packed(kind, inputs, 45), rows_of(33, inputs)
    alone = np.concatenate([form("native")(x[i : i + 1], weight) for i in range(33)])
    np.testing.assert_array_equal(form("native")(x[:count], weight), alone[:count])


@pytest.mark.native
@hypothesis.settings(max_examples=20)
@hypothesis.given(seed=st.integers(0, 2**16))
@pytest.mark.parametrize("kind", QUANTISED)
def test_any_values(kind, seed):
    """Great and tiny blocks beside each other and alone, and rows of zeros."""
    inputs = width(kind, 2)
    weight = packed(kind, inputs, 11, seed)
    x = by_blocks(rows_of(7, inputs, seed + 1), seed)
    wanted = reference.linear(x, np.asarray(weight.rows), kind)
    assert_close(form("native")(x, weight), wanted, tolerance(x, weight))


@pytest.mark.native
@pytest.mark.parametrize("lanes", [1, 16])
@pytest.mark.parametrize("kind", INTERLEAVED)
def test_tiny_numbers_are_the_same_among_any_number_of_rows(kind, lanes):
    """Whether they are flushed to zero must not depend on who computes them."""
    if lanes not in (1, cpu.lanes()):
        pytest.skip("no matrix unit here")
    weight = interleaved(packed(kind, 96, 1024), lanes)
    x = jnp.asarray(by_blocks(rows_of(24, 96), 0) * np.float32(1e-3))
    alone = np.concatenate([form("native")(x[i : i + 1], weight) for i in range(24)])
    np.testing.assert_array_equal(form("native")(x, weight), alone)


@pytest.mark.native
def test_calls_from_several_threads_do_not_mix():
    """A second caller at the same time does its work alone."""
    weight, x = packed("q4_1", 160, 611), rows_of(64, 160)
    call = jax.jit(cpu.linear)
    wanted = np.asarray(call(x, weight))
    with futures.ThreadPoolExecutor(4) as pool:
        many = list(pool.map(lambda _: np.asarray(call(x, weight)), range(40)))
    for got in many:
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.usefixtures("matrix_unit")
@pytest.mark.parametrize("kind", INTERLEAVED)
@pytest.mark.parametrize("count", [1, 2, 3, 5, 6, 10, 11, 16, 17, 40])
@pytest.mark.parametrize("shape", [(64, 16), (352, 48), (32, 1024)], ids=str)
def test_the_matrix_unit_equals_the_reference(shape, count, kind):
    """Numbers of rows on both sides of every change of instructions or tiles."""
    weight, x = packed(kind, *shape), rows_of(count, shape[0])
    got = form("native")(x, interleaved(weight))
    wanted = reference.linear(np.asarray(x), np.asarray(weight.rows), kind)
    assert_close(got, wanted, unit_tolerance(x, weight))


@pytest.mark.usefixtures("matrix_unit")
@pytest.mark.parametrize("kind", INTERLEAVED)
def test_the_matrix_unit_gives_a_row_the_same_bits_among_others(kind):
    weight, x = interleaved(packed(kind, 352, 48)), rows_of(40, 352)
    alone = np.concatenate([form("native")(x[i : i + 1], weight) for i in range(40)])
    for count in (2, 3, 5, 6, 10, 11, 16, 17, 40):
        np.testing.assert_array_equal(form("native")(x[:count], weight), alone[:count])


@pytest.mark.usefixtures("matrix_unit")
@hypothesis.settings(max_examples=40)
@hypothesis.given(seed=st.integers(0, 2**16), count=st.integers(1, 20))
@pytest.mark.parametrize("kind", INTERLEAVED)
def test_the_matrix_unit_takes_any_values(kind, seed, count):
    """Great and tiny blocks beside each other and alone, and rows of zeros."""
    weight = packed(kind, 96, 16, seed)
    x = by_blocks(rows_of(count, 96, seed + 1), seed)
    wanted = reference.linear(x, np.asarray(weight.rows), kind)
    got = form("native")(x, interleaved(weight))
    assert_close(got, wanted, unit_tolerance(x, weight))


@pytest.mark.usefixtures("matrix_unit")
@hypothesis.given(seed=st.integers(0, 2**16))
def test_the_matrix_unit_loses_what_is_far_below_its_blocks_greatest(seed):
    """Numbers of all sizes in one block: errors are steps of the greatest."""
    weight = packed("q4_1", 64, 16, seed)
    random = np.random.default_rng(seed)
    x = np.array(rows_of(5, 64, seed + 1)) * 10.0 ** random.integers(-9, 3, (5, 64))
    x = x.astype(np.float32)
    wanted = reference.linear(x, np.asarray(weight.rows), "q4_1")
    got = form("native")(x, interleaved(weight))
    assert_close(got, wanted, unit_tolerance(x, weight))


@pytest.mark.usefixtures("matrix_unit")
@pytest.mark.parametrize("count", [1, 2, 5, 17])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_the_matrix_unit_hides_no_number_that_is_not_finite(bad, count):
    weight, x = interleaved(packed("q4_1", 64, 16)), np.array(rows_of(count, 64))
    x[count // 2, 40] = bad
    got = np.isfinite(form("native")(jnp.asarray(x), weight)).all(axis=1)
    np.testing.assert_array_equal(got, np.arange(count) != count // 2)


@pytest.mark.parametrize("kind", INTERLEAVED)
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


@pytest.mark.parametrize("lanes", [1, 16])
@pytest.mark.parametrize("kind", ["f32", "q8_0", "q4_1", "q6_k"])
def test_some_outputs_alone(kind, lanes):
    weight = packed(kind, width(kind, 2), 48)
    index = np.asarray([40, 0, 7, 7, 31])
    chosen = linear_lib.pick(interleaved(weight, lanes), index)
    assert (chosen.kind, chosen.shape) == (kind, (width(kind, 2), 5))
    np.testing.assert_array_equal(
        linear_lib.decode(chosen), linear_lib.decode(weight)[index]
    )


@pytest.mark.parametrize("kind", INTERLEAVED)
def test_decoding_interleaved_weights_takes_little_memory(kind):
    """No more than the weights decoded: a gather would take 16 times as many bytes."""
    weight = interleaved(packed(kind, 512, 512))
    compiled = jax.jit(linear_lib.decode).lower(weight).compile()
    assert compiled.memory_analysis().temp_size_in_bytes <= 4 * 512 * 512


@pytest.mark.native
@pytest.mark.parametrize(("packed_for", "here"), [(16, 1), (2, None), (16, 32)])
def test_weights_of_another_machine_go_through_xla(packed_for, here, monkeypatch):
    weight, x = interleaved(packed("q4_1", 96, 32), packed_for), rows_of(3, 96)
    if here:
        monkeypatch.setattr(cpu, "lanes", lambda: here)
        monkeypatch.setattr(cpu, "available", lambda: True)
    program = jax.jit(lambda x, weight: linear_lib.linear(x, weight))
    assert "linear_q4_1" not in program.lower(x, weight).as_text()
    np.testing.assert_array_equal(program(x, weight), form("xla")(x, weight))


@pytest.mark.native
def test_rows_that_are_not_interleaved_are_native_on_any_machine(monkeypatch):
    monkeypatch.setattr(cpu, "lanes", lambda: 16)
    monkeypatch.setattr(cpu, "available", lambda: True)
    program = jax.jit(lambda x, weight: linear_lib.linear(x, weight))
    text = program.lower(rows_of(3, 96), packed("q4_1", 96, 32)).as_text()
    assert "linear_q4_1" in text


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_packed_here_multiplies_as_the_stored_rows(kind):
    stored = packed(kind, width(kind, 2), 32)
    weight, x = (
        linear_lib.pack(np.asarray(stored.rows), kind),
        rows_of(5, width(kind, 2)),
    )
    unit = cpu.available() and cpu.lanes() == 16 and kind in INTERLEAVED
    assert weight.lanes == (16 if unit else 1)
    np.testing.assert_array_equal(linear_lib.decode(weight), linear_lib.decode(stored))
    wanted = reference.linear(np.asarray(x), np.asarray(stored.rows), kind)
    allowed = (unit_tolerance if unit else tolerance)(x, stored)
    assert_close(linear_lib.linear(x, weight), wanted, allowed)


def test_without_native_code_nothing_is_interleaved(monkeypatch):
    monkeypatch.setattr(cpu, "available", lambda: False)
    rows = np.asarray(packed("q4_1", 64, 32).rows)
    weight = linear_lib.pack(rows, "q4_1")
    assert weight.lanes == 1
    np.testing.assert_array_equal(weight.rows, rows)


@pytest.mark.parametrize(
    ("rows", "kind", "message"),
    [
        (
            np.zeros((2, 34), np.uint8),
            "q9_0",
            "kind must be one of f32, .*, got 'q9_0'",
        ),
        (np.zeros((2, 33), np.uint8), "q8_0", r"uint8\[M, n \* 34\] for q8_0, got"),
        (np.zeros((2, 34), np.int8), "q8_0", r"got int8\[2, 34\]"),
        (np.zeros(34, np.uint8), "q8_0", r"got uint8\[34\]"),
    ],
)
def test_rows_that_are_not_in_a_format_are_not_packed(rows, kind, message):
    with pytest.raises(ValueError, match=message):
        linear_lib.pack(rows, kind)


def test_an_interleaved_block_by_hand():
    """Two outputs, a block each: scales, least values, then words in turn."""
    block = np.arange(20, dtype=np.uint8)
    rows = np.stack([block, block + 100])
    got = formats.interleave(rows, "q4_1", 2)
    halves = [0, 1, 100, 101, 2, 3, 102, 103]
    words = [w + o + i for w in (4, 8, 12, 16) for o in (0, 100) for i in range(4)]
    assert got.rows.reshape(-1).tolist() == halves + words


@pytest.mark.parametrize(("kind", "outputs"), [("f32", 16), ("q8_0", 24), ("q6_k", 16)])
def test_what_does_not_fit_lanes_stays_as_it_is(kind, outputs):
    rows = np.asarray(packed(kind, width(kind, 1), outputs).rows)
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
    weight = packed(kind, width(kind, 2), 9)
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
    rows = np.array(packed(kind, width(kind, 2), 3).rows)
    assert linear_lib.finite(rows, kind)
    if kind in QUANTISED:
        at = linear_lib.FORMATS[kind].halves_at
        rows[1, at : at + 2] = np.array([np.nan], np.float16).view(np.uint8)
    else:
        rows[1, 5] = np.inf
    assert not linear_lib.finite(rows, kind)
