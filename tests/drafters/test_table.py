"""The phrase table against a plain-Python model of its whole policy."""

import functools

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.drafters.lookup import table as table_lib

NONE = table_lib.NO_TOKEN
CHUNK = 40  # items an insert; shorter sequences are padded with invalid ones


class Model:
    """Buckets as lists of Python lists [phrase, stamp, count], at most ``ways`` each.

    Its own hash and probing are those of the table, spelled with Python integers.
    """

    def __init__(self, buckets, ways, evict="oldest", addressed=False):
        self.ways, self.evict, self.addressed = ways, evict, addressed
        self.keys = [None] * buckets
        self.phrases = [[] for _ in range(buckets)]
        self.clock = 0

    def probes(self, key):
        mixed = 0
        for token in key:
            mixed = ((mixed ^ (token + 1)) * 0x9E3779B1) % 2**32
            mixed ^= mixed >> 15
        return [(mixed + step) % len(self.keys) for step in range(4)]

    def find(self, key):
        """The bucket of a key, None if it has none."""
        if self.addressed:
            return key[0] if 0 <= key[0] < len(self.keys) else None
        held = [at for at in self.probes(key) if self.keys[at] == key]
        return held[0] if held else None

    def place(self, key):
        """The bucket to write to, emptied if another key has to give it up."""
        bucket = self.find(key)
        if bucket is None:
            # The first of those that were written longest ago; free ones never were.
            bucket = min(self.probes(key), key=self.written)
            self.keys[bucket], self.phrases[bucket] = key, []
        return bucket

    def written(self, bucket):
        return max((entry[1] for entry in self.phrases[bucket]), default=0)

    def insert(self, key, phrase, valid=True):
        if not valid:
            return
        self.clock += 1
        held = self.phrases[self.place(key)]
        for entry in held:
            if entry[0] == phrase:
                entry[1:] = [self.clock, entry[2] + 1]
                return
        if len(held) == self.ways:
            worth = {"oldest": lambda e: e[1], "rarest": lambda e: (e[2], e[1])}
            held.remove(min(held, key=worth[self.evict]))
        held.append([phrase, self.clock, 1])

    def read(self, key, count, order="newest"):
        bucket = self.find(key)
        held = [] if bucket is None else self.phrases[bucket]
        worth = {"newest": lambda e: -e[1], "commonest": lambda e: (-e[2], -e[1])}
        return [entry[0] for entry in sorted(held, key=worth[order])[:count]]


@functools.cache
def jitted(function, **static):
    return jax.jit(functools.partial(function, **static))


def insert(table, items, evict="oldest"):
    """Inserts (key, phrase) or (key, phrase, valid) items, CHUNK at a time."""
    run = jitted(table_lib.insert, evict=evict)
    items = [(*item, True)[:3] for item in items]
    blank = (items[0][0], items[0][1], False) if items else None
    for first in range(0, len(items), CHUNK):
        part = items[first : first + CHUNK]
        part += [blank] * (CHUNK - len(part))
        key, phrase, valid = (np.asarray(x) for x in zip(*part, strict=True))
        table = run(table, key.astype(np.int32), phrase.astype(np.int32), valid)
    return table


def read(table, key, count, order="newest"):
    """Phrases of a key as tuples, best first."""
    run = jitted(table_lib.read, count=count, order=order)
    phrase, live = run(table, np.asarray(key, np.int32))
    phrase, live = np.asarray(phrase), np.asarray(live)
    assert list(live) == sorted(live, reverse=True)  # those that are there go first
    return [tuple(row) for row in phrase[live].tolist()]


def padded_keys(tokens, size):
    """Keys of 1 to ``size`` tokens, NO_TOKEN in front of shorter ones."""
    token = st.integers(0, tokens - 1)
    return st.lists(token, min_size=1, max_size=size).map(
        lambda key: (NONE,) * (size - len(key)) + tuple(key)
    )


def padded_phrases(size):
    """Phrases of 1 to ``size`` tokens, NO_TOKEN behind shorter ones."""
    return st.lists(st.integers(0, 2), min_size=1, max_size=size).map(
        lambda phrase: tuple(phrase) + (NONE,) * (size - len(phrase))
    )


def items_of(keys, size):
    item = st.tuples(keys, padded_phrases(size), st.booleans())
    return st.lists(item, max_size=CHUNK)


def assert_equal(table, model, keys, ways):
    for key in sorted(set(keys)):
        for order in table_lib.ORDERS:
            for count in (1, ways + 1):  # more than there are ways, too
                expected = model.read(key, count, order)
                assert read(table, key, count, order) == expected, (key, order, count)


