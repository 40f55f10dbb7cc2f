"""Pools of phrases against lists in a dict."""

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np

from specjax.drafters.lookup import phrases

WAYS, WIDTH, VOCAB, ITEMS = 3, 2, 4, 12


def created(ways=WAYS, buckets=0):
    return phrases.create(
        2, vocab_size=10, buckets=buckets, ways=ways, phrase_tokens=WIDTH
    )


@jax.jit
def insert(pool, key, phrase, valid):
    return phrases.insert(pool, key, phrase, valid)


@jax.jit
def forget(pool, key, phrase, valid):
    return phrases.forget(pool, key, phrase, valid)


def items(*rows):
    """Arrays of (key, phrase) pairs, each row padded to ITEMS."""
    key = np.zeros((len(rows), ITEMS), np.int32)
    phrase = np.zeros((len(rows), ITEMS, WIDTH), np.int32)
    valid = np.zeros((len(rows), ITEMS), bool)
    for row, pairs in enumerate(rows):
        for at, (token, words) in enumerate(pairs):
            key[row, at], phrase[row, at], valid[row, at] = token, words, True
    return jnp.asarray(key), jnp.asarray(phrase), jnp.asarray(valid)


def held(pool, row, key, count):
    """The newest phrases of a key in one row, as tuples."""
    keys = jnp.full((2,), key, jnp.int32)
    phrase, live = (np.asarray(x)[row] for x in phrases.newest(pool, keys, count))
    return [tuple(p.tolist()) for p, there in zip(phrase, live, strict=True) if there]


def test_order_of_a_pool_of_two():
    """(1,2) (3,4) (1,2) again, then (5,6) drops (3,4), the oldest by insertion."""
    order = [(9, (1, 2)), (9, (3, 4)), (9, (1, 2)), (9, (5, 6))]
    pool = insert(created(ways=2), *items(order, []))
    assert held(pool, 0, 9, 2) == [(5, 6), (1, 2)]
    assert held(pool, 0, 9, 1) == [(5, 6)]
    assert held(pool, 1, 9, 2) == []  # the other row has a pool of its own


def test_what_is_not_valid_costs_nothing_and_changes_nothing():
    key, phrase, valid = items([(1, (1, 2))] * 3, [(2, (3, 4))])
    before = created()
    after = insert(before, key, phrase, valid & False)
    for one, other in zip(*map(jax.tree.leaves, (before, after)), strict=True):
        np.testing.assert_array_equal(one, other)


def test_forgotten_phrases_leave_the_others_alone():
    pool = insert(created(), *items([(1, (1, 2)), (1, (3, 4)), (2, (1, 2))], []))
    pool = forget(pool, *items([(1, (1, 2)), (1, (9, 9)), (3, (3, 4))], []))
    assert held(pool, 0, 1, WAYS) == [(3, 4)]
    assert held(pool, 0, 2, WAYS) == [(1, 2)]


def test_forgetting_a_key_that_a_hashed_pool_lacks():
    pool = insert(created(buckets=4), *items([(1, (1, 2))], []))
    pool = forget(pool, *items([(5, (1, 2))], []))
    assert held(pool, 0, 1, WAYS) == [(1, 2)]


PAIR = st.tuples(st.integers(0, VOCAB - 1), st.tuples(*[st.integers(0, 1)] * WIDTH))
STEPS = st.lists(st.lists(PAIR, max_size=ITEMS), min_size=2, max_size=2)


@hypothesis.given(STEPS, STEPS, STEPS)
def test_agrees_with_lists_in_a_dict(first, gone, second):
    """At most WAYS phrases a key, none twice, none with holes, the newest first."""
    pool = insert(created(), *items(*first))
    pool = insert(forget(pool, *items(*gone)), *items(*second))
    for row in range(2):
        model = {}
        for step, drop in (
            (first[row], False),
            (gone[row], True),
            (second[row], False),
        ):
            for key, phrase in step:
                known = model.setdefault(key, [])
                if phrase in known:
                    known.remove(phrase)
                if not drop:
                    known.append(phrase)
                    del known[:-WAYS]
        for key in range(VOCAB):
            assert held(pool, row, key, WAYS) == model.get(key, [])[::-1]


def test_leaves_lead_with_the_rows_and_share_no_buffer():
    leaves = jax.tree.leaves(created())
    assert all(leaf.shape[0] == 2 for leaf in leaves)
    pointers = {leaf.unsafe_buffer_pointer() for leaf in leaves}
    assert len(pointers) == len(leaves)
