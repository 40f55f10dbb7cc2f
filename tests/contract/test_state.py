"""A drafter's state is a memo: it may be lost, spoilt, saved or sharded."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest

from specjax import build, make_mesh, sampling
from specjax.core import contracts, noise, processors
from specjax.core import history as history_lib
from specjax.core import sampling as sampling_lib
from specjax.core import tree as tree_lib
from specjax.decoding import programs
from specjax.decoding.build import collect
from tests.contract.conftest import CAPACITY, PROMPT_WIDTHS, TEXTS, WIDTHS

MOST = 16
ROWS = len(TEXTS)


def batch(engine, texts=TEXTS):
    """Prompts as arrays i32[B, CAPACITY], i32[B]."""
    ids = [engine.encode(text) for text in texts]
    tokens = np.zeros((len(ids), CAPACITY), np.int32)
    for row, prompt in enumerate(ids):
        tokens[row, : len(prompt)] = prompt
    return jnp.asarray(tokens), jnp.asarray([len(p) for p in ids], jnp.int32)


@pytest.fixture(scope="session")
def started(speculative):
    """(programs, state after the prompts, sampling) of a batch of all texts."""
    tokens, lengths = batch(speculative)
    options = sampling_lib.SamplingOptions(
        max_new_tokens=MOST, temperature=0.8, stop_token_ids=(0,)
    )
    sampled = sampling_lib.pack([options] * ROWS, [0] * ROWS)
    held = speculative.programs

    def start():
        state = programs.blank(held.recipe, held.params, ROWS, CAPACITY)
        return held.prompt(state, tokens, lengths, sampled)

    return held, start, sampled


def finish(held, state, sampled):
    state = held.decode(state, sampled, jnp.int32(1000))
    return np.asarray(state.history.tokens), np.asarray(state.history.length)


def assert_same(first, second):
    np.testing.assert_array_equal(first[1], second[1])
    for row, length in enumerate(first[1]):
        np.testing.assert_array_equal(first[0][row, :length], second[0][row, :length])


def test_state_survives_a_checkpoint(started, tmp_path):
    held, start, sampled = started
    expected = finish(held, start(), sampled)
    state = held.decode(start(), sampled, jnp.int32(3))
    leaves, structure = jax.tree.flatten(state)
    # A drafter without drafts has counters of size 0, which orbax refuses to save.
    saved = {str(i): leaf for i, leaf in enumerate(leaves) if leaf.size}
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "state", saved)
        checkpointer.wait_until_finished()
        shapes = jax.tree.map(ocp.utils.to_shape_dtype_struct, saved)
        loaded = checkpointer.restore(tmp_path / "state", shapes)
    restored = jax.tree.unflatten(
        structure, [loaded.get(str(i), leaf) for i, leaf in enumerate(leaves)]
    )
    assert_same(finish(held, restored, sampled), expected)


def test_a_spoilt_drafter_state_changes_no_token(started):
    held, start, sampled = started
    expected = finish(held, start(), sampled)
    state = start()
    leaves, structure = jax.tree.flatten(state.drafter)
    keys = jax.random.split(jax.random.key(1), max(len(leaves), 1))
    spoilt = [_noise_like(leaf, key) for leaf, key in zip(leaves, keys, strict=False)]
    state = dataclasses.replace(state, drafter=jax.tree.unflatten(structure, spoilt))
    assert_same(finish(held, state, sampled), expected)


def _noise_like(leaf, key):
    """Random content of the same type; integers stay within a small vocabulary."""
    if jnp.issubdtype(leaf.dtype, jnp.floating):
        return jax.random.normal(key, leaf.shape, leaf.dtype)
    return jax.random.randint(key, leaf.shape, 0, 50).astype(leaf.dtype)


def test_a_fresh_drafter_state_in_mid_run_changes_no_token(started):
    """A row that joins, or a state that was lost, catches up from the history."""
    held, start, sampled = started
    expected = finish(held, start(), sampled)
    state = held.decode(start(), sampled, jnp.int32(2))
    fresh = held.recipe.parts.drafter.init(held.params, ROWS, CAPACITY)
    state = dataclasses.replace(state, drafter=fresh)
    assert_same(finish(held, state, sampled), expected)


def test_state_leaves_lead_with_the_batch(drafter):
    params = {"target": {}, "drafter": drafter.params}
    state = jax.eval_shape(lambda: drafter.drafter.init(params, 5, CAPACITY))
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        shared = any(getattr(step, "name", None) == "shared" for step in path)
        assert shared or leaf.shape[0] == 5, jax.tree_util.keystr(path)


def test_proposals_keep_within_bounds(speculative, drafter):
    """Nodes dense, parents first, depths right, tags in range, under random text."""
    chosen = drafter.drafter
    propose, sizes = jax.jit(chosen.propose), []
    for seed in range(4):
        tree, _ = propose(*_after_a_prompt(speculative, drafter, seed))
        _check_tree(tree, chosen, speculative.lm.model.config.vocab_size)
        sizes.append(int(tree.num_nodes.max()))
    assert chosen.bounds.nodes == 0 or max(sizes) > 1, "nothing was drafted"


def _after_a_prompt(engine, drafter, seed):
    """Arguments of ``propose`` behind random text of few ids, which it has seen."""
    held, rng = engine.programs, np.random.default_rng(seed)
    lengths = jnp.asarray(rng.integers(1, 40, ROWS), jnp.int32)
    tokens = jnp.asarray(rng.integers(0, 3, (ROWS, CAPACITY)), jnp.int32)
    blank = programs.blank(held.recipe, held.params, ROWS, CAPACITY)
    sampled = sampling(ROWS, max_new_tokens=30)
    after = held.prompt(blank, tokens, lengths, sampled)
    history = history_lib.create(tokens, lengths, CAPACITY)
    if drafter.drafter.needs.features:
        # Features belong to the text up to the first new token, which no lookup finds.
        history, lengths = after.history, after.history.length
    state, slots = after.drafter, 1 + drafter.drafter.bounds.nodes
    root = tree_lib.trunk(history, lengths - 1, jnp.ones_like(lengths), slots)
    return held.params, state, _view(engine, history), root


def _view(engine, history):
    sampled = sampling(ROWS, max_new_tokens=30)
    return contracts.View(
        history=history,
        sampling=sampled,
        processors=processors.start(
            history, sampled, engine.lm.model.config.vocab_size
        ),
        start=jnp.maximum(history.length - 1, 0),
        room=jnp.full((ROWS,), 30, jnp.int32),
        rounds=jnp.zeros((ROWS,), jnp.int32),
    )


def _check_tree(tree, drafter, vocab):
    tree = jax.tree.map(np.asarray, tree)
    tags = sum(source.num_tags for source in drafter.sources)
    for row in range(tree.token.shape[0]):
        count = tree.num_nodes[row]
        assert 1 <= count <= 1 + drafter.bounds.nodes
        for slot in range(1, count):
            parent = tree.parent[row, slot]
            assert 0 <= parent < slot
            assert tree.depth[row, slot] == tree.depth[row, parent] + 1
            assert tree.depth[row, slot] <= drafter.bounds.depth
            assert 0 <= tree.token[row, slot] < vocab
            assert 0 <= tree.tag[row, slot] < tags
        children = np.bincount(tree.parent[row, 1:count], minlength=1)
        assert children.max(initial=0) <= max(drafter.bounds.branching, 1)


def test_one_program_over_a_mesh(started, speculative, drafter, lm):
    """A user's own jit, rows and model split: the same tokens as on one device."""
    held, _, sampled = started
    tokens, lengths = batch(speculative)
    seeds = jnp.arange(ROWS, dtype=jnp.uint32)
    sampled = dataclasses.replace(
        sampled, key=noise.row_keys(seeds, jnp.zeros_like(seeds))
    )
    state = programs.blank(held.recipe, held.params, ROWS, CAPACITY)
    state = held.prompt(state, tokens, lengths, sampled)
    state = held.decode(state, sampled, jnp.int32(1000))
    alone = collect(state, MOST)

    decode = build(
        lm.model,
        drafter,
        max_new_tokens=MOST,
        widths=WIDTHS,
        prompt_widths=PROMPT_WIDTHS,
        mesh=make_mesh(data=4, model=2),
    )
    params = decode.params(lm, drafter)
    assert params["target"]["embed"].sharding.spec[0] == "model"
    spread = jax.jit(decode)(params, tokens[:, :64], lengths, sampled, seeds)
    np.testing.assert_array_equal(alone.tokens, spread.tokens)
    np.testing.assert_array_equal(alone.num_new, spread.num_new)


