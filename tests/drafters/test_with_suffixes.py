"""A chain, and suffixes behind it."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import pytest

from specjax.core import contracts
from specjax.core import history as history_lib
from specjax.core import round as round_lib
from specjax.core import sampling as sampling_lib
from specjax.core import tree as tree_lib
from specjax.decoding import programs
from specjax.drafters.compose.with_suffixes import with_suffixes
from specjax.drafters.lookup import phrases
from specjax.drafters.lookup.phrase_pool import phrase_pool
from specjax.verify.exact import exact
from tests.drafters import replay
from tests.drafters.fixed import fixed

CHAIN = fixed((1, -1, 0.5), (2, 0, 0.5), name="chain")
FORK = fixed((3, -1, 0.5), (4, -1, 0.5), (5, 0, 0.5), name="fork")
PROMPTS = [[1, 2, 3], [4, 5, 6, 0, 1, 2]]
VOCAB, NGRAM = 10, 4
OPTIONS = sampling_lib.SamplingOptions(max_new_tokens=40)


def drafts(drafter, room=20):
    """(token, parent) of what is drafted after 1 2 3, and the tags."""
    history = history_lib.create(
        jnp.asarray([[1, 2, 3]], jnp.int32), jnp.asarray([3], jnp.int32), 32
    )
    view = contracts.View(
        history=history,
        sampling=None,
        processors=None,
        start=history.length - 1,
        room=jnp.asarray([room], jnp.int32),
        rounds=jnp.zeros((1,), jnp.int32),
    )
    one = jnp.ones((1,), jnp.int32)
    root = tree_lib.trunk(history, view.start, one, 1 + drafter.bounds.nodes)
    params = {"target": {}, "drafter": {}}
    state = drafter.init(params, 1, 32)
    tree, _ = jax.jit(drafter.propose)(params, state, view, root)
    nodes = slice(1, int(tree.num_nodes[0]))
    parents = (tree.parent[0, nodes] - 1).tolist()
    tokens = tree.token[0, nodes].tolist()
    return list(zip(tokens, parents, strict=True)), tree.tag[0, nodes].tolist()


def test_suffixes_hang_under_the_end_of_the_chain():
    nodes, tags = drafts(with_suffixes(CHAIN, FORK))
    assert nodes == [(1, -1), (2, 0), (3, 1), (4, 1), (5, 2)]
    assert tags == [0, 1, 2, 3, 4]


def test_bounds_add_up():
    both = with_suffixes(CHAIN, FORK)
    assert both.bounds == (2 + 3, 2 + 2, 2)
    assert [source.name for source in both.sources] == ["chain", "fork"]
    assert with_suffixes(CHAIN, CHAIN).bounds.branching == 1  # still a chain


def test_only_behind_chains_that_are_likely_enough():
    """The chain is accepted whole with a chance of 0.5 * 0.5."""
    assert len(drafts(with_suffixes(CHAIN, FORK, min_chance=0.25))[0]) == 5
    assert len(drafts(with_suffixes(CHAIN, FORK, min_chance=0.26))[0]) == 2
    # Without a chain the suffixes continue what is certain.
    silent = phrase_pool(suffixes=0)
    assert len(drafts(with_suffixes(silent, FORK, min_chance=1.0))[0]) == 3


def test_without_suffixes_it_is_the_child():
    silent = phrase_pool(suffixes=0)
    alone = replay.record(CHAIN, PROMPTS, rounds=5)
    none = replay.record(with_suffixes(CHAIN, silent), PROMPTS, rounds=5)
    assert [[seen.drafts for seen in run] for run in alone] == [
        [seen.drafts for seen in run] for run in none
    ]


# A target that knows one next token for each token, the drafted chain 4 after the text
# 1, and two suffixes of 4: 7 8 9 and 7 3 3.
NEXT = [0, 4, 0, 0, 7, 0, 0, 8, 5, 1]
SUFFIXES = ((7, 8, 9), (7, 3, 3))


@functools.cache
def compiled():
    """A recipe over a target whose params are its table, and its jitted round."""

    def head(params, hidden):
        return jax.nn.one_hot(params[hidden[:, 0].astype(jnp.int32)], VOCAB)

    pool = phrase_pool(ngram=NGRAM, suffixes=2, max_phrases=2, buckets=4)
    recipe = programs.recipe(
        replay.scripted_target(VOCAB)._replace(head=head),
        with_suffixes(fixed((4, -1, 0.5)), pool),
        exact(),
        widths=(1,),
        prompt_widths=(4,),
    )
    run = jax.jit(functools.partial(round_lib.run, recipe.parts, recipe.decode_plan))
    return recipe, run


def one_round(following=NEXT[8], suffixes=SUFFIXES):
    """What a round emits; ``following`` is what the target says after 8."""
    recipe, run = compiled()
    table = jnp.asarray([*NEXT[:8], following, NEXT[9]], jnp.int32)
    params = {"target": table, "drafter": {}, "verifier": {}}
    sampling = sampling_lib.pack([OPTIONS], [0])
    tokens = jnp.zeros((1, 64), jnp.int32).at[0, 1].set(1)
    state = programs.blank(recipe, params, 1, 64)
    state = programs.resume(
        recipe, state, tokens, jnp.asarray([2], jnp.int32), sampling
    )
    first, second = state.drafter
    pool = phrases.insert(
        second.pool,
        jnp.full((1, 2), 4, jnp.int32),
        jnp.asarray([suffixes], jnp.int32),
        jnp.ones((1, 2), jnp.bool_),
    )
    state = dataclasses.replace(
        state,
        num_cached=jnp.asarray([1], jnp.int32),
        drafter=(first, dataclasses.replace(second, pool=pool)),
    )
    state = run(params, state, sampling)
    return state.history.tokens[0, 2 : int(state.history.length[0])].tolist()


def test_the_suffix_that_goes_furthest_is_kept():
    """The target says 4, then 7, 8, 5: two tokens of 7 8 9 and one of 7 3 3."""
    assert one_round() == [4, 7, 8, 5]


def test_a_suffix_that_matches_whole_keeps_the_token_after_it():
    """Where 8 is followed by 9 and 9 by 1, the reference stops before the 1."""
    assert one_round(following=9) == [4, 7, 8, 9, 1]


@pytest.mark.parametrize("following", [5, 9])
def test_the_order_of_suffixes_does_not_matter(following):
    assert one_round(following, SUFFIXES[::-1]) == one_round(following)


def test_both_observe_their_own_nodes():
    """``fixed`` counts the drafts that it was shown as its own."""
    both = with_suffixes(CHAIN, FORK)
    recipe = programs.recipe(
        replay.scripted_target(VOCAB), both, exact(), widths=(1,), prompt_widths=(4,)
    )
    params = {"target": {}, "drafter": {}, "verifier": {}}
    sampling = sampling_lib.pack([OPTIONS], [0])
    tokens = jnp.asarray([[1, 2, 3]], jnp.int32)
    state = programs.blank(recipe, params, 1, 64)

    def two_rounds(state):
        lengths = jnp.asarray([3], jnp.int32)
        state = programs.prompt(recipe, params, state, tokens, lengths, sampling)
        return programs.decode(recipe, params, state, sampling, jnp.int32(2))

    first, second = jax.jit(two_rounds)(state).drafter
    assert (int(first[0]), int(second[0])) == (2 * 2, 2 * 3)


@pytest.mark.parametrize("chance", [-0.1, 1.1])
def test_bad_chance(chance):
    with pytest.raises(ValueError, match="with_suffixes: min_chance"):
        with_suffixes(CHAIN, FORK, min_chance=chance)
