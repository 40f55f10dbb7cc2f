"""Rules that keep the law: the whole loop against exact enumeration.

A model of six tokens, a drafter that draws from laws, thousands of rows that differ in
their seed: the joint law of the first tokens is that of the model.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import build, drafters, sampling, verify
from specjax.core import contracts, noise
from specjax.core import history as history_lib
from specjax.core import tree as tree_lib
from specjax.models import decoder
from specjax.models import model as model_lib
from specjax.verify.candidates import draw_without_replacement
from tests import tiny_model

VOCAB, ROWS, TOKENS = 6, 4096, 3
PROMPT = (1, 4, 2)
# Far from the model's law, so that many drafts are refused.
LAW = np.array([0.4, 0.3, 0.15, 0.1, 0.05, 0.0], np.float32)


def sampled_drafter(children: int) -> contracts.Drafter:
    """Draws ``children`` tokens of the next position from LAW, then one below each."""
    nodes = 2 * children

    def propose(params, state, view, tree):
        rows = view.room.shape[0]
        law = jnp.broadcast_to(jnp.asarray(LAW)[None], (rows, VOCAB))
        key = noise.lane(view.sampling.key, noise.LANE_DRAFT, view.rounds)
        here = view.history.length
        first = draw_without_replacement(law, key, here, children)
        # Each child draws below itself with noise of its own.
        below = [
            draw_without_replacement(law, key, here + 1 + 1000 * c, 1)[:, 0]
            for c in range(children)
        ]
        token = jnp.concatenate([first, jnp.stack(below, axis=1)], axis=1)
        parent = jnp.asarray([-1] * children + list(range(children)), jnp.int32)
        tree = tree_lib.append(
            tree,
            token=token,
            parent=parent,
            count=jnp.where(view.room > 0, nodes, 0),
            tag=jnp.arange(nodes, dtype=jnp.int32),
            confidence=jnp.ones((rows, nodes), jnp.float32),
            anchor=tree_lib.spine_end(tree),
            law=jnp.zeros((rows, nodes), jnp.int32),
            laws=law[:, None],
        )
        return tree, state

    return drafters.none()._replace(
        propose=propose,
        bounds=contracts.Bounds(nodes=nodes, depth=2, branching=children),
        needs=contracts.Needs(laws=True),
        sources=(contracts.Source("sampled", nodes),),
    )


@pytest.fixture(scope="module")
def small():
    """(model, params) over six tokens."""
    shape = tiny_model.config(vocab_size=VOCAB)
    params = decoder.init_params(shape, jax.random.key(3))
    params = jax.tree.map(lambda x: x * 8.0 if x.ndim > 1 else x, params)
    return model_lib.Model(config=shape), params


@functools.cache
def compiled(model, drafter, verifier):
    """One program for every test of a pair."""
    decode = build(
        model,
        drafter,
        max_new_tokens=TOKENS,
        verifier=verifier,
        widths=(1,),
        prompt_widths=(4,),
    )
    return jax.jit(decode)


def generate(small, drafter, verifier, temperature):
    model, params = small
    tokens = jnp.broadcast_to(jnp.asarray(PROMPT, jnp.int32)[None], (ROWS, 3))
    return compiled(model, drafter, verifier)(
        {"target": params, "drafter": {}, "verifier": {}},
        tokens,
        jnp.full((ROWS,), 3, jnp.int32),
        sampling(ROWS, max_new_tokens=TOKENS, temperature=temperature),
        jnp.arange(ROWS, dtype=jnp.uint32),
    )


@pytest.fixture(scope="module")
def joint(small):
    """Exact joint law of the first three tokens at temperature 0.9, f64[V, V, V]."""
    model, params = small
    states = np.stack(np.meshgrid(*[np.arange(VOCAB)] * 2, indexing="ij"), -1)
    texts = np.concatenate(
        [np.tile(PROMPT, (VOCAB**2, 1)), states.reshape(-1, 2)], axis=1
    ).astype(np.int32)
    rows, length = texts.shape
    full = jnp.full((rows,), length, jnp.int32)
    history = history_lib.create(jnp.asarray(texts), full, 16)
    tree = tree_lib.trunk(history, jnp.zeros_like(full), full, length)
    cache = model.target.init(rows, 16)
    scored = model.target.forward(params, tree, cache, jnp.zeros_like(full), ())
    logits = model.target.head(params, scored.hidden.reshape(rows * length, -1))
    law = jax.nn.softmax(np.asarray(logits, np.float64) / 0.9, axis=-1)
    law = np.asarray(law).reshape(VOCAB, VOCAB, length, VOCAB)
    first, second, third = law[0, 0, 2], law[:, 0, 3], law[:, :, 4]
    return first[:, None, None] * second[:, :, None] * third


CASES = {
    "exact": (2, verify.exact),
    "rejection": (1, verify.rejection),
    "without_replacement": (2, verify.without_replacement),
    "rejection_of_point_masses": (1, verify.rejection),
}


@functools.cache
def case(name):
    children, rule = CASES[name]
    drafter = sampled_drafter(children)
    if name == "rejection_of_point_masses":
        drafter = _deterministic(drafter)
    return drafter, rule()


def _deterministic(drafter):
    """Always drafts 0 and 0, as point masses."""

    def propose(params, state, view, tree):
        rows = view.room.shape[0]
        tree = tree_lib.append_chain(
            tree,
            token=jnp.zeros((rows, 2), jnp.int32),
            count=jnp.where(view.room > 0, 2, 0),
            confidence=jnp.ones((rows, 2), jnp.float32),
            anchor=tree_lib.spine_end(tree),
        )
        return tree, state

    return drafter._replace(propose=propose)


@pytest.mark.parametrize("name", CASES)
def test_the_joint_law_is_the_model_s(small, joint, name):
    drafter, rule = case(name)
    out = generate(small, drafter, rule, temperature=0.9)
    assert bool(jnp.all(out.num_new == TOKENS))
    assert int(jnp.sum(out.stats.accepted)) > ROWS / 20
    counts = np.zeros((VOCAB,) * 3)
    np.add.at(counts, tuple(np.asarray(out.tokens).T), 1)
    distance = 0.5 * np.abs(counts / ROWS - joint).sum()
    # Expected distance of a sample of this size is at most half the sum of the
    # standard deviations of the cells.
    noise_level = 0.5 * np.sqrt(joint * (1 - joint) / ROWS).sum()
    assert distance < 1.25 * noise_level


def test_a_law_that_is_not_the_drafts_own_is_seen(small, joint):
    """The same test fails when the drafter lies about its law."""
    drafter = sampled_drafter(1)

    def lie(params, state, view, tree):
        tree, state = drafter.propose(params, state, view, tree)
        flat = jnp.full_like(tree.laws, 1 / VOCAB)
        return dataclasses.replace(tree, laws=flat), state

    out = generate(small, drafter._replace(propose=lie), verify.rejection(), 0.9)
    counts = np.zeros((VOCAB,) * 3)
    np.add.at(counts, tuple(np.asarray(out.tokens).T), 1)
    distance = 0.5 * np.abs(counts / ROWS - joint).sum()
    noise_level = 0.5 * np.sqrt(joint * (1 - joint) / ROWS).sum()
    assert distance > 2 * noise_level


def test_all_rules_are_greedy_at_temperature_0(small):
    runs = [generate(small, *case(name), 0.0).tokens for name in CASES]
    for other in runs[1:]:
        np.testing.assert_array_equal(runs[0], other)


def test_a_rule_for_one_child_refuses_more(small):
    model, _ = small
    with pytest.raises(ValueError, match="at most 1 children"):
        build(model, sampled_drafter(2), max_new_tokens=1, verifier=verify.rejection())
