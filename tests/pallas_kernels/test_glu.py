"""glu: native code and jnp against the NumPy reference."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import glu as glu_lib
from pallas_kernels.glu import cpu, reference, xla

NATIVE = pytest.param(cpu, marks=pytest.mark.native, id="native")
BOTH = pytest.mark.parametrize("module", [pytest.param(xla, id="xla"), NATIVE])
ALL = pytest.mark.parametrize("activation", glu_lib.ACTIVATIONS)


@functools.cache
def form(module, activation):
    assert module is xla or cpu.available()
    return jax.jit(functools.partial(module.glu, activation=activation))


def numbers(*shape):
    return (4 * np.random.default_rng(0).standard_normal(shape)).astype(np.float32)


@BOTH
@ALL
@pytest.mark.parametrize("shape", [(2, 7), (3, 2, 16), (2, 5, 2, 48), (1, 1, 2, 1537)])
def test_equals_the_reference(shape, activation, module):
    x = numbers(*shape)
    got = form(module, activation)(x)
    wanted = reference.glu(x, activation)
    np.testing.assert_allclose(got, wanted, rtol=5e-6, atol=1e-5)


@BOTH
@ALL
def test_large_gates_neither_overflow_nor_leak(activation, module):
    """A large gate passes, a very negative one closes."""
    gate = np.array([200.0, 50.0, 0.0, -50.0, -200.0], np.float32)
    got = form(module, activation)(np.stack([gate, np.full_like(gate, 3.0)]))
    np.testing.assert_allclose(got, [600.0, 150.0, 0.0, 0.0, 0.0], atol=1e-6)


def test_by_hand():
    """silu(1) = 1 / (1 + 1/e) = 0.731059, times 2."""
    got = glu_lib.glu(jnp.asarray([[1.0], [2.0]]), activation="silu")
    np.testing.assert_allclose(got, [1.462117], rtol=1e-6)


@BOTH
def test_what_is_not_a_number_stays_so(module):
    x = numbers(2, 40)
    x[0, 3], x[1, 20] = np.nan, np.nan
    bad = np.flatnonzero(np.isnan(form(module, "silu")(x)))
    assert bad.tolist() == [3, 20]


@pytest.mark.native
@ALL
def test_a_row_is_the_same_among_any_number_of_rows(activation):
    x = numbers(17, 2, 700)
    whole = form(cpu, activation)(x)
    for count in (1, 2, 5):
        got = form(cpu, activation)(x[:count])
        np.testing.assert_array_equal(got, whole[:count])


def test_bfloat16_goes_through_xla():
    x = jnp.asarray(numbers(2, 64), jnp.bfloat16)
    got = glu_lib.glu(x, activation="silu")
    assert got.dtype == jnp.bfloat16
    wanted = reference.glu(np.asarray(x, np.float64), "silu")
    np.testing.assert_allclose(got.astype(jnp.float32), wanted, rtol=0.02, atol=0.02)


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match="activation must be one of silu, gelu_tanh"):
        glu_lib.glu(jnp.zeros((2, 4)), activation="relu")
    with pytest.raises(ValueError, match=r"must be \[..., 2, M\], got \(3, 4\)"):
        glu_lib.glu(jnp.zeros((3, 4)), activation="silu")
