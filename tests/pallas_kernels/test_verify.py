"""verify: native code and jnp against the NumPy reference."""

import functools

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

from pallas_kernels import verify
from pallas_kernels.verify import cpu, reference, xla

NATIVE = pytest.param(cpu, marks=pytest.mark.native, id="native")
BOTH = pytest.mark.parametrize("module", [pytest.param(xla, id="xla"), NATIVE])
PART = 8192  # scores that the native code takes at once
SIZES = [1, 15, 48, 1000, PART, PART + 1, 3 * PART + 7]


@functools.cache
def form(module, name):
    assert module is xla or cpu.available()
    return jax.jit(getattr(module, name))


def logits(rows, size, seed=0):
    random = np.random.default_rng(seed)
    return (10 * random.standard_normal((rows, size))).astype(np.float32)


@BOTH
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("rows", [1, 3])
def test_equals_the_reference(rows, size, module):
    x = logits(rows, size, seed=size)
    np.testing.assert_array_equal(form(module, "argmax")(x), reference.argmax(x))
    np.testing.assert_allclose(
        form(module, "log_sum_exp")(x), reference.log_sum_exp(x), rtol=1e-6, atol=1e-6
    )


@BOTH
@pytest.mark.parametrize("first", [0, 17, PART - 1, PART, 2 * PART + 3])
def test_the_lowest_of_equals_is_the_best(first, module):
    x = np.zeros((2, 3 * PART), np.float32)
    x[0, [first, 2 * PART + 5]] = 1.0
    x[1, [first, 3 * PART - 1]] = -0.0
    got = form(module, "argmax")(x)
    assert got.tolist() == [first, 0]


@BOTH
@pytest.mark.parametrize("at", [0, 3, PART + 2, 2 * PART - 1])
def test_the_first_nan_is_the_best(at, module):
    x = logits(2, 2 * PART)
    x[0, [at, 2 * PART - 1]] = np.nan
    x[1, 5] = np.inf
    assert form(module, "argmax")(x).tolist() == [at, 5]
    found = form(module, "log_sum_exp")(x)
    assert np.isnan(found[0])
    assert found[1] == np.inf


@BOTH
def test_what_is_masked_counts_for_nothing(module):
    x = np.full((3, PART + 40), -np.inf, np.float32)
    x[0, PART + 30] = 2.5
    x[1, [3, PART + 1]] = 1.0
    assert form(module, "argmax")(x).tolist() == [PART + 30, 3, 0]
    wanted = [2.5, 1 + np.log(2), -np.inf]
    np.testing.assert_allclose(form(module, "log_sum_exp")(x), wanted, rtol=1e-6)


@pytest.mark.native
@hypothesis.given(
    row=st.lists(
        st.floats(-100, 100, width=32) | st.just(-np.inf), min_size=40, max_size=40
    )
)
def test_any_row(row):
    x = np.array([row], np.float32)
    np.testing.assert_array_equal(form(cpu, "argmax")(x), reference.argmax(x))
    np.testing.assert_allclose(
        form(cpu, "log_sum_exp")(x), reference.log_sum_exp(x), rtol=2e-6, atol=2e-6
    )


@pytest.mark.native
def test_a_row_is_the_same_among_any_number_of_rows():
    x = logits(9, 2 * PART + 100)
    whole = form(cpu, "log_sum_exp")(x)
    for count in (1, 2, 5):
        got = form(cpu, "log_sum_exp")(x[:count])
        np.testing.assert_array_equal(got, whole[:count])


def test_other_dtypes_go_through_xla():
    x = jnp.asarray(logits(2, 50), jnp.bfloat16)
    wanted = reference.argmax(np.asarray(x, np.float64))
    np.testing.assert_array_equal(verify.argmax(x), wanted)
    found = verify.log_sum_exp(x)
    assert found.dtype == jnp.bfloat16  # of 8 significant bits
    wanted = reference.log_sum_exp(np.asarray(x, np.float64))
    np.testing.assert_allclose(found.astype(jnp.float32), wanted, rtol=2**-7)


@pytest.mark.parametrize("shape", [(3,), (2, 0), (1, 2, 3)])
def test_other_shapes_are_refused(shape):
    for op in (verify.argmax, verify.log_sum_exp):
        with pytest.raises(ValueError, match=r"expected shape \[B, V\]"):
            op(jnp.zeros(shape))
