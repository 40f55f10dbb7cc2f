"""Heads against NumPy, published trees, and where a node's token comes from."""

import collections
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import linear
from specjax.core import contracts, noise, processors, sampling
from specjax.core import history as history_lib
from specjax.core import outcome as outcome_lib
from specjax.core import template as template_lib
from specjax.core import tree as tree_lib
from specjax.drafters.neural import medusa as medusa_lib
from specjax.drafters.neural import medusa_heads, medusa_trees
from specjax.models import decoder
from tests import tiny_medusa, tiny_model

CONFIG = tiny_model.config()
IDS = np.arange(3, 250, 2, dtype=np.int32)
CHOICES = ((0,), (1,), (0, 0), (0, 1), (0, 0, 0))


@pytest.fixture(scope="module")
def target():
    return tiny_model.language_model().params


def numpy_logits(params, feature, matrix):
    """Independent forward of all heads: loops, one vector at a time."""
    heads, layers, _ = params["blocks"]["b"].shape
    rows = []
    for one in feature.astype(np.float64):
        for k in range(heads):
            z = one
            for layer in range(layers):
                h = z @ params["blocks"]["w"][k, layer].astype(np.float64)
                h = h + params["blocks"]["b"][k, layer]
                z = z + h / (1 + np.exp(-h))
            rows.append(z @ matrix(k))
    return np.stack(rows).reshape(len(feature), heads, -1)


def ours(params, target, feature):
    z = medusa_heads.hidden(params, jnp.asarray(feature))
    return medusa_heads.logits(CONFIG, params, target, z)


def features(rows=3, seed=5):
    random = np.random.default_rng(seed)
    return random.normal(size=(rows, CONFIG.embed_size)).astype(np.float32)


def test_heads_with_matrices_of_their_own(target):
    params = tiny_medusa.params(heads=3, layers=2, own=11, scale=0.3)
    expected = numpy_logits(params, features(), lambda k: params["head"][k])
    np.testing.assert_allclose(
        ours(params, target, features()), expected, rtol=2e-4, atol=2e-5
    )


@pytest.mark.parametrize("ids", [None, IDS])
def test_heads_with_the_targets_matrix(target, ids):
    params = tiny_medusa.params(heads=2, layers=2, ids=ids, scale=0.3)
    rows = np.asarray(target["embed"])
    rows = rows if ids is None else rows[ids]
    expected = numpy_logits(params, features(), lambda k: rows.T)
    np.testing.assert_allclose(
        ours(params, target, features()), expected, rtol=2e-4, atol=1e-4
    )


def test_a_head_that_is_not_tied():
    config = tiny_model.config(tied_head=False)
    target = decoder.init_params(config, jax.random.key(1))
    rows = medusa_heads.target_rows(config, target, jnp.asarray(IDS))
    np.testing.assert_array_equal(rows, np.asarray(target["head"]).T[IDS])


def test_rows_set_aside_are_the_same_rows(target):
    packed = linear.pack(np.asarray(target["embed"]), "f32")
    params = tiny_medusa.params(ids=IDS)
    aside = {**params, "rows": linear.pick(packed, IDS)}
    np.testing.assert_allclose(
        ours(aside, {}, features()), ours(params, target, features()), atol=1e-5
    )


@pytest.mark.parametrize("cap", [0.0, 3.0])
def test_fresh_heads_say_what_the_target_says(target, cap):
    config = dataclasses.replace(CONFIG, final_cap=cap)
    blocks = medusa_heads.init_blocks(jax.random.key(0), 4, 2, CONFIG.embed_size)
    feature = jnp.asarray(features())
    said = decoder.head(config, target, feature)
    for params, expected in (
        ({"blocks": blocks}, said),
        ({"blocks": blocks, "ids": jnp.asarray(IDS)}, said[:, IDS]),
    ):
        z = medusa_heads.hidden(params, feature)
        made = medusa_heads.logits(config, params, target, z)
        for k in range(4):
            np.testing.assert_allclose(made[:, k], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("mc_sim_7b_63", [10, 28, 23, 2]),
        ("vicuna_7b_stage1", [10, 32, 20, 1]),
        ("vicuna_7b_stage2", [10, 23, 23, 7]),
    ],
)
def test_published_trees(name, counts):
    choices = medusa_trees.published(name)
    found = collections.Counter(map(len, choices))
    assert [found[depth] for depth in (1, 2, 3, 4)] == counts
    assert template_lib.from_choices(choices).bounds == (63, 4, 10)
    agreed = set(choices) & set(medusa_trees.likeliest(63))
    assert len(agreed) >= 55


@pytest.mark.parametrize("nodes", [1, 15, 31, 63])
@pytest.mark.parametrize("depth", [1, 3, 4])
def test_built_in_trees_are_trees(nodes, depth):
    choices = medusa_trees.likeliest(nodes, depth, ranks=7)
    shape = template_lib.from_choices(choices)
    assert len(shape.choices) == min(nodes, 7 if depth == 1 else nodes)
    assert shape.bounds.depth <= depth
    assert shape.rank.max() < 7


