"""rotary: native code and jnp against the NumPy reference."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.rotary import cpu, reference, split_heads, xla

NATIVE = pytest.param(cpu, marks=pytest.mark.native, id="native")
# rows, nodes, kv heads, query heads for each, head size
SHAPES = [(1, 1, 1, 1, 2), (2, 5, 3, 2, 14), (1, 7, 2, 3, 64)]


@functools.cache
def form(module):
    assert module is xla or cpu.available()
    return jax.jit(module.split_heads)


def arguments(rows, nodes, groups, heads, size):
    random = np.random.default_rng(0)
    qkv = random.standard_normal((rows, nodes, groups, heads + 2, size))
    angle = random.uniform(-3, 3, (rows, nodes, size // 2))
    return [x.astype(np.float32) for x in (qkv, np.cos(angle), np.sin(angle))]


@pytest.mark.parametrize("module", [pytest.param(xla, id="xla"), NATIVE])
@pytest.mark.parametrize("shape", SHAPES)
def test_equals_the_reference(shape, module):
    given = arguments(*shape)
    for got, wanted in zip(
        form(module)(*given), reference.split_heads(*given), strict=True
    ):
        np.testing.assert_allclose(got, wanted, rtol=1e-6, atol=1e-6)


def test_halves_are_turned():
    """(x0, x1, x2, x3) by 90 degrees and 0: (-x2, x1, x0, x3); values stay."""
    x = jnp.asarray([1.0, 2.0, 3.0, 4.0])
    qkv = jnp.broadcast_to(x, (1, 1, 1, 3, 4))
    cos, sin = jnp.asarray([[[0.0, 1.0]]]), jnp.asarray([[[1.0, 0.0]]])
    q, k, v = split_heads(qkv, cos, sin)
    for turned in (q[0, 0, 0, 0], k[0, 0, 0]):
        np.testing.assert_array_equal(turned, [-3.0, 2.0, 1.0, 4.0])
    np.testing.assert_array_equal(v[0, 0, 0], x)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_narrow_types_stay_narrow(dtype):
    qkv, cos, sin = arguments(1, 2, 1, 2, 8)
    made = split_heads(jnp.asarray(qkv, dtype), jnp.asarray(cos), jnp.asarray(sin))
    for got, wanted in zip(made, reference.split_heads(qkv, cos, sin), strict=True):
        assert got.dtype == dtype
        np.testing.assert_allclose(got.astype(jnp.float32), wanted, atol=0.05)


@pytest.mark.parametrize(
    ("qkv", "cos", "message"),
    [
        ((1, 2, 1, 2, 4), (1, 2, 2), "at least one query head"),
        ((1, 2, 1, 3, 5), (1, 2, 2), "an even head size"),
        ((1, 2, 1, 3, 4), (1, 2, 4), r"cos must have shape \(1, 2, 2\)"),
    ],
)
def test_shapes_that_do_not_fit(qkv, cos, message):
    with pytest.raises(ValueError, match=message):
        split_heads(jnp.zeros(qkv), jnp.zeros(cos), jnp.zeros((1, 2, 2)))
