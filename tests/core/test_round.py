"""What a round hands to a drafter: features, next tokens and best ids, all in place."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import build, drafters, sampling
from specjax.core import contracts
from specjax.core import tree as tree_lib
from specjax.core.round import decode_plan, prompt_plan
from specjax.decoding import programs
from specjax.verify.exact import exact
from tests import tiny_model

CAPACITY, FEATURES, TOP = 256, (0, -1), 2
TEXTS = ("the ban and the ban and the ban", "an owl")


def recorder() -> contracts.Drafter:
    """Prompt lookup that notes, at each position, what it is told about it."""
    lookup = drafters.prompt_lookup(max_draft=5)
    width = len(FEATURES) * tiny_model.config().embed_size

    def init(params, rows, capacity):
        return {
            "features": jnp.zeros((rows, capacity, width), jnp.float32),
            "next": jnp.full((rows, capacity), -1, jnp.int32),
            "top": jnp.full((rows, capacity, TOP), -1, jnp.int32),
            "start": jnp.zeros((rows,), jnp.int32),
        }

    def propose(params, state, view, tree):
        return lookup.propose(params, (), view, tree)[0], state

    def observe(params, state, view, tree, outcome):
        step = jnp.arange(outcome.path_slot.shape[1])[None]
        inside = step < outcome.num_path[:, None]
        at = jnp.where(inside, state["start"][:, None] + step, CAPACITY)
        put = jax.vmap(lambda row, at, new: row.at[at].set(new, mode="drop"))
        index = outcome.path_slot[:, :, None]
        top = jnp.take_along_axis(outcome.top_ids, index, axis=1)
        return {
            "features": put(state["features"], at, outcome.features),
            "next": put(state["next"], at, outcome.token),
            "top": put(state["top"], at, top),
            "start": state["start"] + outcome.num_path,
        }

    return lookup._replace(
        init=init,
        propose=propose,
        observe=observe,
        needs=contracts.Needs(features=FEATURES, top_k=TOP, prompt_top_k=True),
    )


@pytest.fixture(scope="module")
def lm():
    return tiny_model.language_model()


@pytest.fixture(scope="module")
def finished(lm):
    """The state of two rows after prompts in chunks of 4 and drafts of 5."""
    recipe = programs.recipe(
        lm.model.target, recorder(), exact(), widths=(1,), prompt_widths=(4,)
    )
    params = {"target": lm.params, "drafter": {}, "verifier": {}}
    ids = [lm.tokenizer.encode(text) for text in TEXTS]
    tokens = np.zeros((2, CAPACITY), np.int32)
    for row, prompt in enumerate(ids):
        tokens[row, : len(prompt)] = prompt
    lengths = jnp.asarray([len(prompt) for prompt in ids], jnp.int32)
    sampled = sampling(2, max_new_tokens=30)
    state = programs.blank(recipe, params, 2, CAPACITY)
    run = jax.jit(functools.partial(programs.prompt, recipe))
    state = run(params, state, jnp.asarray(tokens), lengths, sampled)
    run = jax.jit(functools.partial(programs.decode, recipe))
    return run(params, state, sampled, jnp.int32(100))


@pytest.fixture(scope="module")
def scored(lm, finished):
    """One forward over the finished texts: features f[B, S, F], logits f[B, S, V]."""
    history, target = finished.history, lm.model.target
    zeros = jnp.zeros_like(history.length)
    tree = tree_lib.trunk(history, zeros, history.length, 64)
    cache = target.init(2, CAPACITY)
    out = jax.jit(target.forward, static_argnums=4)(
        lm.params, tree, cache, zeros, FEATURES
    )
    flat = out.hidden.reshape(2 * 64, -1)
    return out.features, target.head(lm.params, flat).reshape(2, 64, -1)


def seen(finished, row):
    """Positions that the recorder was told about, with the row's tokens."""
    count = int(finished.drafter["start"][row])
    assert count == int(finished.num_cached[row])
    assert count >= int(finished.history.length[row]) - 1
    return count, np.asarray(finished.history.tokens[row])


def test_drafts_were_accepted(finished):
    assert int(jnp.min(finished.stats.accepted)) > 0


@pytest.mark.parametrize("row", [0, 1])
def test_features_of_the_path(finished, scored, row):
    count, _ = seen(finished, row)
    ours = np.asarray(finished.drafter["features"][row, :count])
    np.testing.assert_allclose(ours, scored[0][row, :count], atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("row", [0, 1])
def test_the_token_after_each_path_node(finished, row):
    """Pairs are aligned, over chunk boundaries and the bonus too."""
    _, tokens = seen(finished, row)
    last = int(finished.history.length[row]) - 1
    told = np.asarray(finished.drafter["next"][row, :last])
    np.testing.assert_array_equal(told, tokens[1 : last + 1])


@pytest.mark.parametrize("row", [0, 1])
def test_best_ids_after_each_node(finished, scored, row):
    count, _ = seen(finished, row)
    logits = np.asarray(scored[1][row, :count])
    told = np.asarray(finished.drafter["top"][row, :count])
    values = np.take_along_axis(logits, told, axis=1)
    best = -np.sort(-logits, axis=1)[:, :TOP]
    np.testing.assert_allclose(values, best, atol=1e-3)


@pytest.mark.parametrize("row", [0, 1])
def test_log_probs_of_the_emitted_tokens(finished, scored, row):
    start = int(finished.history.prompt_length[row])
    length = int(finished.history.length[row])
    logits = np.asarray(scored[1][row, start - 1 : length - 1], np.float64)
    law = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    tokens = np.asarray(finished.history.tokens[row, start:length])
    expected = np.take_along_axis(law, tokens[:, None], axis=1)[:, 0]
    ours = np.asarray(finished.log_prob[row, start:length])
    np.testing.assert_allclose(ours, expected, atol=1e-3)


def test_plans_hold_every_tree():
    lookup = drafters.prompt_lookup(max_draft=9)
    assert decode_plan(lookup, (1, 4, 16), trunk=1).widths == (1, 4, 10)
    assert decode_plan(lookup, (1,), trunk=1).widths == (1, 10)
    assert decode_plan(drafters.none(), (1, 4, 16), trunk=1).widths == (1,)
    assert decode_plan(drafters.none(), (1, 2, 8), trunk=8).widths == (1, 2, 8)
    assert prompt_plan((64, 16)).widths == (16, 64)


def test_a_ladder_of_many_rungs_gives_the_same_tokens(lm):
    lookup = drafters.prompt_lookup(max_draft=6)
    text = jnp.asarray([lm.tokenizer.encode(TEXTS[0])], jnp.int32)
    lengths = jnp.asarray([text.shape[1]], jnp.int32)
    runs = []
    for widths in ((1,), (1, 2, 4)):
        options = {"widths": widths, "prompt_widths": (16,)}
        decode = build(lm.model, lookup, max_new_tokens=30, **options)
        out = jax.jit(decode)(
            decode.params(lm, lookup),
            text,
            lengths,
            sampling(1, max_new_tokens=30),
            jnp.zeros((1,), jnp.uint32),
        )
        runs.append(np.asarray(out.tokens))
        used = np.asarray(out.stats.rung[0])
        assert used.sum() == out.stats.target_calls[0]
        assert used[0] > 0
        assert used[1:].sum() > 0
    np.testing.assert_array_equal(*runs)