@pytest.mark.parametrize("evict", table_lib.EVICTIONS)
@hypothesis.settings(max_examples=40, deadline=None)
@hypothesis.given(items=items_of(padded_keys(5, 2), 2))
def test_hashed_agrees_with_the_model(items, evict):
    """8 buckets for up to 30 keys: probes collide and buckets are taken over."""
    table = insert(table_lib.hashed(8, 3, key_tokens=2, phrase_tokens=2), items, evict)
    model = Model(8, 3, evict)
    for item in items:
        model.insert(*item)
    assert_equal(table, model, [item[0] for item in items], ways=3)
    assert int(table.clock) == model.clock


@pytest.mark.parametrize("evict", table_lib.EVICTIONS)
@hypothesis.settings(max_examples=40, deadline=None)
@hypothesis.given(items=items_of(padded_keys(5, 1), 2))
def test_addressed_agrees_with_the_model(items, evict):
    table = insert(table_lib.addressed(5, 2, phrase_tokens=2), items, evict)
    model = Model(5, 2, evict, addressed=True)
    for item in items:
        model.insert(*item)
    assert_equal(table, model, [(key,) for key in range(-1, 7)], ways=2)


@pytest.mark.parametrize("evict", table_lib.EVICTIONS)
def test_churn_loses_nothing_that_the_policy_keeps(evict):
    """4000 inserts of 300 keys into 64 buckets: every survivor is where it should be.

    With fewer probes or another victim a kept phrase would be missing; a lost update
    would bring back an evicted one.
    """
    rng = np.random.default_rng(0)
    keys = [(int(a), int(b)) for a, b in rng.integers(0, 1000, (300, 2))]
    chosen = rng.zipf(1.3, 4000) % 300  # some keys often, most seldom
    items = [(keys[at], (int(rng.integers(0, 4)),)) for at in chosen]
    empty = table_lib.hashed(64, 3, key_tokens=2, phrase_tokens=1)
    table, model = insert(empty, items, evict), Model(64, 3, evict)
    for item in items:
        model.insert(*item)
    both = jax.jit(jax.vmap(lambda key: table_lib.read(table, key, 3)))
    phrases, live = map(np.asarray, both(jnp.asarray(keys, jnp.int32)))
    found = [p[ok][:, 0].tolist() for p, ok in zip(phrases, live, strict=True)]
    assert found == [[p[0] for p in model.read(key, 3)] for key in keys]
    evicted = sum(not phrases for phrases in found)
    assert 200 < evicted < 290  # 64 buckets can't hold 300 keys, but are in use


def test_the_later_of_equal_inserts_wins():
    """Keys of a full bucket; the phrase that was inserted twice outlives the other."""
    items = [((9,), (1, 2)), ((9,), (3, 4)), ((9,), (1, 2)), ((9,), (5, 6))]
    table = insert(table_lib.hashed(4, 2, key_tokens=1, phrase_tokens=2), items)
    # The list of the worked example, the oldest first: (1, 2), (5, 6).
    assert read(table, (9,), 2) == [(5, 6), (1, 2)]
    assert read(table, (9,), 1) == [(5, 6)]


def test_n_grams_of_a_text():
    """Worked example: text 1 2 3 4 1 2 5 6 1, n = 4, up to 7 phrases a token."""
    text = [1, 2, 3, 4, 1, 2, 5, 6, 1]
    items = [((text[i],), tuple(text[i + 1 : i + 4])) for i in range(len(text) - 3)]
    table = insert(table_lib.addressed(7, 7, phrase_tokens=3), items)
    assert {key: read(table, (key,), 7)[::-1] for key in range(7)} == {
        0: [],
        1: [(2, 3, 4), (2, 5, 6)],
        2: [(3, 4, 1), (5, 6, 1)],
        3: [(4, 1, 2)],
        4: [(1, 2, 5)],
        5: [],
        6: [],
    }


def test_the_rarest_gives_way():
    """Phrase 1 twice, then 2 and 3 once each: 2 is as rare as 3 and older."""
    items = [((0,), (token,)) for token in (1, 1, 2, 3)]
    empty = table_lib.addressed(1, 2, phrase_tokens=1)
    table = insert(empty, items, evict="rarest")
    assert read(table, (0,), 2, "commonest") == [(1,), (3,)]
    assert read(table, (0,), 2, "newest") == [(3,), (1,)]
    assert read(insert(empty, items), (0,), 2) == [(3,), (2,)]


