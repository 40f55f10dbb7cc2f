"""Shape checks at the boundary."""

import jax.numpy as jnp
import numpy as np
import pytest

from specjax import shapes

TOKENS = jnp.zeros((2, 5), jnp.int32)


def test_sizes_are_bound():
    sizes = shapes.check(
        "verify",
        tokens=(TOKENS, "i32[B, N]"),
        laws=(jnp.zeros((2, 3, 7)), "f32[B, R, V]"),
        hidden=(jnp.zeros((2, 5, 4), jnp.bfloat16), "f[B, N, 4]"),
        mask=(np.zeros((5,), bool), "bool[N]"),
        count=(jnp.int32(3), "i32[]"),
    )
    assert sizes == {"B": 2, "N": 5, "R": 3, "V": 7}


@pytest.mark.parametrize(
    ("value", "spec", "message"),
    [
        (
            jnp.zeros((2, 5)),
            "i32[B, N]",
            r"must be i32\[B, N\] with B=2, N=5, got",
        ),
        (jnp.zeros((2, 4)), "f32[B, N]", r"with B=2, N=5, got float32\[2, 4\]"),
        (jnp.zeros((2,)), "f32[B, N]", r"got float32\[2\]"),
        (jnp.zeros((2, 3)), "f32[B, 4]", r"must be f32\[B, 4\]"),
        (jnp.zeros((2, 2), jnp.int32), "f[B, B]", r"must be f\[B, B\]"),
    ],
)
def test_the_argument_is_named(value, spec, message):
    with pytest.raises(ValueError, match=rf"^verify: laws .*{message}"):
        shapes.check("verify", tokens=(TOKENS, "i32[B, N]"), laws=(value, spec))
