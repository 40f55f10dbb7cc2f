"""Noise: the generator, its lanes, and what a draw may depend on."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from jax.extend.random import threefry_2x32

from specjax.core import noise

# Random123's kat_vectors: threefry2x32, 20 rounds: counter, key, result.
KNOWN = (
    ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
    ((0xFFFFFFFF,) * 2, (0xFFFFFFFF,) * 2, (0x1CB996FC, 0xBB002BE7)),
    (
        (0x243F6A88, 0x85A308D3),
        (0x13198A2E, 0x03707344),
        (0xC4923A9C, 0x483DF7A0),
    ),
)
IDS = np.arange(50_000, dtype=np.int32)

gumbel = jax.jit(noise.gumbel)
uniform = jax.jit(noise.uniform)


def u32(values):
    return jnp.asarray(np.array(values, np.uint32))


def i32(*values):
    return jnp.asarray(np.array(values, np.int32))


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
def test_threefry_known_answers(counter, key, expected):
    found = jax.jit(noise.threefry)(u32(key), u32(counter[0]), u32(counter[1]))
    assert tuple(int(word) for word in found) == expected


def test_threefry_is_that_of_jax():
    words = np.random.default_rng(0).integers(0, 2**32, (2, 64), np.uint32)
    key = u32([123, 456])
    found = jax.jit(noise.threefry)(key, u32(words[0]), u32(words[1]))
    expected = threefry_2x32(key, u32(words.reshape(-1)))
    np.testing.assert_array_equal(np.concatenate(found), expected)


def test_bits_belong_to_position_and_id():
    keys = noise.row_keys(u32([7, 8]), u32([0, 3]))
    found = jax.jit(noise.bits)(keys, i32(5, 6), jnp.asarray(IDS))
    first, _ = jax.jit(noise.threefry)(u32([8, 3]), u32(6), u32(41))
    assert found[1, 41] == first


@pytest.mark.parametrize("function", [gumbel, uniform])
def test_a_draw_depends_on_nothing_else(function):
    keys = noise.row_keys(u32([7, 8, 9]), u32([0, 0, 1]))
    position = i32(5, 6, 7)
    whole = np.asarray(function(keys, position, jnp.asarray(IDS)))
    some = np.array([40_001, 3, 17], np.int32)
    np.testing.assert_array_equal(
        function(keys, position, jnp.asarray(some)), whole[:, some]
    )
    np.testing.assert_array_equal(
        function(keys, position, jnp.asarray(IDS[:100])), whole[:, :100]
    )
    alone = function(keys[1:2], position[1:2], jnp.asarray(IDS))
    np.testing.assert_array_equal(alone, whole[1:2])


@pytest.mark.parametrize(
    ("keys", "position"),
    [
        (noise.row_keys, (5, 6)),  # other positions
        (lambda seed, sample: noise.row_keys(seed + seed, sample), (5, 5)),
        (lambda seed, sample: noise.row_keys(seed, sample + sample), (5, 5)),
    ],
)
def test_seed_sample_and_position_each_change_the_noise(keys, position):
    same = noise.row_keys(u32([1]), u32([1]))
    one = uniform(same, i32(position[0]), jnp.asarray(IDS))
    two = uniform(keys(u32([1]), u32([1])), i32(position[1]), jnp.asarray(IDS))
    assert abs(np.corrcoef(one[0], two[0])[0, 1]) < 5 / np.sqrt(len(IDS))


def test_lanes_and_rounds_are_independent():
    key = noise.row_keys(u32([1]), u32([0]))
    lanes = [key]
    for number in (noise.LANE_DRAFT, noise.LANE_ACCEPT, noise.LANE_RESIDUAL):
        lanes += [noise.lane(key, number, i32(round_)) for round_ in (0, 1)]
    draws = np.concatenate([uniform(k, i32(3), jnp.asarray(IDS)) for k in lanes])
    correlation = np.corrcoef(draws) - np.eye(len(lanes))
    assert np.abs(correlation).max() < 5 / np.sqrt(len(IDS))


def test_distributions():
    key = noise.row_keys(u32(range(4)), u32([0] * 4))
    position = i32(0, 1, 10, 2**30)
    flat = np.asarray(uniform(key, position, jnp.asarray(IDS))).ravel()
    high = np.asarray(gumbel(key, position, jnp.asarray(IDS))).ravel()
    assert scipy.stats.kstest(flat, "uniform").pvalue > 1e-3
    assert scipy.stats.kstest(high, "gumbel_r").pvalue > 1e-3
    error = 5 / np.sqrt(flat.size)
    assert flat.mean() == pytest.approx(0.5, abs=error * np.sqrt(1 / 12))
    assert flat.var() == pytest.approx(1 / 12, abs=error * np.sqrt(1 / 180))
    assert high.mean() == pytest.approx(np.euler_gamma, abs=error * np.pi / np.sqrt(6))
    assert high.var() == pytest.approx(np.pi**2 / 6, abs=error * np.pi**2 / 6 * 2.1)


@pytest.mark.parametrize("word", [0, 1, 2**31, 2**32 - 129, 2**32 - 1])
def test_extreme_bits_stay_in_range(word, monkeypatch):
    monkeypatch.setattr(noise, "bits", lambda *_: u32([[word]]))
    high = noise.gumbel(None, None, None)
    flat = noise.uniform(None, None, None)
    assert np.isfinite(high).all()
    assert (flat >= 0).all()
    assert (flat < 1).all()
    # Fine where the largest values come from: -log of half a step of 2**-32.
    if word == 0:
        assert high[0, 0] == pytest.approx(33 * np.log(2), rel=1e-6)
