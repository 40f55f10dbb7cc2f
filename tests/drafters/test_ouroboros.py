"""One pool for the draft model and for the target."""

import dataclasses
import functools
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import Engine, drafters, sampling
from specjax.cli import recipe
from specjax.decoding import programs
from specjax.drafters.compose import ouroboros as ouroboros_lib
from specjax.drafters.compose.ouroboros import ouroboros
from specjax.drafters.lookup import table as table_lib
from specjax.drafters.lookup.lookahead import lookahead
from specjax.drafters.lookup.phrase_pool import phrase_pool
from tests import tiny_model
from tests.drafters import replay

TEXT = "the ban and the ban and the"
WIDTHS = {"widths": (1,), "prompt_widths": (16,)}
SIZES = {"ngram": 4, "max_phrases": 4, "buckets": 256}
CAPACITY, MOST, DRAFT = 256, 24, 4
# The pool learns from the draft model alone: what is drafted out of it was spelt there.
SILENT = {"harvest": "none", "correct": "none"}


@functools.cache
def language_model():
    return tiny_model.language_model()


@functools.cache
def engine():
    return Engine(language_model(), **WIDTHS)


@functools.cache
def plain(temperature=0.0):
    """Ids of the text, and what follows it without speculation."""
    options = {"max_new_tokens": MOST, "temperature": temperature, "ignore_eos": True}
    return engine().encode(TEXT), engine().generate(TEXT, **options).tokens


@functools.cache
def held(layers=1):
    """Compiled programs of the published system."""
    options = {"layers": layers, "max_draft": DRAFT, "window": 3, **SIZES}
    made = drafters.make("ouroboros", language_model(), options)
    return Engine(language_model(), made, **WIDTHS).programs


def decode(spoil=lambda pool: pool, *, layers=1, temperature=0.0):
    """The state after a generation whose pool was ``spoil`` after the prompt."""
    ids, _ = plain(temperature)
    tokens = np.zeros((1, CAPACITY), np.int32)
    tokens[0, : len(ids)] = ids
    sampled = sampling(1, max_new_tokens=MOST, temperature=temperature)
    state = programs.blank(held(layers).recipe, held(layers).params, 1, CAPACITY)
    lengths = jnp.asarray([len(ids)], jnp.int32)
    state = held(layers).prompt(state, jnp.asarray(tokens), lengths, sampled)
    drafter = dataclasses.replace(state.drafter, pool=spoil(state.drafter.pool))
    state = dataclasses.replace(state, drafter=drafter)
    return held(layers).decode(state, sampled, jnp.int32(100))


def emitted(state):
    length = int(state.history.length[0])
    return state.history.tokens[0, length - MOST : length].tolist()


def emptied(pool):
    return jax.tree.map(jnp.zeros_like, pool)


def random(pool):
    """Any phrase for any key, at any age."""
    rng = np.random.default_rng(0)
    vocab = language_model().model.config.vocab_size
    return jax.tree.map(
        lambda x: jnp.asarray(rng.integers(0, vocab, x.shape), jnp.int32), pool
    )


def adversarial(pool):
    """Every token is followed by the stop id, for ever; ids out of range as well."""
    held_keys = jnp.arange(pool.key.shape[1], dtype=jnp.int32)[None, :, None]
    phrase = jnp.zeros_like(pool.phrase).at[:, :, 1].set(2**30)
    return dataclasses.replace(
        pool, key=held_keys, phrase=phrase, stamp=jnp.full_like(pool.stamp, 2**30)
    )


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("spoil", [emptied, random, adversarial])
def test_no_pool_changes_a_token(spoil, temperature):
    state = decode(spoil, temperature=temperature)
    assert emitted(state) == plain(temperature)[1]


def test_the_adversarial_pool_is_drafted_from():
    drafted = np.asarray(decode(adversarial).stats.drafted_by)[0]
    assert drafted[1] > 3 * MOST / (DRAFT + 1)


