"""Rotary tables: known values, stretches, and what rotation must keep."""

import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.rotary import xla
from specjax.models import config as config_lib
from specjax.models import rope

LLAMA3 = config_lib.RopeScaling(
    kind="llama3",
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_context=8192,
)


def test_default_frequencies():
    """10000 ** (-2 i / D) for D = 4: 1 and 1 / 100."""
    inverse, factor = rope.frequencies(4, 10000.0, config_lib.RopeScaling())
    np.testing.assert_allclose(inverse, [1.0, 0.01], rtol=1e-7)
    assert factor == 1.0


def test_linear_divides_all():
    scaling = config_lib.RopeScaling(kind="linear", factor=4.0)
    inverse, _ = rope.frequencies(4, 10000.0, scaling)
    np.testing.assert_allclose(inverse, [0.25, 0.0025], rtol=1e-7)


def test_llama3_keeps_fast_and_stretches_slow():
    plain, _ = rope.frequencies(128, 500000.0, config_lib.RopeScaling())
    inverse, _ = rope.frequencies(128, 500000.0, LLAMA3)
    wavelength = 2 * np.pi / plain
    fast, slow = wavelength < 8192 / 4, wavelength > 8192
    np.testing.assert_array_equal(inverse[fast], plain[fast])
    np.testing.assert_allclose(inverse[slow], plain[slow] / 8, rtol=1e-6)
    between = ~fast & ~slow
    assert between.any()
    assert np.all(inverse[between] < plain[between])
    assert np.all(inverse[between] > plain[between] / 8)


def test_yarn_blends_by_rotations():
    """D 8, base 10000, context 64: dimensions turn 10.2, 1.02, 0.1, 0.01 times.

    With beta 32 and 1 the ramp runs from floor(-0.50) -> 0 to ceil(1.008) = 2.
    """
    scaling = config_lib.RopeScaling(kind="yarn", factor=8.0, original_context=64)
    plain, _ = rope.frequencies(8, 10000.0, config_lib.RopeScaling())
    inverse, factor = rope.frequencies(8, 10000.0, scaling)
    kept = np.array([1.0, 0.5, 0.0, 0.0])
    np.testing.assert_allclose(
        inverse, plain * kept + plain / 8 * (1 - kept), rtol=1e-6
    )
    assert factor == pytest.approx(0.1 * np.log(8) + 1)


def test_yarn_takes_a_given_attention_factor():
    scaling = config_lib.RopeScaling(
        kind="yarn", factor=8.0, original_context=64, attention_factor=1.25
    )
    assert rope.frequencies(8, 10000.0, scaling)[1] == 1.25


def _config(**changes):
    sizes = {
        "family": "llama",
        "vocab_size": 11,
        "embed_size": 8,
        "num_layers": 3,
        "num_heads": 2,
        "num_kv_heads": 1,
        "head_size": 4,
        "mlp_size": 12,
        "max_context": 64,
    }
    return config_lib.ModelConfig(**{**sizes, **changes})


def test_tables_at_a_far_position():
    """cos and sin of 5000 * 0.01 = 50 for the second pair."""
    cos, sin = rope.tables(_config(), jnp.asarray([[0, 5000]], jnp.int32))
    assert cos.shape == (1, 1, 2, 2)
    np.testing.assert_allclose(cos[0, 0, 1], np.cos([5000.0, 50.0]), atol=2e-4)
    np.testing.assert_allclose(sin[0, 0, 1], np.sin([5000.0, 50.0]), atol=2e-4)
    np.testing.assert_array_equal(cos[0, 0, 0], [1.0, 1.0])


def test_windowed_layers_take_the_local_table():
    config = _config(windows=(4, 0, 4), local_rope_theta=100.0, rope_theta=10000.0)
    assert [rope.table_of_layer(config, i) for i in range(3)] == [1, 0, 1]
    cos, _ = rope.tables(config, jnp.asarray([[3]], jnp.int32))
    np.testing.assert_allclose(cos[:, 0, 0, 1], np.cos([0.03, 0.3]), rtol=1e-6)


def test_without_a_local_base_there_is_one_table():
    config = _config(windows=(4, 0, 4))
    assert [rope.table_of_layer(config, i) for i in range(3)] == [0, 0, 0]
    assert rope.tables(config, jnp.zeros((1, 1), jnp.int32))[0].shape[0] == 1


@pytest.mark.parametrize("scaling", [config_lib.RopeScaling(), LLAMA3])
def test_scores_depend_on_distance_alone(scaling):
    config = _config(head_size=16, rope_scaling=scaling)
    random = np.random.default_rng(0)
    q, k = (jnp.asarray(random.standard_normal((1, 16)), jnp.float32) for _ in "qk")

    def score(q_pos, k_pos):
        cos, sin = rope.tables(config, jnp.asarray([[q_pos, k_pos]], jnp.int32))
        turned = [
            xla.rotate(x, cos[0, :, i], sin[0, :, i]) for i, x in enumerate((q, k))
        ]
        return float(jnp.sum(turned[0] * turned[1]))

    assert score(10, 7) == pytest.approx(score(403, 400), abs=1e-3)
    assert score(10, 7) != pytest.approx(score(10, 4), abs=1e-2)
