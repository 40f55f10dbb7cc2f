"""tree_attention: the TPU kernel, interpreted, and parts against the reference."""

import functools

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels.tree_attention import (
    Part,
    api,
    arg_specs,
    merge,
    part,
    tpu,
    tree_attention,
    tuning,
    xla,
)
from tests.pallas_kernels.attention_cases import arguments, tolerance, wanted

SMALL = arg_specs.SMALL
BOTH = pytest.mark.parametrize("module", [xla, tpu], ids=["xla", "tpu"])


@functools.partial(jax.jit, static_argnames=("module", "scale", "cap", "tiles"))
def run(module, arrays, length, window, *, scale, cap, tiles=None):
    more = {} if module is xla else {"interpret": pltpu.InterpretParams()}
    if tiles:
        more["tiles"] = tiles
    return module.tree_attention(
        **arrays,
        length=length,
        window=window,
        scale=scale,
        cap=cap,
        log_sum_exp=True,
        **more,
    )


def check(spec, seed, length, *, module=tpu, window=None, cap=None, sharpness=1.0):
    arrays = arguments(spec, seed, sharpness)
    options = {"scale": spec.size**-0.5, "cap": spec.cap if cap is None else cap}
    window = spec.window if window is None else window
    length = jnp.asarray(length, jnp.int32)
    out, logs = run(module, arrays, length, jnp.int32(window), **options)
    right, right_logs = wanted(arrays, length, window=window, **options)
    near = tolerance(spec) * sharpness  # errors of scores grow with them
    np.testing.assert_allclose(out.astype(jnp.float32), right, atol=near, rtol=near)
    np.testing.assert_allclose(logs, right_logs, atol=near, rtol=near)


@hypothesis.settings(max_examples=4)
@hypothesis.given(data=st.data())
@pytest.mark.parametrize("name", SMALL)
def test_any_lengths_and_windows(name, data):
    spec = SMALL[name]
    lengths = st.lists(
        st.integers(0, spec.slots), min_size=spec.rows, max_size=spec.rows
    )
    window = data.draw(st.sampled_from([0, 1, 2, 9, 600]))
    check(spec, data.draw(st.integers(0, 2**16)), data.draw(lengths), window=window)


@pytest.mark.parametrize("length", [0, 1, 511, 512, 513, 1024, 1535, 1536])
def test_edges_of_blocks(length):
    check(SMALL["blocks"], 1, [length, 0, 300])


@pytest.mark.parametrize("sharpness", [1.0, 30.0])
def test_soft_cap(sharpness):
    check(SMALL["many heads"], 3, [0, 17, 37], cap=2.0, sharpness=sharpness)


@BOTH
def test_a_query_that_sees_nothing(module):
    arrays = arguments(SMALL["one head"], 4)
    arrays["mask"] = jnp.zeros_like(arrays["mask"])
    length = jnp.asarray([0, 3], jnp.int32)
    out, logs = run(module, arrays, length, jnp.int32(0), scale=1.0, cap=0.0)
    assert jnp.all(out[0] == 0)
    assert jnp.all(logs[0] == -jnp.inf)
    assert jnp.all(jnp.isfinite(logs[1]))


def test_tiles_do_not_change_the_result():
    spec = SMALL["words"]
    arrays = arguments(spec, 5)
    given = arrays, jnp.asarray([41], jnp.int32), jnp.int32(0)
    tiles = tuning.Tiles(block=16, heads=1, rows=48)  # the last tile is partly padding
    options = {"scale": 0.3, "cap": 0.0}
    for whole, cut in zip(
        run(tpu, *given, **options),
        run(tpu, *given, **options, tiles=tiles),
        strict=True,
    ):
        np.testing.assert_allclose(whole, cut, atol=tolerance(spec))


def test_slots_past_the_length_are_never_seen():
    arrays = arguments(SMALL["one head"], 9)
    length, options = jnp.asarray([4, 0], jnp.int32), {"scale": 0.3, "cap": 0.0}
    right = run(tpu, arrays, length, jnp.int32(0), **options)
    spoilt = dict(arrays)
    for name in ("k_cache", "v_cache"):
        spoilt[name] = arrays[name].at[0, :, :, 4:].set(1e6).at[1].set(1e6)
    got = run(tpu, spoilt, length, jnp.int32(0), **options)
    np.testing.assert_array_equal(got[0], right[0])


def test_a_row_does_not_depend_on_the_others():
    arrays = arguments(SMALL["blocks"], 8)
    first, second = (
        run(tpu, arrays, jnp.asarray(n, jnp.int32), jnp.int32(0), scale=0.3, cap=0.0)
        for n in ([40, 1536, 3], [40, 0, 500])
    )
    np.testing.assert_array_equal(first[0][0], second[0][0])


def test_parts_of_cache_and_tree_merge_to_the_whole():
    spec = SMALL["many heads"]
    arrays = arguments(spec, 6)
    length = jnp.asarray([0, 17, 37], jnp.int32)
    mask = arrays.pop("mask")
    ask = functools.partial(part, **arrays, scale=0.3)
    cached = ask(length=length, mask=jnp.zeros_like(mask))
    own = ask(length=jnp.zeros_like(length), mask=mask)
    whole = ask(length=length, mask=mask)
    for merged, right in zip(merge(cached, own), whole, strict=True):
        np.testing.assert_allclose(merged, right, atol=tolerance(spec), rtol=1e-5)


def test_parts_weigh_as_much_as_their_exponentials():
    """Scores 1e4 and 1e4 + log 3: shares 1/4 and 3/4; nothing and nothing: nothing."""
    shape = (1, 1, 1, 2)
    logs = [jnp.asarray([at, -jnp.inf]).reshape(shape) for at in (1e4, 1e4 + np.log(3))]
    ones = jnp.ones((*shape, 1), jnp.float32).at[..., 1, :].set(0.0)
    out, total = merge(Part(ones, logs[0]), Part(5 * ones, logs[1]))
    np.testing.assert_allclose(out.ravel(), [4.0, 0.0], rtol=1e-3)
    np.testing.assert_allclose(total.ravel(), [1e4 + np.log(4), -np.inf], rtol=1e-6)


def test_a_backend_that_is_not_there_is_refused_with_those_that_are():
    arrays = arguments(SMALL["one head"], 0)
    length = jnp.zeros((2,), jnp.int32)
    with pytest.raises(ValueError, match=r"backend must be one of .*xla.* got 'tpu'"):
        tree_attention(**arrays, length=length, scale=1.0, backend="tpu")


def test_a_program_for_a_mesh_of_tpus_takes_the_kernel(monkeypatch):
    monkeypatch.setattr(api.backends, "platform", lambda: "tpu")
    arrays = arguments(SMALL["one head"], 0)
    length = jnp.zeros((2,), jnp.int32)
    traced = jax.make_jaxpr(lambda a: tree_attention(**a, length=length, scale=1.0))
    assert "pallas_call" in str(traced(arrays))


@pytest.mark.parametrize("spec", arg_specs.MODELS.values(), ids=arg_specs.MODELS)
def test_tiles_of_models_divide_and_fit(spec):
    queries = spec.heads * spec.nodes
    tiles = tuning.choose(spec.slots, spec.groups, spec.size, queries, spec.dtype)
    assert spec.slots % tiles.block == 0
    assert spec.groups % tiles.heads == 0
    assert tiles.rows % 16 == 0
