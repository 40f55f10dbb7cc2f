"""What heads learn: labels by hand, weights, and gradients that go the right way."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.core import contracts, processors, sampling
from specjax.core import history as history_lib
from specjax.core import tree as tree_lib
from specjax.drafters.neural import medusa as medusa_lib
from specjax.drafters.neural import medusa_heads
from specjax.models import decoder
from specjax.training import objective
from specjax.training.objectives import medusa
from tests import tiny_model

CONFIG = tiny_model.config()
E = CONFIG.embed_size


@pytest.fixture(scope="module")
def target():
    return tiny_model.language_model().params


def batch(tokens, *, segment=None, answer=None):
    tokens = jnp.asarray(tokens, jnp.int32)
    ones = jnp.ones_like(tokens)
    return objective.Batch(
        tokens=tokens,
        segment=ones if segment is None else jnp.asarray(segment, jnp.int32),
        position=jnp.cumsum(ones, axis=1) - 1,
        answer=ones > 0 if answer is None else jnp.asarray(answer) > 0,
    )


def taught(rows, length, seed=0):
    random = np.random.default_rng(seed)
    hidden = jnp.asarray(random.normal(size=(rows, length, E)), jnp.float32)
    return objective.Taught(hidden=hidden, features=hidden[..., :0])


def test_labels_by_hand():
    #            prompt  answer          other document  padding
    given = batch(
        [[4, 5, 6, 7, 8, 9, 5, 6, 7, 0]],
        segment=[[1, 1, 1, 1, 1, 1, 2, 2, 2, 0]],
        answer=[[0, 0, 1, 1, 1, 1, 1, 1, 1, 0]],
    )
    ids = jnp.asarray([5, 7, 9], jnp.int32)
    first = medusa.labels(given, ids, 0)
    # At 1 the target says 6 (an answer), head 0 is to say 7; at 0 it says a prompt's.
    learnt = [0, 1, 1, 1, 0, 0, 1, 0, 0, 0]
    np.testing.assert_array_equal(first.learnt[0], np.asarray(learnt) > 0)
    # Tokens two on: 6 7 8 9 5 6 7 0; of those 7, 9, 5 and 7 are in the vocabulary.
    np.testing.assert_array_equal(
        first.known[0, :8], np.asarray([0, 1, 0, 1, 1, 0, 1, 0]) > 0
    )
    np.testing.assert_array_equal(first.index[0, [1, 3, 4, 6]], [1, 2, 0, 1])
    third = medusa.labels(given, ids, 2)
    np.testing.assert_array_equal(third.learnt[0], np.asarray([0, 1] + [0] * 8) > 0)
    assert third.index[0, 1] == 2  # 9, four on


def numpy_loss(logits, wanted, mask):
    law = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    each = -(wanted * law).sum(-1)
    return (mask * each).sum() / mask.sum()


@pytest.mark.parametrize("soft", [False, True])
def test_the_loss_is_a_weighed_sum_over_heads(target, soft):
    ids = np.arange(0, 260, 3)
    made = medusa.medusa_objective(CONFIG, heads=2, ids=ids, soft=soft)
    tokens = np.random.default_rng(1).choice(ids[:20], (2, 7))
    given, said = batch(tokens), taught(2, 7)
    frozen = made.freeze(target)
    params = made.init(jax.random.key(0), frozen)
    params = jax.tree.map(
        lambda x: x + 0.2 * jax.random.normal(jax.random.key(3), x.shape), params
    )
    loss, report = jax.jit(made.loss)(params, frozen, given, said, jax.random.key(1))
    hidden = np.asarray(said.hidden, np.float64)
    rows = np.asarray(target["embed"], np.float64)[ids]
    expected = 0.0
    for k in range(2):
        kept = 7 - 2 - k  # positions with a label in the row
        h = hidden @ np.asarray(params["blocks"]["w"][k, 0], np.float64)
        h = h + np.asarray(params["blocks"]["b"][k, 0])
        logits = ((hidden + h / (1 + np.exp(-h))) @ rows.T)[:, :kept]
        if soft:
            law = hidden[:, 1 + k : 1 + k + kept] @ rows.T
            wanted = np.exp(law) / np.exp(law).sum(-1, keepdims=True)
        else:
            wanted = tokens[:, 2 + k :, None] == ids
        one = numpy_loss(logits, wanted, np.ones((2, kept)))
        np.testing.assert_allclose(report[f"loss_{k + 1}"], one, rtol=1e-4)
        expected += 0.8**k * one
    np.testing.assert_allclose(loss, expected, rtol=1e-4)


def test_fresh_heads_are_the_targets_own(target):
    made = medusa.medusa_objective(CONFIG, heads=3, layers=2, own_head=True)
    frozen = made.freeze(target)
    params = made.init(jax.random.key(0), frozen)
    assert not any(np.any(x) for x in jax.tree.leaves(params["blocks"]))
    feature = taught(1, 4).hidden[0]
    expected = decoder.head(CONFIG, target, feature)
    z = medusa_heads.hidden(params, feature)
    said = medusa_heads.logits(CONFIG, params, {}, z)
    for k in range(3):
        np.testing.assert_allclose(said[:, k], expected, rtol=1e-5, atol=1e-4)


def test_ranks_count_what_is_liked_better(target):
    ids = np.asarray([2, 5, 9, 11])
    made = medusa.medusa_objective(CONFIG, heads=2, ids=ids)
    frozen = made.freeze(target)
    params = made.init(jax.random.key(0), frozen)
    given, said = batch([[5, 9, 2, 7, 11]]), taught(1, 5)
    ranks = made.ranks(params, frozen, given, said)
    assert ranks.shape == (1, 5, 2)
    scores = np.asarray(said.hidden[0]) @ np.asarray(target["embed"])[ids].T
    for t, k, index in ((0, 0, 0), (2, 0, 3), (1, 1, 3)):
        assert ranks[0, t, k] == np.sum(scores[t] > scores[t, index])
    assert ranks[0, 1, 0] == objective.OUTSIDE  # 7 is in no vocabulary
    assert ranks[0, 0, 1] == objective.OUTSIDE
    assert ranks[0, 4, 0] == objective.OUTSIDE  # past the end


def test_the_drafter_drafts_what_ranks_say_is_first(target):
    """The token t + 1 is the last of the text, and the state that of token t."""
    at, heads = 3, 3
    made = medusa.medusa_objective(CONFIG, heads=heads, ids=range(0, 260, 2))
    frozen, said = made.freeze(target), taught(1, 9)
    trained = jax.tree.map(
        lambda x: x + 0.2 * jax.random.normal(jax.random.key(3), x.shape),
        made.init(jax.random.key(0), frozen),
    )
    text = history_lib.create(jnp.full((1, 9), 8, jnp.int32), jnp.asarray([at + 2]), 9)
    sampled = sampling.pack([sampling.SamplingOptions()], [0])
    view = contracts.View(
        history=text,
        sampling=sampled,
        processors=processors.start(text, sampled, CONFIG.vocab_size),
        start=text.length - 1,
        room=jnp.asarray([9]),
        rounds=jnp.asarray([0]),
    )
    drafter = medusa_lib.medusa(CONFIG, choices=((0,), (0, 0), (0, 0, 0)))
    tree, _ = drafter.propose(
        {"target": target, "drafter": {**trained, "ids": frozen["ids"]}},
        medusa_lib.MedusaState(
            feature=said.hidden[:, at], position=jnp.asarray([at], jnp.int32)
        ),
        view,
        tree_lib.trunk(text, text.length - 1, jnp.ones_like(text.length), 4),
    )
    drafts = np.asarray(tree.token)[0, 1:]
    tokens = np.full((1, 9), 8)
    tokens[0, at + 2 : at + 2 + heads] = drafts
    ranks = made.ranks(trained, frozen, batch(tokens), said)
    np.testing.assert_array_equal(ranks[0, at], 0)
    tokens[0, at + 3] = next(token for token in range(10, 20, 2) if token != drafts[1])
    ranks = made.ranks(trained, frozen, batch(tokens), said)
    assert list(np.asarray(ranks)[0, at] > 0) == [False, True, False]


@pytest.mark.parametrize("own_head", [False, True])
def test_steps_down_the_gradient_lower_the_loss(target, own_head):
    made = medusa.medusa_objective(
        CONFIG, heads=2, ids=range(0, 260, 2), soft=False, own_head=own_head
    )
    frozen = made.freeze(target)
    params = made.init(jax.random.key(0), frozen)
    tokens = np.random.default_rng(1).integers(0, 130, (2, 12)) * 2
    given, said = batch(tokens), taught(2, 12)

    def loss(params):
        return made.loss(params, frozen, given, said, jax.random.key(0))[0]

    step = jax.jit(jax.value_and_grad(loss))
    first, _ = step(params)
    for _ in range(20):
        _, slope = step(params)
        params = jax.tree.map(lambda x, g: x - 0.4 * g, params, slope)
    last, slope = step(params)
    assert last < 0.8 * first
    assert all(np.any(g) for g in jax.tree.leaves(slope))


def test_rows_too_short_for_a_head(target):
    made = medusa.medusa_objective(CONFIG, heads=3)
    frozen = made.freeze(target)
    params = made.init(jax.random.key(0), frozen)
    loss, _ = made.loss(
        params, frozen, batch([[3, 4]]), taught(1, 2), jax.random.key(0)
    )
    assert loss == 0


@pytest.mark.parametrize(
    "options",
    [
        {"heads": 0},
        {"layers": 0},
        {"decay": 0.0},
        {"ids": [3, 2]},
        {"ids": [2, 2]},
        {"ids": []},
        {"ids": [0, 260]},
        {"ids": [-1, 3]},
    ],
)
def test_refused(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        medusa.medusa_objective(CONFIG, **options)