def test_an_unknown_tree():
    with pytest.raises(ValueError, match=r"tree must be one of .*mc_sim_7b_63"):
        medusa_trees.published("mc_sim")


def view(tokens, lengths, *, temperature=0.0, room=30, seed=7):
    """A view of two rows; the state of the tests belongs to position length - 2."""
    history = history_lib.create(
        jnp.asarray(tokens, jnp.int32), jnp.asarray(lengths, jnp.int32), 32
    )
    options = sampling.SamplingOptions(temperature=temperature, seed=seed)
    sampled = sampling.pack([options] * 2, [0, 1])
    return contracts.View(
        history=history,
        sampling=sampled,
        processors=processors.start(history, sampled, CONFIG.vocab_size),
        start=history.length - 1,
        room=jnp.full((2,), room, jnp.int32),
        rounds=jnp.zeros((2,), jnp.int32),
    )


def drafted(params, target, seen, *, position, spine=0):
    """The tree behind the history and ``spine`` drafts of others."""
    made = medusa_lib.medusa(CONFIG, choices=CHOICES)
    history = seen.history
    tree = tree_lib.trunk(
        history, history.length - 1, jnp.ones_like(history.length), 12
    )
    if spine:
        tree = tree_lib.append_chain(
            tree,
            token=jnp.full((2, spine), 9, jnp.int32),
            count=jnp.full((2,), spine, jnp.int32),
            confidence=jnp.ones((2, spine), jnp.float32),
            anchor=jnp.zeros((2,), jnp.int32),
        )
    state = medusa_lib.MedusaState(
        feature=jnp.asarray(features(2)), position=jnp.asarray(position, jnp.int32)
    )
    grown, _ = jax.jit(made.propose)(
        {"target": target, "drafter": params}, state, seen, tree
    )
    return jax.tree.map(np.asarray, grown)


@pytest.mark.parametrize("spine", [0, 1])
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_tokens_by_rank_of_the_head_of_their_place(target, temperature, spine):
    params = tiny_medusa.params(heads=3, ids=IDS, scale=0.3)
    seen = view(np.ones((2, 9)), [9, 5], temperature=temperature)
    tree = drafted(params, target, seen, position=[7, 3], spine=spine)
    law = np.asarray(ours(params, target, features(2)), np.float64)
    law = law / (temperature or 1.0)
    chance = np.exp(law - np.log(np.exp(law).sum(-1, keepdims=True)))
    for row, length in enumerate((9, 5)):
        # The text with the spine ends at length + spine; depth d is d - 1 behind that.
        kept = [c for c in CHOICES if len(c) + spine <= 3]
        assert tree.num_nodes[row] == 1 + spine + len(kept)
        for node, choice in enumerate(kept, start=1 + spine):
            place = len(choice) - 1 + spine
            score = law[row, place]
            if temperature:
                key = seen.sampling.key[row : row + 1]
                where = jnp.asarray([length + place])
                score = score + noise.gumbel(key, where, jnp.asarray(IDS))[0]
            best = np.argsort(-score, kind="stable")[choice[-1]]
            assert tree.token[row, node] == IDS[best]
            expected = chance[row, place, best]
            np.testing.assert_allclose(tree.confidence[row, node], expected, rtol=1e-3)


@pytest.mark.parametrize(
    ("position", "room", "nodes"),
    [
        ([7, 7], 30, 5),  # the state of this text
        ([-1, -1], 30, 0),  # none yet
        ([8, 12], 30, 0),  # of a text that is longer
        ([5, 5], 30, 2),  # two tokens came unseen: the last head is left
        ([4, 0], 30, 0),  # no head is left
        ([7, 7], 0, 0),
        ([7, 7], 1, 0),
        ([7, 7], 2, 2),
        ([7, 7], 3, 4),
    ],
)
def test_how_much_is_drafted(target, position, room, nodes):
    params = tiny_medusa.params(heads=3, ids=IDS)
    seen = view(np.ones((2, 9)), [9, 9], room=room)
    tree = drafted(params, target, seen, position=position)
    np.testing.assert_array_equal(tree.num_nodes, 1 + nodes)


def test_the_hidden_state_of_the_paths_end_is_kept():
    made = medusa_lib.medusa(CONFIG, choices=CHOICES)
    params = {"drafter": tiny_medusa.params()}
    state = made.init(params, 2, 32)
    seen = dataclasses.replace(
        view(np.ones((2, 9)), [9, 9]), start=jnp.asarray([6, 6], jnp.int32)
    )
    given = jnp.asarray(features(8)).reshape(2, 4, -1)
    outcome = outcome_lib.Outcome(
        path_slot=jnp.zeros((2, 4), jnp.int32),
        num_path=jnp.asarray([2, 0], jnp.int32),
        token=jnp.zeros((2, 4), jnp.int32),
        num_new=jnp.ones((2,), jnp.int32),
        log_prob=jnp.zeros((2, 4), jnp.float32),
        features=given,
    )
    after = made.observe(params, state, seen, None, outcome)
    np.testing.assert_array_equal(after.position, [7, -1])
    np.testing.assert_array_equal(after.feature[0], given[0, 1])
    np.testing.assert_array_equal(after.feature[1], 0)
