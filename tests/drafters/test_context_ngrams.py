"""Context n-grams against the worked examples and dictionaries in plain Python."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.core import contracts
from specjax.core import history as history_lib
from specjax.core import outcome as outcome_lib
from specjax.core import tree as tree_lib
from specjax.drafters.lookup import table as table_lib
from specjax.drafters.lookup.context_ngrams import context_ngrams
from tests.drafters import replay

CAPACITY = 24
PARAMS = {"drafter": {}}
TEXT = [1, 2, 3, 4, 1, 2, 5, 6, 1]


class Oracle:
    """Dictionaries from keys to phrases and their counts, the oldest first; one row."""

    def __init__(
        self, ngram, key_tokens, max_phrases, compat, evict="oldest", order="newest"
    ):
        self.length, self.most, self.compat = ngram - 1, max_phrases, compat
        self.sizes = range(key_tokens, 0, -1)
        self.rarest, self.commonest = evict == "rarest", order == "commonest"
        self.phrases, self.known = {}, 0

    def propose(self, text, room):
        found = []
        for size in self.sizes:
            key = tuple(text[-size:])
            held = self.phrases.get(key, {}) if len(text) >= size else {}
            best = list(held)[::-1]
            if self.commonest:
                best.sort(key=lambda phrase, held=held: -held[phrase])
            found += best[::-1] if self.compat else best
        chains = list(dict.fromkeys(found))[: self.most]
        drafts = []
        for chain in chains:
            for level, token in enumerate(chain[: room - 1]):
                drafts.append((token, len(drafts) - 1 if level else -1))
        return drafts

    def observe(self, seen):
        text = seen.text + seen.new
        known = min(seen.start + seen.trunk + len(seen.path) + 1, len(text))
        backward = self.compat and bool(seen.new)
        for end in range(self.known, len(seen.text) if backward else known):
            for size in self.sizes:
                first = end + 1 - size - self.length
                self.store(text[max(first, 0) : end + 1], size)
        if backward:
            for back in range(len(seen.path)):
                for size in self.sizes:  # up to minus zero: an empty slice
                    self.store(text[-size - self.length - back : -back], size)
        self.known = known

    def store(self, item, size):
        if len(item) < size + self.length:
            return
        held = self.phrases.setdefault(tuple(item[:size]), {})
        phrase = tuple(item[size:])
        count = held.pop(phrase, 0)
        if len(held) == self.most:
            del held[min(held, key=held.get) if self.rarest else next(iter(held))]
        held[phrase] = count + 1


@functools.cache
def jitted(function, **static):
    return jax.jit(functools.partial(function, **static))


def view_of(texts, starts, room=20, decoding=True):
    rows = len(texts)
    tokens = np.zeros((rows, CAPACITY), np.int32)
    for row, text in enumerate(texts):
        tokens[row, : len(text)] = text
    length = jnp.asarray([len(text) for text in texts], jnp.int32)
    return contracts.View(
        history=history_lib.create(jnp.asarray(tokens), length, CAPACITY),
        sampling=None,
        processors=None,
        start=jnp.asarray(starts, jnp.int32),
        room=jnp.full((rows,), room, jnp.int32),
        rounds=jnp.zeros((rows,), jnp.int32),
        decoding=decoding,
    )


def observe(drafter, state, text, start, path, decoding=True):
    """Shows a round of one row: a trunk of one token, or a prompt chunk of ``path``."""
    view = view_of([text], [start], decoding=decoding)
    trunk = 1 if decoding else path
    slots = jnp.zeros((1, CAPACITY), jnp.int32)
    tree = tree_lib.trunk(view.history, view.start, jnp.full((1,), trunk), CAPACITY)
    new = len(text) - start - trunk  # nothing, in a prompt that goes on
    outcome = outcome_lib.Outcome(
        path_slot=slots,
        num_path=jnp.asarray([path], jnp.int32),
        token=slots,
        num_new=jnp.asarray([new if decoding else 0], jnp.int32),
        log_prob=slots.astype(jnp.float32),
    )
    return jitted(drafter.observe)(PARAMS, state, view, tree, outcome)


def after_prompt(drafter, text):
    """The state after one chunk that holds all of a prompt but its last token."""
    state = drafter.init(PARAMS, 1, CAPACITY)
    return observe(drafter, state, text, 0, len(text) - 1, decoding=False)


def grown(drafter, state, text, room=20, tree=None):
    view = view_of([text], [len(text) - 1], room)
    if tree is None:
        one = jnp.ones((1,), jnp.int32)
        slots = 1 + drafter.bounds.nodes
        tree = tree_lib.trunk(view.history, view.start, one, slots)
    return jitted(drafter.propose)(PARAMS, state, view, tree)[0]


def chains(drafter, state, text, room=20):
    """Drafts of one row, as tuples of tokens from under the trunk to a leaf."""
    tree = jax.tree.map(lambda x: np.asarray(x)[0], grown(drafter, state, text, room))
    paths = {0: ()}
    for slot in range(1, tree.num_nodes):
        paths[slot] = (*paths[int(tree.parent[slot])], int(tree.token[slot]))
    parents = set(tree.parent[: tree.num_nodes].tolist())
    return [path for slot, path in paths.items() if path and slot not in parents]


def stored(state):
    """Phrases by key of one token, the oldest first; keys that have some."""
    table = jax.tree.map(lambda x: x[0], state.table)
    read = jitted(table_lib.read, count=7)
    held = {}
    for key in range(10):
        phrase, live = (np.asarray(x) for x in read(table, jnp.asarray([key])))
        if live.any():
            held[key] = [tuple(p) for p in phrase[live][::-1].tolist()]
    return held


def test_n_grams_of_a_prompt():
    state = after_prompt(context_ngrams(ngram=4, buckets=64), TEXT)
    assert stored(state) == {
        1: [(2, 3, 4), (2, 5, 6)],
        2: [(3, 4, 1), (5, 6, 1)],
        3: [(4, 1, 2)],
        4: [(1, 2, 5)],
    }


@pytest.mark.parametrize(
    ("compat", "expected"),
    [(False, [(2, 5, 6), (2, 3, 4)]), (True, [(2, 3, 4), (2, 5, 6)])],
)
def test_the_newest_first_or_as_in_the_reference_the_oldest(compat, expected):
    drafter = context_ngrams(ngram=4, buckets=64, compat=compat)
    assert chains(drafter, after_prompt(drafter, TEXT), TEXT) == expected


@pytest.mark.parametrize(
    ("compat", "expected"),
    [
        # All that end at 2, 5, 6 and 7. 1 2 5 6 was there: it only becomes newer.
        (False, {5: [(6, 1, 2)], 6: [(1, 2, 5)], 2: [(3, 4, 1), (5, 6, 1), (5, 6, 7)]}),
        (True, {6: [(1, 2, 5)]}),  # those that end at 6 and 5
    ],
)
def test_n_grams_of_a_round(compat, expected):
    drafter = context_ngrams(ngram=4, buckets=64, compat=compat)
    before = after_prompt(drafter, TEXT)
    after = observe(drafter, before, [*TEXT, 2, 5, 6, 7], len(TEXT) - 1, 4)
    assert stored(after) == stored(before) | expected
    inserted = int(after.table.clock[0] - before.table.clock[0])
    assert inserted == (2 if compat else 4)


@pytest.mark.parametrize("compat", [False, True])
def test_order_of_insertion(compat):
    """7 1 7 2 7 came out after 0: pairs 0 7, 7 1, 1 7, 7 2, 2 7.

    The reference stores 7 2, 1 7, 7 1, so that the earlier 7 1 counts as the newest.
    """
    drafter = context_ngrams(ngram=2, buckets=64, compat=compat)
    start = drafter.init(PARAMS, 1, CAPACITY)
    held = stored(observe(drafter, start, [0, 7, 1, 7, 2, 7], 0, 5))
    if compat:
        assert held == {7: [(2,), (1,)], 1: [(7,)]}
    else:
        assert held == {0: [(7,)], 7: [(1,), (2,)], 1: [(7,)], 2: [(7,)]}


def test_the_reference_learns_nothing_of_short_rounds():
    """One accepted draft, two new tokens: neither end of them is stored."""
    drafter = context_ngrams(ngram=3, buckets=64, compat=True)
    before = after_prompt(drafter, TEXT)
    after = observe(drafter, before, [*TEXT, 8, 9], len(TEXT) - 1, 2)
    jax.tree.map(np.testing.assert_array_equal, before, after)


def test_drafted_in_the_round_after_it_became_known():
    drafter = context_ngrams(ngram=3, buckets=64)
    state = after_prompt(drafter, [1, 2])
    assert chains(drafter, state, [1, 2]) == []
    state = observe(drafter, state, [1, 2, 3, 1], 1, 2)
    assert chains(drafter, state, [1, 2, 3, 1]) == [(2, 3)]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [(5,), (3,)]),
        ({"order": "commonest"}, [(3,), (5,)]),
        ({"evict": "rarest"}, [(5,), (2,)]),
        ({"evict": "rarest", "order": "commonest"}, [(2,), (5,)]),
        ({"order": "commonest", "compat": True}, [(5,), (3,)]),
    ],
)
def test_what_a_full_key_gives_up_and_drafts_first(options, expected):
    """Behind 1 came 2 three times, 3 twice, 5 once: for 5 the oldest, 2, goes, or 3."""
    text = [1, 2, 1, 2, 1, 2, 1, 3, 1, 3, 1, 5, 1]
    drafter = context_ngrams(ngram=2, max_phrases=2, buckets=64, **options)
    assert chains(drafter, after_prompt(drafter, text), text) == expected


def test_longer_keys_go_first():
    """5 1 was followed by 2 2; 1 was last followed by 3 3, once before by 2 2."""
    text = [5, 1, 2, 2, 6, 1, 3, 3, 5, 1]
    short = context_ngrams(ngram=3, buckets=64)
    long = context_ngrams(ngram=3, key_tokens=2, buckets=64)
    assert chains(short, after_prompt(short, text), text) == [(3, 3), (2, 2)]
    assert chains(long, after_prompt(long, text), text) == [(2, 2), (3, 3)]


def test_never_deeper_than_there_is_room_for():
    drafter = context_ngrams(ngram=4, buckets=64)
    state = after_prompt(drafter, TEXT)
    assert chains(drafter, state, TEXT, room=3) == [(2, 5), (2, 3)]
    assert chains(drafter, state, TEXT, room=1) == []
    assert chains(drafter, state, TEXT, room=0) == []
    tree = grown(drafter, state, TEXT, room=3)
    assert tree.tag[0, 1:5].tolist() == [0, 1, 3, 4]  # tags 2 and 5 are cut off


def test_continues_the_spine_of_a_tree():
    """A draft 2 is there: its phrases go on under it, a level deeper."""
    drafter = context_ngrams(ngram=4, buckets=64)
    view = view_of([TEXT], [len(TEXT) - 1])
    one = jnp.ones((1,), jnp.int32)
    tree = tree_lib.append_chain(
        tree_lib.trunk(view.history, view.start, one, 2 + drafter.bounds.nodes),
        token=jnp.full((1, 1), 2, jnp.int32),
        count=one,
        confidence=jnp.ones((1, 1)),
        anchor=jnp.zeros((1,), jnp.int32),
    )
    tree = grown(drafter, after_prompt(drafter, TEXT), TEXT, room=4, tree=tree)
    assert tree.token[0, : int(tree.num_nodes[0])].tolist() == [1, 2, 5, 6, 3, 4]
    assert tree.parent[0, 2:6].tolist() == [1, 2, 1, 4]


def test_confidence_falls_with_rank_and_rises_along_a_phrase():
    drafter = context_ngrams(ngram=4, buckets=64)
    tree = grown(drafter, after_prompt(drafter, TEXT), TEXT)
    # (n - 1/2) / (n + 0.9) after n = 1, 2, 3 tokens; the second head over 2.
    along = [0.5 / 1.9, 1.5 / 2.9, 2.5 / 3.9]
    expected = [*along, along[0] / 2, *along[1:]]
    np.testing.assert_allclose(tree.confidence[0, 1:7], expected, rtol=1e-6)


def test_a_spoilt_table_drafts_tokens_all_the_same():
    drafter = context_ngrams(vocab_size=7, ngram=4, buckets=16)
    rng = np.random.default_rng(0)
    state = jax.tree.map(
        lambda x: jnp.asarray(rng.integers(-3, 11, x.shape), jnp.int32),
        drafter.init(PARAMS, 1, CAPACITY),
    )
    drafted = [
        np.asarray(tree.token)[0, 1 : int(tree.num_nodes[0])]
        for tree in (grown(drafter, state, [3, token]) for token in range(-1, 7))
    ]
    drafted = np.concatenate(drafted)
    assert drafted.size
    assert drafted.min() >= 0
    assert drafted.max() < 7


CLEAN = {"key_tokens": 1, "max_phrases": 3, "compat": False}


@pytest.mark.parametrize(
    ("options", "sampling"),
    [
        ({**CLEAN, "ngram": 4}, {"vocab_size": 7}),
        ({**CLEAN, "ngram": 3, "key_tokens": 3}, {"vocab_size": 7, "temperature": 0.7}),
        (
            {**CLEAN, "ngram": 3, "key_tokens": 2, "compat": True},
            {"vocab_size": 3, "temperature": 0.7},
        ),
        (
            {**CLEAN, "ngram": 3, "evict": "rarest", "order": "commonest"},
            {"vocab_size": 4, "temperature": 0.7},
        ),
    ],
)
def test_drafts_what_the_dictionaries_say(options, sampling):
    rng = np.random.default_rng(0)
    ids = sampling["vocab_size"]
    prompts = [rng.integers(0, ids, size).tolist() for size in (1, 5, 20, 40)]
    drafter = context_ngrams(**options)
    runs = replay.check(drafter, lambda: Oracle(**options), prompts, **sampling)
    rounds = [seen for run in runs for seen in run if seen.room]
    length = options["ngram"] - 1
    # Enough was drafted, few and many phrases, and accepted to learn from.
    assert {len(seen.drafts) // length for seen in rounds} >= {0, 2, 3}
    assert sum(len(seen.path) == length for seen in rounds) > 8


def test_bounds():
    drafter = context_ngrams(ngram=4, max_phrases=5)
    assert drafter.bounds == contracts.Bounds(nodes=15, depth=3, branching=5)
    assert [source.num_tags for source in drafter.sources] == [15]


@pytest.mark.parametrize(
    "options",
    [
        {"ngram": 1},
        {"key_tokens": 0},
        {"max_phrases": 0},
        {"buckets": 3},
        {"buckets": 100},
        {"vocab_size": -1},
        {"evict": "newest"},
        {"order": "oldest"},
    ],
)
def test_bad_options(options):
    (name,) = options
    with pytest.raises(ValueError, match=f"context_ngrams: {name} must be"):
        context_ngrams(**options)