def test_every_round_emits_at_most_chain_phrase_and_one_more():
    """The target as its own draft model: all of the chain is right in every round."""
    state = decode(layers=2)
    assert emitted(state) == plain()[1]
    calls = int(state.stats.target_calls[0])
    later = MOST - 1
    assert later / (DRAFT + SIZES["ngram"]) <= calls <= -(-later // (DRAFT + 1))


def test_a_pool_that_knows_the_text_saves_calls():
    """Warm start: the next request begins with what the last one left."""
    cold = decode()
    warm = decode(lambda pool: jax.tree.map(jnp.copy, cold.drafter.pool))
    assert emitted(warm) == emitted(cold)
    assert int(warm.stats.target_calls[0]) < int(cold.stats.target_calls[0])


def test_the_window_fills_inside_the_draft_model():
    inner = decode().drafter.children[0].drafter
    assert int(inner.fill[0]) == SIZES["ngram"] - 2
    assert isinstance(inner.pool, ouroboros_lib.Lent)


def test_the_pool_is_held_once():
    state = jax.eval_shape(
        lambda: held().recipe.parts.drafter.init(held().params, 1, CAPACITY)
    )
    assert len(ouroboros_lib.pools(state)) == 1
    assert all(not ouroboros_lib.pools(child) for child in state.children)


def test_a_pool_is_lent_and_given_back():
    state = {"a": (table_lib.addressed(3, 2, phrase_tokens=2), jnp.ones((2,)))}
    (pool,) = ouroboros_lib.pools(state)
    without = ouroboros_lib.put(state, ouroboros_lib.Lent())
    assert not ouroboros_lib.pools(without)
    back = ouroboros_lib.put(without, pool)
    assert jax.tree.structure(back) == jax.tree.structure(state)
    assert ouroboros_lib.pools(back)[0] is pool


def test_what_one_spells_the_other_drafts():
    """The suffixes' drafter learns nothing itself, and drafts the other's phrases."""
    sizes = {**SIZES, "vocab_size": 7}
    first = lookahead(window=2, pool_from_prompt=False, **sizes)
    second = phrase_pool(suffixes=1, text=False, **SILENT, **sizes)
    both = ouroboros(first, second)
    prompts = [[1, 2, 3, 4, 5, 6]]
    tags = [
        tag - sum(source.num_tags for source in first.sources)
        for seen in replay.record(both, prompts, rounds=15)[0]
        for tag in seen.tags
    ]
    assert max(tags) >= 0


def test_pools_of_different_sizes_are_refused():
    both = ouroboros(lookahead(ngram=3), phrase_pool(ngram=4))
    with pytest.raises(ValueError, match=r"ouroboros: .*same ngram"):
        both.init({"drafter": {}}, 1, 32)
    both = ouroboros(drafters.none(), phrase_pool())
    with pytest.raises(ValueError, match=r"ouroboros: .*one phrase pool"):
        both.init({"drafter": {}}, 1, 32)


def test_without_a_model_lookup_drafts():
    made = drafters.make(
        "ouroboros", language_model(), {"suffixes": "2", "max_draft": "6"}
    )
    sources = {source.name: source.num_tags for source in made.drafter.sources}
    assert sources == {"prompt_lookup": 6, "phrase_pool": 2 * 3}
    assert made.drafter.needs.top_k == 0
    assert not jax.tree.leaves(made.params)


def test_the_config_builds():
    path = pathlib.Path(__file__).parents[2] / "configs" / "ouroboros.toml"
    options = {**recipe.read(path).drafter.options, "layers": 1}
    made = drafters.make("ouroboros", language_model(), options)
    assert made.drafter.bounds.nodes == 6 + 3 * 3
    assert made.fingerprint == language_model().fingerprint


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"layers": 1, "model": "x"}, "not both"),
        ({"window": 3}, "'window' is for use with a"),
        ({"layers": 1, "short_draft": 3}, "'short_draft' is for use wi"),
        ({"layers": "one"}, "layers"),
        ({"ngram": 2}, "ngram"),
    ],
)
def test_bad_options(options, match):
    with pytest.raises(ValueError, match=match):
        drafters.make("ouroboros", language_model(), options)


def test_bad_chance():
    with pytest.raises(ValueError, match="ouroboros: min_chance"):
        ouroboros(lookahead(), phrase_pool(), min_chance=2.0)
