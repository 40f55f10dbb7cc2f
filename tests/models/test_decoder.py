"""The decoder: a tree equals its paths, and every form gives the same numbers."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.rms_norm import rms_norm
from specjax import checkpoints
from specjax.core import history as history_lib
from specjax.core import tree as tree_lib
from specjax.models import cache as cache_lib
from specjax.models import config as config_lib
from specjax.models import decoder
from specjax.models import model as model_lib

PLAIN = config_lib.ModelConfig(
    family="llama",
    vocab_size=31,
    embed_size=24,
    num_layers=3,
    num_heads=6,
    num_kv_heads=2,
    head_size=10,
    mlp_size=36,
    max_context=64,
)
# Every option at once, in a form that no family has.
LOADED = config_lib.ModelConfig(
    family="gemma3_text",
    vocab_size=31,
    embed_size=24,
    num_layers=3,
    num_heads=6,
    num_kv_heads=2,
    head_size=10,
    mlp_size=36,
    max_context=64,
    local_rope_theta=100.0,
    windows=(5, 0, 3),
    tied_head=True,
    qkv_bias=True,
    output_bias=True,
    mlp_bias=True,
    qk_norm=True,
    post_norms=True,
    activation="gelu_tanh",
    embed_scale=4.9,
    query_scale=0.4,
    attention_cap=3.0,
    final_cap=5.0,
)
CONFIGS = {"plain": PLAIN, "loaded": LOADED}
TOLERANCE = 2e-5
CAPACITY = 32
PREFIX = (7, 3)  # cached tokens of the two rows
# Two rows: a trunk of 2 with branches, and a trunk of 1 with spare slots.
PARENT = ((-1, 0, 1, 1, 2, 3), (-1, 0, 0, 2, -1, -1))
NUM_TRUNK, NUM_NODES = (2, 1), (6, 4)


@functools.cache
def params_of(config, seed=0):
    """Random params, all of them away from their start at 0 and 1."""
    make = jax.jit(decoder.init_params, static_argnames=("config",))
    made = make(config=config, key=jax.random.key(seed))
    random = np.random.default_rng(seed)

    def spread(x):
        noise = random.standard_normal(x.shape).astype(np.float32)
        return x + jnp.asarray(noise * (0.3 if x.ndim == 1 else 0.25))

    return jax.tree.map(spread, made)


def make_tree(random):
    depth = np.zeros((2, 6), np.int32)
    for row in range(2):
        for node, parent in enumerate(PARENT[row]):
            depth[row, node] = depth[row, parent] + 1 if parent >= 0 else 0
    return tree_lib.TokenTree(
        token=jnp.asarray(random.integers(0, 31, (2, 6)), jnp.int32),
        parent=jnp.asarray(PARENT, jnp.int32),
        depth=jnp.asarray(depth),
        tag=jnp.full((2, 6), tree_lib.NO_TAG, jnp.int32),
        confidence=jnp.ones((2, 6), jnp.float32),
        num_trunk=jnp.asarray(NUM_TRUNK, jnp.int32),
        num_nodes=jnp.asarray(NUM_NODES, jnp.int32),
    )


@functools.partial(jax.jit, static_argnames=("model", "features"))
def forward(model, params, tree, cache, start, features=()):
    return model.target.forward(params, tree, cache, start, features)


@functools.partial(jax.jit, static_argnames=("model",))
def step(model, params, token, cache, start):
    """Hidden f[E] of one more token i32[1], and the cache with it."""
    slot = jnp.zeros((1, 1), jnp.int32)
    tree = tree_lib.TokenTree(
        token=token[None],
        parent=slot + tree_lib.NO_PARENT,
        depth=slot,
        tag=slot + tree_lib.NO_TAG,
        confidence=jnp.ones((1, 1), jnp.float32),
        num_trunk=jnp.ones((1,), jnp.int32),
        num_nodes=jnp.ones((1,), jnp.int32),
    )
    out = model.target.forward(params, tree, cache, start, ())
    cache = model.target.commit(cache, out.rows, None, start, tree.num_nodes)
    return out.hidden[0, 0], cache


def sequential(model, params, tokens):
    """Hidden states f[E] of one text, token by token, and its cache."""
    cache, hidden = model.target.init(1, CAPACITY), []
    for i, token in enumerate(tokens):
        at = np.asarray([token], np.int32), np.asarray([i], np.int32)
        new, cache = step(model, params, at[0], cache, at[1])
        hidden.append(new)
    return hidden, cache


@functools.cache
def scene(name, scanned=False):
    """(model, params, prefixes, tree, cache with both prefixes committed)."""
    config = CONFIGS[name]
    model = model_lib.Model(config=config)
    params = params_of(config)
    if scanned:
        params = decoder.stack_layers(params)
    random = np.random.default_rng(1)
    prefixes = [random.integers(0, 31, length).tolist() for length in PREFIX]
    tree = make_tree(random)
    caches = [sequential(model, params, prefix)[1] for prefix in prefixes]
    cache = jax.tree.map(lambda *rows: jnp.concatenate(rows), *caches)
    return model, params, prefixes, tree, cache


START = np.asarray(PREFIX, np.int32)


@pytest.mark.parametrize("name", CONFIGS)
def test_every_node_equals_its_path_run_token_by_token(name):
    model, params, prefixes, tree, cache = scene(name)
    out = forward(model, params, tree, cache, START)
    for row in range(2):
        for node in range(NUM_NODES[row]):
            path = [node]
            while PARENT[row][path[0]] >= 0:
                path.insert(0, PARENT[row][path[0]])
            tokens = prefixes[row] + [int(tree.token[row, i]) for i in path]
            wanted, _ = sequential(model, params, tokens)
            np.testing.assert_allclose(
                out.hidden[row, node], wanted[-1], atol=TOLERANCE, rtol=TOLERANCE
            )


@pytest.mark.parametrize("name", CONFIGS)
def test_scanned_equals_unrolled(name):
    model, params, _, tree, cache = scene(name)
    wanted = forward(model, params, tree, cache, START, (-1, 0, 2))
    model, params, _, tree, cache = scene(name, scanned=True)
    got = forward(model, params, tree, cache, START, (-1, 0, 2))
    np.testing.assert_allclose(got.hidden, wanted.hidden, atol=TOLERANCE)
    np.testing.assert_allclose(got.features, wanted.features, atol=TOLERANCE)
    np.testing.assert_allclose(got.rows.k, wanted.rows.k, atol=TOLERANCE)
    np.testing.assert_allclose(got.rows.v, wanted.rows.v, atol=TOLERANCE)


@pytest.mark.parametrize("scanned", [False, True])
def test_features_are_in_the_order_asked_for(scanned):
    model, params, _, tree, cache = scene("plain", scanned)
    embed = model.config.embed_size
    both = forward(model, params, tree, cache, START, (2, 0)).features
    first = forward(model, params, tree, cache, START, (0,)).features
    assert both.shape == (2, 6, 2 * embed)
    np.testing.assert_allclose(both[..., embed:], first, atol=TOLERANCE)


def test_the_last_layer_is_the_final_state_before_its_norm():
    model, params, _, tree, cache = scene("plain")
    out = forward(model, params, tree, cache, START, (2, -1))
    last, final = jnp.split(out.features, 2, axis=-1)
    normed = rms_norm(last, params["final_norm"], eps=model.config.norm_eps)
    np.testing.assert_allclose(final, out.hidden, atol=1e-6)
    np.testing.assert_allclose(normed, out.hidden, atol=TOLERANCE)


def test_no_features_is_none():
    model, params, _, tree, cache = scene("plain")
    assert forward(model, params, tree, cache, START).features is None


def test_spare_slots_change_nothing():
    """Other tokens in unused slots leave the used ones as they are, bit for bit."""
    model, params, _, tree, cache = scene("loaded")
    spoilt = tree.token.at[1, 4:].set(30)
    other = forward(
        model, params, dataclasses.replace(tree, token=spoilt), cache, START
    )
    wanted = forward(model, params, tree, cache, START)
    np.testing.assert_array_equal(other.hidden[1, :4], wanted.hidden[1, :4])
    np.testing.assert_array_equal(other.hidden[0], wanted.hidden[0])


def test_commit_of_a_branch_goes_on_from_it():
    """Select slots 0, 1, 3, 5 of row 0 and commit: the cache of that text."""
    model, params, prefixes, tree, cache = scene("loaded")
    out = forward(model, params, tree, cache, START)
    path = jnp.asarray([[0, 1, 3, 5], [0, 2, 3, 0]], jnp.int32)
    count = jnp.asarray([4, 3], jnp.int32)
    committed = model.target.commit(cache, out.rows, path, jnp.asarray(START), count)
    for row in range(2):
        kept = [int(tree.token[row, i]) for i in path[row, : int(count[row])]]
        _, wanted = sequential(model, params, prefixes[row] + kept)
        for got, want in zip(
            jax.tree.leaves(committed), jax.tree.leaves(wanted), strict=True
        ):
            np.testing.assert_allclose(got[row], want[0], atol=TOLERANCE)


def test_commit_drops_what_does_not_fit():
    """3 rows at slot 30 of 32: two are written, none wraps or clamps."""
    cache = cache_lib.init(PLAIN, 1, CAPACITY, jnp.float32)
    shape = (1, PLAIN.num_layers, PLAIN.num_kv_heads, 3, PLAIN.head_size)
    rows = jax.tree.map(lambda _: jnp.ones(shape, jnp.float32), cache)
    start, count = jnp.asarray([30], jnp.int32), jnp.asarray([3], jnp.int32)
    written = cache_lib.commit(cache, rows, None, start, count)
    for leaf in jax.tree.leaves(written):
        used = np.asarray(leaf)[..., 0].reshape(-1, CAPACITY)
        np.testing.assert_array_equal(used.any(axis=0), np.arange(CAPACITY) >= 30)


def test_commit_of_none_writes_nothing():
    cache = cache_lib.init(PLAIN, 1, CAPACITY, jnp.float32)
    shape = (1, PLAIN.num_layers, PLAIN.num_kv_heads, 2, PLAIN.head_size)
    rows = jax.tree.map(lambda _: jnp.ones(shape, jnp.float32), cache)
    zero = jnp.zeros((1,), jnp.int32)
    for leaf in jax.tree.leaves(cache_lib.commit(cache, rows, None, zero, zero)):
        assert not np.asarray(leaf).any()


def test_head_caps_logits_and_ties():
    model, params, _, tree, cache = scene("loaded")
    hidden = forward(model, params, tree, cache, START).hidden[:, 0]
    logits = model.target.head(params, hidden)
    raw = np.asarray(hidden) @ np.asarray(params["embed"]).T
    assert logits.dtype == jnp.float32
    np.testing.assert_allclose(logits, 5 * np.tanh(raw / 5), atol=TOLERANCE)


def test_bfloat16_runs_and_keeps_float32_logits():
    model, params, _, tree, cache = scene("loaded")
    exact = forward(model, params, tree, cache, START).hidden

    def narrow(x):
        return x.astype(jnp.bfloat16)

    model = model_lib.Model(config=model.config, dtype="bfloat16")
    params, cache = jax.tree.map(narrow, params), jax.tree.map(narrow, cache)
    out = forward(model, params, tree, cache, START)
    assert out.hidden.dtype == jnp.bfloat16
    assert model.target.head(params, out.hidden[:, 0]).dtype == jnp.float32
    apart = np.abs(np.asarray(out.hidden, np.float32) - np.asarray(exact))
    assert apart[0].max() < 0.2


def test_shapes_of_a_big_model_without_memory():
    config = config_lib.ModelConfig(
        family="llama",
        vocab_size=128256,
        embed_size=8192,
        num_layers=80,
        num_heads=64,
        num_kv_heads=8,
        head_size=128,
        mlp_size=28672,
        max_context=131072,
    )
    params = jax.eval_shape(lambda: decoder.init_params(config, jax.random.key(0)))
    assert sum(x.size for x in jax.tree.leaves(params)) == 70_553_706_496
    assert params["layers"][0]["qkv"].shape == (8192, 8 * 10 * 128)


def test_equal_models_share_one_target():
    first = model_lib.Model(config=PLAIN)
    second = model_lib.Model(config=PLAIN)
    assert first.target is second.target
    assert hash(first) == hash(second)
    assert first.target.vocab_size == 31
    assert first.target.max_context == 64


@pytest.mark.parametrize("write", [cache_lib.commit, cache_lib._scatter_rows])
@pytest.mark.parametrize("start", [0, 3, 11, 12, 15, 16])
@pytest.mark.parametrize("count", [0, 1, 5])
def test_a_path_is_committed(write, start, count):
    """Row 0 of three rows: what fits of the path, and nothing else changes."""
    slots, length = 16, 5
    keys = jax.random.split(jax.random.key(0), 2)
    buffer = jax.random.normal(keys[0], (3, 3, 2, slots, 4))
    new = jax.random.normal(keys[1], (3, 3, 2, length + 3, 4))
    path = jnp.asarray([[0, 2, 3, 6, 7], [1, 1, 1, 1, 1], [0] * 5], jnp.int32)
    at, number = jnp.asarray([[start, 2, 9], [count, 1, 0]], jnp.int32)
    cache, rows = cache_lib.KVCache(buffer, -buffer), cache_lib.KVCache(new, -new)
    done = jax.jit(write)(cache, rows, path, at, number)

    expected = np.array(buffer)
    fits = max(min(count, slots - start), 0)
    picked = np.asarray(new)[0][:, :, np.asarray(path[0, :fits])]
    expected[0, :, :, start : start + fits] = picked
    expected[1, :, :, 2] = new[1, :, :, 1]
    np.testing.assert_array_equal(done.k, expected)
    np.testing.assert_array_equal(done.v, -expected)


@pytest.mark.native
def test_logits_do_not_depend_on_how_many_nodes_are_scored(smollm2):
    """Bit for bit, two layers of the real model with its weights as stored."""
    lm = checkpoints.truncate(smollm2, 2)
    target = lm.model.target
    tokens = np.random.default_rng(0).integers(100, 40_000, (1, 16)).astype(np.int32)
    start = jnp.zeros((1,), jnp.int32)

    @functools.partial(jax.jit, static_argnames="width")
    def logits(params, width):
        history = history_lib.create(jnp.asarray(tokens), start + 16, 64)
        tree = tree_lib.trunk(history, start, start + width, width)
        scored = target.forward(params, tree, target.init(1, 64), start, ())
        return target.head(params, scored.hidden[0])

    whole = np.asarray(logits(lm.params, 16))
    for width in (1, 2, 4, 8):
        np.testing.assert_array_equal(logits(lm.params, width), whole[:width])