def test_a_key_is_not_its_own_end():
    """Keys that begin or end alike, or hold the same tokens, are different keys."""
    items = [((1, 2), (5,)), ((NONE, 2), (6,)), ((2, 1), (7,))]
    table = insert(table_lib.hashed(64, 1, key_tokens=2, phrase_tokens=1), items)
    assert [read(table, key, 1) for key, _ in items] == [[(5,)], [(6,)], [(7,)]]
    assert read(table, (NONE, 1), 1) == []


def test_an_empty_table_has_nothing_under_any_key():
    """Not even under the mark that its free buckets carry."""
    table = table_lib.hashed(8, 2, key_tokens=1, phrase_tokens=1)
    assert [read(table, (key,), 2) for key in (NONE, 0, 3)] == [[], [], []]


@pytest.mark.parametrize("addressed", [True, False])
def test_invalid_inserts_change_nothing(addressed):
    empty = (
        table_lib.addressed(4, 2, phrase_tokens=1)
        if addressed
        else table_lib.hashed(4, 2, key_tokens=1, phrase_tokens=1)
    )
    before = insert(empty, [((1,), (2,)), ((3,), (0,))])
    invalid = [((key,), (1,), False) for key in (NONE, 0, 1, 2, 3, 9)]
    after = insert(before, invalid)
    jax.tree.map(np.testing.assert_array_equal, before, after)


def test_vmapped_equals_one_by_one():
    rng = np.random.default_rng(1)
    one = table_lib.hashed(8, 2, key_tokens=1, phrase_tokens=2)
    key = rng.integers(0, 12, (3, CHUNK, 1)).astype(np.int32)
    phrase = rng.integers(0, 3, (3, CHUNK, 2)).astype(np.int32)
    valid = rng.random((3, CHUNK)) < 0.8
    spread = jax.tree.map(lambda x: jnp.broadcast_to(x[None], (3, *x.shape)), one)
    together = jax.jit(jax.vmap(table_lib.insert))(spread, key, phrase, valid)
    for row in range(3):
        alone = jitted(table_lib.insert)(one, key[row], phrase[row], valid[row])
        jax.tree.map(
            np.testing.assert_array_equal,
            alone,
            jax.tree.map(lambda x, row=row: x[row], together),
        )


@pytest.fixture(scope="module")
def filled():
    """A table after 100,000 tokens, its size in MB before, and programs compiled."""
    table = table_lib.hashed(1024, 4, key_tokens=1, phrase_tokens=3)
    size = table_lib.megabytes(table)
    run = jax.jit(table_lib.insert, donate_argnums=0)
    rng = np.random.default_rng(2)
    for _ in range(25):
        text = rng.integers(0, 5000, 4000).astype(np.int32)
        phrase = np.stack([np.roll(text, -step) for step in (1, 2, 3)], axis=1)
        table = run(table, text[:, None], phrase, np.ones(4000, bool))
    return table, size, run._cache_size()


def test_size_stays_as_stated(filled):
    table, size, _ = filled
    # i32: 1024 keys, 1024 * 4 ways of 3 tokens, a stamp and a count, and a clock.
    assert size == pytest.approx((1024 * (1 + 4 * (3 + 2)) + 1) * 4 / 1e6)
    assert table_lib.megabytes(table) == size
    assert sum(leaf.nbytes for leaf in jax.tree.leaves(table)) / 1e6 == size
    assert int(table.clock) == 100_000


def test_one_program_as_the_table_fills(filled):
    table, _, programs = filled
    assert programs == 1
    assert bool(jnp.all(jnp.max(table.stamp, axis=1) > 0))  # no bucket is free


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: table_lib.hashed(2, 1, key_tokens=1, phrase_tokens=1), "buckets"),
        (lambda: table_lib.hashed(12, 1, key_tokens=1, phrase_tokens=1), "buckets"),
        (lambda: table_lib.hashed(8, 1, key_tokens=0, phrase_tokens=1), "key_tokens"),
        (lambda: table_lib.hashed(8, 0, key_tokens=1, phrase_tokens=1), "ways"),
        (lambda: table_lib.addressed(0, 1, phrase_tokens=1), "vocab_size"),
        (lambda: table_lib.addressed(4, 1, phrase_tokens=0), "phrase_tokens"),
    ],
)
def test_bad_sizes(make, name):
    with pytest.raises(ValueError, match=f"{name} must be"):
        make()


def test_unknown_policies_are_refused():
    table = table_lib.addressed(4, 1, phrase_tokens=1)
    one = jnp.ones((1, 1), jnp.int32)
    with pytest.raises(ValueError, match="evict must be one of"):
        table_lib.insert(table, one, one, jnp.ones((1,), jnp.bool_), evict="newest")
    with pytest.raises(ValueError, match="order must be one of"):
        table_lib.read(table, one[0], 1, order="oldest")
