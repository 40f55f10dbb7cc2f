"""threshold: native code and jnp against a sort."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pallas_kernels import threshold
from pallas_kernels.threshold import cpu, reference, xla

NONE = -np.inf
NATIVE = pytest.param(cpu, marks=pytest.mark.native, id="native")
BOTH = pytest.mark.parametrize("module", [pytest.param(xla, id="xla"), NATIVE])

# Values with many ties; sums of integers are exact, so equality is too.
few_values = st.sampled_from([NONE, -3.5, -1.0, -0.0, 0.0, 0.25, 2.0, 2.0000002])
values = st.one_of(few_values, st.floats(-50, 50, width=32))


@functools.cache
def form(module, name):
    assert module is xla or cpu.available()
    return jax.jit(getattr(module, name))


def row(numbers):
    return np.array([numbers], np.float32)


@BOTH
@given(numbers=st.lists(values, min_size=7, max_size=7), count=st.integers(0, 9))
def test_top_k_is_that_of_a_sort(numbers, count, module):
    wanted = reference.top_k(row(numbers), np.array([count]))
    found = form(module, "top_k")(row(numbers), np.array([count], np.int32))
    np.testing.assert_array_equal(found, wanted)


@BOTH
@given(
    weights=st.lists(st.integers(0, 8), min_size=7, max_size=7).filter(any),
    share=st.integers(1, 32),
)
def test_top_p_is_that_of_a_sort(weights, share, module):
    limit = np.array([share / 32], np.float32)
    wanted = reference.top_p(row(weights), limit)
    np.testing.assert_array_equal(form(module, "top_p")(row(weights), limit), wanted)


@BOTH
@pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 0.999, 1.0])
def test_weights_of_many_sizes(share, module):
    """Most of them so small that the heaviest alone do not fill the nucleus."""
    random = np.random.default_rng(0)
    weights = np.exp(random.uniform(-40, 0, (3, 700))).astype(np.float32)
    weights[1, 5:] = 0
    weights[2] = 1
    limit = np.full((3,), share, np.float32)
    wanted = reference.top_p(weights, limit)
    np.testing.assert_array_equal(form(module, "top_p")(weights, limit), wanted)


@BOTH
def test_top_p_keeps_at_equality(module):
    """Half of the mass lies before the second token, and the share is a half."""
    weights = row([4, 2, 1, 1])
    assert form(module, "top_p")(weights, np.float32([0.5])).tolist() == [2]
    assert form(module, "top_p")(weights, np.float32([0.499])).tolist() == [4]


@BOTH
def test_rows_have_their_own_limits(module):
    numbers = np.array([[5, 3, 1, 2]] * 4, np.float32)
    count = np.array([1, 2, 0, 9], np.int32)
    assert form(module, "top_k")(numbers, count).tolist() == [5, 3, NONE, 1]
    share = np.array([0.0, 0.46, 1.0, 0.99], np.float32)
    assert form(module, "top_p")(numbers, share).tolist() == [5, 3, 0, 1]


@BOTH
@pytest.mark.parametrize("name", ["top_k", "top_p"])
def test_a_row_is_the_same_among_any_number_of_rows(name, module):
    numbers = np.random.default_rng(0).exponential(size=(9, 300)).astype(np.float32)
    limits = {"top_k": np.arange(9, dtype=np.int32), "top_p": np.linspace(0, 1, 9)}
    limit = limits[name].astype(np.int32 if name == "top_k" else np.float32)
    whole = form(module, name)(numbers, limit)
    for count in (1, 2, 5):
        got = form(module, name)(numbers[:count], limit[:count])
        np.testing.assert_array_equal(got, whole[:count])


@BOTH
def test_top_k_puts_nans_at_the_ends_by_their_sign(module):
    """As numbers they have no order, and a selection needs one."""
    numbers = np.tile(row([np.nan, 2, -np.nan, 3, np.inf, NONE]), (6, 1))
    found = form(module, "top_k")(numbers, np.arange(1, 7, dtype=np.int32))
    np.testing.assert_array_equal(found, [np.nan, np.inf, 3, 2, NONE, np.nan])


@BOTH
@pytest.mark.parametrize("at", [0, 1, 69])
def test_top_k_among_many_nans(at, module):
    numbers = np.random.default_rng(0).standard_normal((1, 70)).astype(np.float32)
    numbers[0, ::2] = np.nan
    wanted = [*[np.nan] * 35, *-np.sort(-numbers[0, 1::2])][at]
    found = form(module, "top_k")(numbers, np.array([at + 1], np.int32))
    np.testing.assert_array_equal(found, [wanted])


@BOTH
@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_top_p_of_a_row_that_is_no_law(share, module):
    """Without any mass, and without a sum, all numbers stay."""
    weights = np.array([[0, 0, 0], [0, np.nan, 2], [np.nan] * 3], np.float32)
    found = form(module, "top_p")(weights, np.full((3,), share, np.float32))
    np.testing.assert_array_equal(found, [0, 0, np.nan])


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_the_op_chooses_a_form_for_the_device(dtype):
    numbers = jnp.asarray([[1, 4, 2]], dtype)
    found = threshold.top_k(numbers, jnp.asarray([2]))
    assert (found.dtype, found.tolist()) == (jnp.float32, [2])
    assert threshold.top_p(numbers, jnp.float32([0.6])).tolist() == [2]


@pytest.mark.native
def test_an_infinite_weight_ends_the_search():
    weights = row([1, np.inf, 2])
    assert form(cpu, "top_p")(weights, np.float32([0.5])).tolist() == [np.inf]


def test_limits_of_another_number_are_refused():
    with pytest.raises(ValueError, match=r"top_k: expected shapes \[B, V\] and \[B\]"):
        threshold.top_k(jnp.zeros((2, 3)), jnp.asarray([1]))
