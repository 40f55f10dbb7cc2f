"""tree_attention: native code and jnp against the NumPy reference."""

import functools

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

from pallas_kernels.tree_attention import api, cpu, reference, tree_attention

# rows, kv heads, query heads for each, nodes, head size, slots
SHAPES = {
    "small": (2, 3, 1, 5, 7, 11),
    "many heads": (3, 2, 5, 4, 8, 32),
    "blocks": (3, 1, 2, 3, 4, 1536),
    "one token": (2, 1, 3, 1, 8, 512),
    "many nodes": (1, 2, 2, 130, 5, 64),
    "wide heads": (1, 1, 2, 3, 83, 256),
}
TOLERANCE = 2e-5
NATIVE = pytest.param("native", marks=pytest.mark.native)


@pytest.fixture(autouse=True, params=["xla", NATIVE])
def backend(request, monkeypatch):
    """Every test is of both forms."""
    if request.param == "xla":
        monkeypatch.setattr(api.cpu, "available", lambda: False)
    return request.param


def arguments(shape, seed, sharpness=1.0):
    """Random arrays, a random tree a row and its mask, some slots unused."""
    rows, groups, heads, nodes, size, slots = shape
    random = np.random.default_rng(seed)

    def normal(*dims):
        return random.standard_normal(dims).astype(np.float32)

    mask = np.zeros((rows, nodes, nodes), bool)
    depth = np.zeros((rows, nodes), np.int32)
    for row in range(rows):
        used = random.integers(1, nodes + 1)
        for node in range(nodes):
            mask[row, node, node] = True  # unused slots see themselves alone
            if 0 < node < used:
                parent = random.integers(0, node)
                mask[row, node] |= mask[row, parent]
                depth[row, node] = depth[row, parent] + 1
    arrays = {
        "q": sharpness * normal(rows, groups, heads, nodes, size),
        "k": normal(rows, groups, nodes, size),
        "v": normal(rows, groups, nodes, size),
        "k_cache": normal(rows, groups, slots, size),
        "v_cache": normal(rows, groups, slots, size),
    }
    return arrays, {"depth": depth, "mask": mask}


def compiled(arrays, tree, length, scale, window, cap):
    native = cpu.available()
    return _compiled(arrays, tree, length, scale, window, cap, native)


@functools.partial(jax.jit, static_argnames=("scale", "window", "cap", "native"))
def _compiled(arrays, tree, length, scale, window, cap, native):
    del native  # Two forms, two programs.
    return tree_attention(
        **arrays, **tree, length=length, scale=scale, window=window, cap=cap
    )


def check(shape, seed, length, *, scale=0.3, window=0, cap=0.0, sharpness=1.0):
    arrays, tree = arguments(shape, seed, sharpness)
    length = np.asarray(length, np.int32)
    got = compiled(arrays, tree, length, scale, window, cap)
    wanted = reference.tree_attention(
        **arrays, **tree, length=length, scale=scale, window=window, cap=cap
    )
    np.testing.assert_allclose(got, wanted, atol=TOLERANCE, rtol=TOLERANCE)


@hypothesis.settings(max_examples=15)
@hypothesis.given(data=st.data())
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_any_lengths(shape, data):
    rows, slots = shape[0], shape[-1]
    lengths = st.lists(st.integers(0, slots), min_size=rows, max_size=rows)
    seed = data.draw(st.integers(0, 2**16))
    check(shape, seed, data.draw(lengths))


@pytest.mark.parametrize("length", [0, 1, 511, 512, 513, 1023, 1024, 1025, 1535, 1536])
def test_edges_of_blocks(length):
    check(SHAPES["blocks"], 1, [length, 0, 300])


@pytest.mark.parametrize("window", [1, 2, 9, 256, 300, 10_000])
@pytest.mark.parametrize("length", [0, 5, 256, 700])
def test_windows(window, length):
    check(SHAPES["blocks"], 2, [length, 1536, 400], window=window)


@pytest.mark.parametrize("sharpness", [1.0, 30.0])
def test_soft_cap(sharpness):
    check(SHAPES["many heads"], 3, [0, 17, 32], cap=2.0, sharpness=sharpness)


def test_cap_with_a_window():
    check(SHAPES["small"], 4, [11, 3], cap=1.5, window=4)


def test_sharp_scores_do_not_overflow():
    check(SHAPES["blocks"], 5, [1536, 5, 256], scale=20.0, sharpness=10.0)


