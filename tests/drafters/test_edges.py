"""Edges of drafters: each says which slip it is there for."""

import functools

import jax.numpy as jnp
import numpy as np

from specjax import datastores, drafters
from specjax.core import history as history_lib
from specjax.core import outcome as outcome_lib
from specjax.core import tree as tree_lib
from specjax.drafters import equipped
from specjax.drafters.compose.fallback import fallback
from specjax.drafters.lookup import (
    context_ngrams,
    harvest,
    match,
    max_gram,
    model_ngrams,
    table,
    token_recycling,
    votes,
)
from tests.drafters import once
from tests.drafters.fixed import fixed


def i32(values):
    return jnp.asarray(np.array(values, np.int32))


# prompt_lookup.py:_append, `+ link` dropped
def test_confidence_of_a_copy_grows_along_it():
    made = equipped.equip(drafters.prompt_lookup(max_draft=3, short_draft=3))
    (nodes,) = once.propose(made, [[1, 2, 3, 4, 5, 1, 2]])
    expected = match.confidence_after(jnp.arange(2, 5))
    np.testing.assert_allclose([n.confidence for n in nodes], expected, atol=1e-6)


# max_gram.py:_chain, `last < successor.shape[0]` dropped
def test_a_token_outside_the_table_has_no_successor():
    text = history_lib.create(i32([[1, 2, 7]]), i32([3]), 8)
    draft = max_gram.draft_after(
        text, i32([2]), max_draft=2, max_ngram=2, successor=i32([1, 1, 1])
    )
    assert draft.count.tolist() == [0]


# model_ngrams.py:propose, `last < phrase.shape[0]` dropped
def test_a_token_outside_the_n_grams_drafts_nothing():
    store = datastores.from_documents(
        [[0, 4, 1, 2]], vocab_size=5, fingerprint="x", sizes=datastores.Sizes(ngram=3)
    )
    made = model_ngrams.model_ngrams(store)
    assert once.propose(made, [[0, 4], [0, 5]])[0]
    assert not once.propose(made, [[0, 4], [0, 5]])[1]


# votes.py:grow, `chance >= least` -> `>`
def test_a_node_as_likely_as_the_least_is_drafted():
    rules = votes.Rules(
        max_nodes=2, limits=(0, 1), min_chance=1.0, chain=False, count_self=False
    )
    lone = votes.Votes(i32([1, 0]), i32([[3], [0]]), i32([1, 0]))
    sure = float(match.confidence_after(i32(1)))
    for least, count in ((sure, 1), (1.01 * sure, 0)):
        grown = votes.grow(lone, jnp.int32(5), rules._replace(min_chance=least))
        assert int(grown.count) == count


# token_recycling.py:likeliest, `len(choice)` dropped from the key
def test_of_equally_likely_nodes_the_shallower_go_first():
    shallow = 0
    for nodes in range(1, 81):
        made = token_recycling.likeliest(nodes)
        keys = sorted(
            (-round(token_recycling.chance_of(c), 9), len(c), c)
            for c in token_recycling.CHOICES
        )[:nodes]
        shallow = sum(length for _, length, _ in keys)
        assert int(np.sum(made.depth)) == shallow, nodes


def commonest(made, key, count):
    phrase, live = table.read(made, i32(key), count, order="commonest")
    return [p.tolist() for p, ok in zip(phrase, live, strict=True) if ok]


def put(made, key, *phrases):
    for phrase in phrases:
        made = table.insert(made, i32([key]), i32([phrase]), jnp.asarray([True]))
    return made


# table.py:_insert_one, `(stamp > 0) &` dropped: a forgotten count comes back
def test_what_was_forgotten_is_counted_from_one_again():
    made = put(table.addressed(4, 3, phrase_tokens=1), [1], [7], [7], [7])
    made = table.forget(made, i32([[1]]), i32([[7]]), jnp.asarray([True]))
    made = put(made, [1], [7], [8], [8])
    assert commonest(made, [1], 2) == [[8], [7]]


# table.py:read, `stamp == 0` dropped from the order
def test_what_was_forgotten_takes_no_place_in_a_reading():
    made = put(table.addressed(4, 3, phrase_tokens=1), [1], [7], [7], [8])
    made = table.forget(made, i32([[1]]), i32([[7]]), jnp.asarray([True]))
    assert commonest(made, [1], 1) == [[8]]


# context_ngrams.py:_known, `& live[None]` dropped
def test_a_phrase_of_another_s_bucket_is_no_repeat():
    made = put(table.hashed(4, 1, key_tokens=2, phrase_tokens=1), [-1, 9], [3])
    known = functools.partial(
        context_ngrams._known, made, count=1, order="newest", backward=False
    )
    for before in range(20):  # some of these keys begin where that of 9 lies
        phrase, _, count = known(i32([before, 9]))
        assert int(count) == 1
        assert phrase.tolist() == [[3]]


# harvest.py:_kept, the minimum with num_new dropped
def test_what_was_not_emitted_was_not_kept():
    history = history_lib.create(i32([[4]]), i32([1]), 8)
    tree = tree_lib.append_chain(
        tree_lib.trunk(history, i32([0]), i32([1]), 3),
        token=i32([[5, 0]]),
        count=i32([2]),
        confidence=jnp.ones((1, 2), jnp.float32),
        anchor=i32([0]),
    )
    outcome = outcome_lib.Outcome(
        path_slot=i32([[0, 1, 0]]),
        num_path=i32([2]),
        token=i32([[5, 0, 0]]),  # the budget ended after one token
        num_new=i32([1]),
        log_prob=jnp.zeros((1, 3), jnp.float32),
        top_ids=jnp.zeros((1, 3, 1), jnp.int32),
    )
    chain, length = i32([[5, 0]]), i32([2])
    assert harvest._kept(tree, outcome, chain, length).tolist() == [1]


# fallback.py:propose, later children are offered the row's room all the same
def test_a_row_with_drafts_gets_none_of_the_next():
    first, second = fixed((1, -1, 0.5)), fixed((2, -1, 0.5), (3, 0, 0.5))
    made = equipped.equip(fallback(first, second))
    (nodes,) = once.propose(made, [[1, 2, 3]], state=((), ()))
    assert [node.token for node in nodes] == [1]
