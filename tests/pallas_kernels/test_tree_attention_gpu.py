"""tree_attention: the GPU kernel against the reference, interpreted or compiled."""

import functools

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

from pallas_kernels.tree_attention import (
    api,
    arg_specs,
    gpu,
    part,
    tree_attention,
    tuning_gpu,
)
from tests.pallas_kernels import gpu_cases
from tests.pallas_kernels.attention_cases import arguments, tolerance, wanted

SMALL = arg_specs.SMALL


@functools.partial(jax.jit, static_argnames=("interpret", "scale", "cap", "tiles"))
def run(arrays, length, window, **static):
    return gpu.tree_attention(
        **arrays, length=length, window=window, log_sum_exp=True, **static
    )


def check(
    spec, seed, length, interpret, *, window=None, cap=None, sharpness=1.0, tiles=None
):
    arrays = arguments(spec, seed, sharpness)
    options = {"scale": spec.size**-0.5, "cap": spec.cap if cap is None else cap}
    window = spec.window if window is None else window
    length = jnp.asarray(length, jnp.int32)
    static = {"interpret": interpret, "tiles": tiles, **options}
    out, logs = run(arrays, length, jnp.int32(window), **static)
    right, right_logs = wanted(arrays, length, window=window, **options)
    near = tolerance(spec) * sharpness  # errors of scores grow with them
    np.testing.assert_allclose(out.astype(jnp.float32), right, atol=near, rtol=near)
    np.testing.assert_allclose(logs, right_logs, atol=near, rtol=near)


@gpu_cases.HOW
@hypothesis.settings(max_examples=4)
@hypothesis.given(data=st.data())
@pytest.mark.parametrize("name", SMALL)
def test_any_lengths_and_windows(name, interpret, data):
    spec = SMALL[name]
    lengths = st.lists(
        st.integers(0, spec.slots), min_size=spec.rows, max_size=spec.rows
    )
    window = data.draw(st.sampled_from([0, 1, 2, 9, 600]))
    seed = data.draw(st.integers(0, 2**16))
    check(spec, seed, data.draw(lengths), interpret, window=window)


@gpu_cases.HOW
@pytest.mark.parametrize("length", [0, 1, 255, 256, 257, 1024, 1535, 1536])
def test_edges_of_blocks(length, interpret):
    check(SMALL["blocks"], 1, [length, 0, 300], interpret)


@gpu_cases.HOW
@pytest.mark.parametrize("window", [0, 40])
@pytest.mark.parametrize("name", ["blocks", "words"])
def test_shares_of_the_keys_merge_to_the_whole(name, window, interpret):
    spec = SMALL[name]
    tiles = tuning_gpu.Tiles(block=32, rows=16, shares=5)
    length = [47, 1536, 0][: spec.rows]
    check(spec, 2, length, interpret, window=window, tiles=tiles)


@gpu_cases.HOW
@pytest.mark.parametrize("sharpness", [1.0, 30.0])
def test_soft_cap(sharpness, interpret):
    spec = SMALL["many heads"]
    check(spec, 3, [0, 17, 37], interpret, cap=2.0, sharpness=sharpness)


@gpu_cases.HOW
@pytest.mark.parametrize("shares", [1, 3])
def test_a_query_that_sees_nothing(shares, interpret):
    arrays = arguments(SMALL["one head"], 4)
    arrays["mask"] = jnp.zeros_like(arrays["mask"])
    static = {"tiles": tuning_gpu.Tiles(block=16, rows=16, shares=shares)}
    static |= {"interpret": interpret, "scale": 1.0, "cap": 0.0}
    out, logs = run(arrays, jnp.asarray([0, 3], jnp.int32), jnp.int32(0), **static)
    assert jnp.all(out[0] == 0)
    assert jnp.all(logs[0] == -jnp.inf)
    assert jnp.all(jnp.isfinite(logs[1]))


@gpu_cases.HOW
def test_slots_past_the_length_are_never_seen(interpret):
    arrays = arguments(SMALL["one head"], 9)
    given = jnp.asarray([4, 0], jnp.int32), jnp.int32(0)
    static = {"interpret": interpret, "scale": 0.3, "cap": 0.0}
    right = run(arrays, *given, **static)
    spoilt = dict(arrays)
    for name in ("k_cache", "v_cache"):
        spoilt[name] = arrays[name].at[0, :, :, 4:].set(jnp.nan).at[1].set(jnp.nan)
    np.testing.assert_array_equal(run(spoilt, *given, **static)[0], right[0])


@gpu_cases.HOW
def test_a_row_does_not_depend_on_the_others(interpret):
    arrays = arguments(SMALL["blocks"], 8)
    static = {"interpret": interpret, "scale": 0.3, "cap": 0.0}
    first, second = (
        run(arrays, jnp.asarray(n, jnp.int32), jnp.int32(0), **static)
        for n in ([40, 1536, 3], [40, 0, 500])
    )
    np.testing.assert_array_equal(first[0][0], second[0][0])


@gpu_cases.NO_WARNING
@pytest.mark.parametrize("op", [tree_attention, part])
@pytest.mark.parametrize("name", arg_specs.MODELS)
def test_models_are_lowered_for_a_gpu(name, op):
    spec = arg_specs.MODELS[name]
    function = functools.partial(op, **spec.options(), backend="gpu")
    assert gpu_cases.kernels(function, **spec.arguments()) == 1


def test_a_backend_that_is_not_there_is_refused_with_those_that_are(monkeypatch):
    arrays = arguments(SMALL["one head"], 0)
    length = jnp.zeros((2,), jnp.int32)
    monkeypatch.setattr(api.backends, "platform", lambda: "gpu")
    for op in (tree_attention, part):
        with pytest.raises(ValueError, match=r"must be one of xla, gpu .* got 'tpu'"):
            op(**arrays, length=length, scale=1.0, backend="tpu")
    monkeypatch.setattr(api.triton, "available", lambda: False)
    with pytest.raises(ValueError, match=r"must be one of xla .* got 'gpu'"):
        tree_attention(**arrays, length=length, scale=1.0, backend="gpu")


@pytest.mark.parametrize("spec", arg_specs.MODELS.values(), ids=arg_specs.MODELS)
def test_tiles_of_models_are_whole_and_leave_work_for_each(spec):
    heads, queries = spec.rows * spec.groups, spec.heads * spec.nodes
    tiles = tuning_gpu.choose(heads, spec.slots, spec.size, queries, spec.dtype)
    assert tiles.shares == 1 or tiles.shares * tiles.block * 4 <= spec.slots
    width = tuning_gpu.padded(spec.size)
    assert tiles.block * width * jnp.dtype(spec.dtype).itemsize <= 16 << 10


@pytest.mark.parametrize("wrong", [{"block": 48}, {"rows": 8}, {"shares": 0}])
def test_tiles_that_triton_cannot_have_are_refused(wrong):
    name = next(iter(wrong))
    with pytest.raises(ValueError, match=f"{name} must be"):
        tuning_gpu.Tiles(**({"block": 16, "rows": 16, "shares": 1} | wrong))