@pytest.mark.parametrize("window", [0, 3])
def test_a_traced_window_equals_a_static_one(window):
    arrays, tree = arguments(SHAPES["small"], 6)
    length = jnp.asarray([11, 2], jnp.int32)
    options = {"length": length, "scale": 0.3, **tree}
    traced = jax.jit(lambda window: tree_attention(**arrays, **options, window=window))(
        jnp.int32(window)
    )
    static = tree_attention(**arrays, **options, window=window)
    np.testing.assert_allclose(traced, static, atol=TOLERANCE)


def test_a_stacked_cache_reads_the_layer_asked_for():
    arrays, tree = arguments(SHAPES["many heads"], 7)
    length = jnp.asarray([0, 17, 32], jnp.int32)
    options = {"length": length, "scale": 0.3, **tree}
    stacked = dict(arrays)
    for name in ("k_cache", "v_cache"):
        other = np.full_like(arrays[name], np.nan)
        stacked[name] = jnp.stack([other, arrays[name], other], axis=1)
    got = tree_attention(**stacked, **options, layer=jnp.int32(1))
    wanted = tree_attention(**arrays, **options)
    np.testing.assert_allclose(got, wanted, atol=TOLERANCE)  # stacked is XLA's


def test_a_row_does_not_depend_on_the_others():
    """Bit for bit: what a batch mate holds or how long it is."""
    arrays, tree = arguments(SHAPES["blocks"], 8)
    first = compiled(arrays, tree, np.asarray([40, 1536, 3], np.int32), 0.3, 0, 0.0)
    second = compiled(arrays, tree, np.asarray([40, 0, 500], np.int32), 0.3, 0, 0.0)
    np.testing.assert_array_equal(first[0], second[0])


@pytest.mark.parametrize("backend", [NATIVE], indirect=True)
def test_a_node_does_not_depend_on_how_many_are_scored_with_it():
    """Bit for bit, of native code: XLA adds in an order that depends on shapes."""
    arrays, tree = arguments((2, 2, 3, 40, 24, 512), 12)
    length = np.asarray([300, 7], np.int32)
    whole = compiled(arrays, tree, length, 0.3, 0, 0.0)
    for nodes in (1, 2, 5, 16, 33):
        less = {
            **arrays,
            "q": arrays["q"][:, :, :, :nodes],
            "k": arrays["k"][:, :, :nodes],
            "v": arrays["v"][:, :, :nodes],
        }
        cut = {
            "depth": tree["depth"][:, :nodes],
            "mask": tree["mask"][:, :nodes, :nodes],
        }
        got = compiled(less, cut, length, 0.3, 0, 0.0)
        np.testing.assert_array_equal(got, whole[:, :nodes])


def test_slots_past_the_length_are_never_seen():
    arrays, tree = arguments(SHAPES["small"], 9)
    length = np.asarray([4, 0], np.int32)
    wanted = compiled(arrays, tree, length, 0.3, 0, 0.0)
    spoilt = dict(arrays)
    for name in ("k_cache", "v_cache"):
        spoilt[name] = arrays[name].copy()
        spoilt[name][0, :, 4:] = 1e6
        spoilt[name][1] = 1e6
    np.testing.assert_array_equal(compiled(spoilt, tree, length, 0.3, 0, 0.0), wanted)


def test_bfloat16_is_near_float32():
    arrays, tree = arguments(SHAPES["many heads"], 10)
    length = jnp.asarray([0, 17, 32], jnp.int32)
    narrow = {k: jnp.asarray(v, jnp.bfloat16) for k, v in arrays.items()}
    got = tree_attention(**narrow, **tree, length=length, scale=0.3)
    assert got.dtype == jnp.bfloat16
    wanted = reference.tree_attention(
        **{k: np.asarray(v, np.float64) for k, v in narrow.items()},
        **tree,
        length=np.asarray(length),
        scale=0.3,
    )
    np.testing.assert_allclose(got.astype(jnp.float32), wanted, atol=0.03)


@pytest.mark.parametrize(
    ("name", "shape"), [("k", (2, 3, 4, 7)), ("mask", (2, 5, 4)), ("length", (3,))]
)
def test_shapes_that_do_not_fit_are_named(name, shape):
    arrays, tree = arguments(SHAPES["small"], 0)
    given = {**arrays, **tree, "length": np.zeros((2,), np.int32)}
    given[name] = np.zeros(shape, given[name].dtype)
    with pytest.raises(ValueError, match=f"tree_attention: {name} must have shape"):
        tree_attention(**given, scale=1.0)


def test_a_cache_of_odd_size_is_refused():
    arrays, tree = arguments((1, 1, 1, 2, 4, 700), 0)
    with pytest.raises(ValueError, match="multiple of 512"):
        tree_attention(**arrays, **tree, length=np.zeros((1,), np.int32), scale=1.0)