def test_drafting_without_jit(speculative, drafter):
    """What ``propose`` drafts after a prompt is the same when nothing is compiled."""
    chosen = drafter.drafter
    arguments = _after_a_prompt(speculative, drafter, seed=0)
    fast, _ = jax.jit(chosen.propose)(*arguments)
    with jax.disable_jit():
        slow, _ = chosen.propose(*arguments)
    assert chosen.bounds.nodes == 0 or int(fast.num_nodes.max()) > 1
    np.testing.assert_array_equal(fast.num_nodes, slow.num_nodes)
    np.testing.assert_array_equal(fast.token, slow.token)
    np.testing.assert_array_equal(fast.parent, slow.parent)


def test_rounds_without_jit(plain):
    """A prompt and two rounds without jit give what the compiled programs give."""
    held = plain.programs
    tokens, lengths = batch(plain, TEXTS[3:4])
    sampled = sampling(1, max_new_tokens=3)
    state = programs.blank(held.recipe, held.params, 1, CAPACITY)
    with jax.disable_jit():
        slow = programs.prompt(
            held.recipe, held.params, state, tokens, lengths, sampled
        )
        slow = programs.decode(held.recipe, held.params, slow, sampled, jnp.int32(2))
    fast = held.decode(
        held.prompt(state, tokens, lengths, sampled), sampled, jnp.int32(2)
    )
    assert_same(
        (np.asarray(fast.history.tokens), np.asarray(fast.history.length)),
        (np.asarray(slow.history.tokens), np.asarray(slow.history.length)),
    )
