"""rms_norm: native code and jnp against the NumPy reference."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.rms_norm import cpu, reference, rms_norm, xla

NATIVE = pytest.param(cpu, marks=pytest.mark.native, id="native")
EPS = 1e-5


@functools.cache
def form(module):
    assert module is xla or cpu.available()
    return jax.jit(functools.partial(module.rms_norm, eps=EPS))


def arguments(*shape):
    random = np.random.default_rng(0)
    x = random.standard_normal(shape).astype(np.float32)
    return x, random.standard_normal(shape[-1:]).astype(np.float32)


@pytest.mark.parametrize("module", [pytest.param(xla, id="xla"), NATIVE])
@pytest.mark.parametrize("shape", [(1, 7), (3, 16), (2, 5, 48), (2, 3, 2, 37)])
def test_equals_the_reference(shape, module):
    x, weight = arguments(*shape)
    wanted = reference.rms_norm(x, weight, EPS)
    np.testing.assert_allclose(form(module)(x, weight), wanted, rtol=2e-6, atol=2e-6)


def test_by_hand():
    """rms of (3, 4) is sqrt(12.5)."""
    got = rms_norm(jnp.asarray([[3.0, 4.0]]), jnp.asarray([1.0, 2.0]), eps=0.0)
    np.testing.assert_allclose(got[0], [3 / 12.5**0.5, 8 / 12.5**0.5], rtol=1e-6)


@pytest.mark.native
def test_a_row_is_the_same_among_any_number_of_rows():
    x, weight = arguments(17, 100)
    whole = form(cpu)(x, weight)
    for count in (1, 2, 4, 8, 9):
        np.testing.assert_array_equal(form(cpu)(x[:count], weight), whole[:count])


def test_bfloat16_is_computed_in_float32():
    x, weight = (jnp.asarray(a, jnp.bfloat16) for a in arguments(2, 64))
    got = rms_norm(x, weight, eps=EPS)
    assert got.dtype == jnp.bfloat16
    wanted = reference.rms_norm(
        np.asarray(x, np.float64), np.asarray(weight, np.float64), EPS
    )
    np.testing.assert_allclose(got.astype(jnp.float32), wanted, rtol=2**-8, atol=0.01)


def test_a_weight_of_another_size_is_refused():
    with pytest.raises(ValueError, match=r"weight must have shape \(7,\)"):
        rms_norm(jnp.zeros((2, 7)), jnp.zeros((8,)), eps=EPS)
