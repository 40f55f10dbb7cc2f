"""Sampling parameters: what is refused, and how they are packed."""

import jax.numpy as jnp
import numpy as np
import pytest

from specjax.core import sampling as sampling_lib

Options = sampling_lib.SamplingOptions


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens must be at least 1, got 0"),
        ({"min_new_tokens": -1}, "min_new_tokens must be at least 0"),
        ({"min_new_tokens": 9, "max_new_tokens": 8}, "at most max_new_tokens=8"),
        ({"temperature": -0.1}, "temperature must be 0"),
        ({"temperature": np.inf}, "temperature must be finite"),
        ({"top_k": -1}, "top_k must be at least 0"),
        ({"top_p": 0.0}, r"top_p must be in \(0, 1\]"),
        ({"top_p": 1.1}, "top_p must be in"),
        ({"top_p": np.nan}, "top_p must be finite"),
        ({"min_p": 1.5}, "min_p must be in"),
        ({"repetition_penalty": 0.0}, "repetition_penalty must be 1e-06 or more"),
        ({"repetition_penalty": 1e-40}, "repetition_penalty must be 1e-06 or more"),
        ({"seed": 2**32}, "seed must be at most 4294967295"),
        ({"stop_token_ids": [50]}, "stop_token_ids holds id 50; ids are 0 to 49"),
        ({"banned_ids": [-1]}, "banned_ids holds id -1"),
        ({"logit_bias": {3: np.nan}}, "logit_bias of id 3 is nan"),
        ({"logit_bias": {3: np.inf}}, "logit_bias of id 3 is inf"),
        ({"logit_bias": {3: 10**400}}, "of id 3 must be a number that a float holds"),
        ({"stop_token_ids": range(17)}, "at most 16 are supported"),
        (
            {"banned_ids": [0] * 40, "logit_bias": dict.fromkeys(range(25), 1.0)},
            "65 ids",
        ),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        Options(**options).validate(50)


def test_good_options_pass():
    Options().validate(50)
    Options(temperature=2.0, top_p=1e-3, min_p=1.0, seed=2**32 - 1).validate(50)


def test_pack():
    options = [
        Options(seed=2**32 - 1, temperature=0.5, logit_bias={4: 1.5}, banned_ids=[6]),
        Options(stop_token_ids=[2, 3], top_k=7),
    ]
    packed = sampling_lib.pack(options, [0, 2])
    np.testing.assert_array_equal(packed.key, np.uint32([[2**32 - 1, 0], [0, 2]]))
    np.testing.assert_array_equal(packed.temperature, np.float32([0.5, 0]))
    np.testing.assert_array_equal(packed.top_k, [0, 7])
    np.testing.assert_array_equal(packed.bias_ids[0, :3], [4, 6, sampling_lib.NO_ID])
    np.testing.assert_array_equal(packed.bias[0, :2], [1.5, -np.inf])
    assert packed.key.dtype == jnp.uint32
    assert packed.max_new_tokens.dtype == jnp.int32


def test_is_stop():
    packed = sampling_lib.pack([Options(stop_token_ids=[2, 3]), Options()], [0, 0])
    for tokens, expected in (((3, 3), (True, False)), ((0, 3), (False, False))):
        found = sampling_lib.is_stop(packed, jnp.asarray(np.array(tokens, np.int32)))
        assert tuple(np.asarray(found)) == expected
