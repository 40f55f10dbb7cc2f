"""Lookahead: its window as a tree, its phrases, and a plain Python oracle."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.core import contracts, noise
from specjax.core import history as history_lib
from specjax.core import outcome as outcome_lib
from specjax.core import tree as tree_lib
from specjax.drafters.lookup import phrases
from specjax.drafters.lookup.lookahead import lookahead
from tests.drafters import replay

TEXT = [3, 1, 4, 1, 5, 9]  # the current token is 9
PROMPTS = [[1, 2, 3, 4, 5, 6], [0, 1, 2], [4, 4, 5, 4, 4, 5, 4, 4], [6] * 18]


def view(rows=1, room=50):
    history = history_lib.create(
        jnp.asarray([TEXT] * rows, jnp.int32), jnp.full((rows,), 6, jnp.int32), 32
    )
    return contracts.View(
        history=history,
        sampling=None,
        processors=None,
        start=history.length - 1,
        room=jnp.full((rows,), room, jnp.int32),
        rounds=jnp.zeros((rows,), jnp.int32),
    )


def propose(drafter, state, room=50):
    """The tree of one row, and the state after it."""
    seen = view(room=room)
    root = tree_lib.trunk(
        seen.history, seen.start, jnp.ones((1,), jnp.int32), 1 + drafter.bounds.nodes
    )
    return jax.jit(drafter.propose)({}, state, seen, root)


def observe(drafter, state, tree, top_ids):
    """The state after a round that accepted nothing."""
    length = 1 + drafter.bounds.depth
    blank = jnp.zeros((1, length), jnp.int32)
    one = jnp.ones((1,), jnp.int32)
    outcome = outcome_lib.Outcome(
        path_slot=blank,
        num_path=one,
        token=blank,
        num_new=one,
        log_prob=blank.astype(jnp.float32),
        top_ids=top_ids,
    )
    return jax.jit(drafter.observe)({}, state, view(), tree, outcome)


def full(drafter, window):
    """The state of one row whose window is full; rows of unequal length."""
    state = drafter.init({}, 1, 32)
    tokens = np.zeros(state.window.shape, np.int32)
    for row, values in enumerate(window):
        tokens[0, row, : len(values)] = values
    fill = jnp.full((1,), len(window) - 1, jnp.int32)
    return dataclasses.replace(state, window=jnp.asarray(tokens), fill=fill)


def pool_of(state):
    """{key: phrases, the newest first} of row 0 of a pool without a hash."""
    pool = jax.tree.map(lambda x: np.asarray(x)[0], state.pool)
    assert pool.key is None
    found = {}
    for key, stamps in enumerate(pool.stamp):
        ways = [way for way in np.argsort(-stamps) if stamps[way] > 0]
        if ways:
            found[key] = [tuple(pool.phrase[key, way].tolist()) for way in ways]
    return found


def test_a_full_window_has_the_published_mask_and_positions():
    """W = 5, N = 5: rows of 4, 5, 5 and 5 nodes, 20 with the current token."""
    drafter = lookahead(window=5, ngram=5, max_phrases=2, buckets=16)
    cells = [(0, c) for c in range(4)]
    cells += [(r, c) for r in (1, 2, 3) for c in range(5)]
    window = [[10 * r + c for c in range(4 + (r > 0))] for r in range(4)]
    tree, _ = propose(drafter, full(drafter, window))
    count = int(tree.num_nodes[0])
    assert count == 20
    assert tree.token[0, 1:count].tolist() == [10 * r + c for r, c in cells]
    mask = np.eye(20, dtype=bool)
    mask[:, 0] = True  # all see the current token
    position = [0]
    for n, (row, column) in enumerate(cells, start=1):
        position.append(1 + column if row == 0 else row + column)
        for m, (other, place) in enumerate(cells, start=1):
            if row == 0:  # causal
                mask[n, m] = other == 0 and place <= column
            elif other == 0:  # [current, row 0] up to its own column
                mask[n, m] = place + 1 <= column
            else:  # its own column, from row 1 down to itself
                mask[n, m] = place == column and other <= row
    np.testing.assert_array_equal(tree_lib.ancestor_mask(tree)[0, :20, :20], mask)
    assert tree.depth[0, :20].tolist() == position


def test_phrases_see_the_current_token_and_themselves():
    drafter = lookahead(window=2, ngram=4, max_phrases=3, buckets=16)
    state = full(drafter, [[1], [2, 3], [4, 5]])
    pool = phrases.insert(
        state.pool,
        jnp.asarray([[9, 9]], jnp.int32),
        jnp.asarray([[[1, 2, 3], [4, 5, 6]]], jnp.int32),
        jnp.ones((1, 2), jnp.bool_),
    )
    tree, _ = propose(drafter, dataclasses.replace(state, pool=pool))
    assert tree.token[0, 1:7].tolist() == [4, 1, 5, 2, 6, 3]  # the newest first
    assert tree.parent[0, 1:7].tolist() == [0, 0, 1, 2, 3, 4]
    assert tree.tag[0, 1:7].tolist() == [0, 3, 1, 4, 2, 5]
    # And nothing of the window, 1 - 2 4, 3 5, hangs under them.
    assert tree.token[0, 7:12].tolist() == [1, 2, 3, 4, 5]
    assert tree.parent[0, 7:12].tolist() == [0, 0, 7, 8, 9]


def test_a_full_window_spells_phrases_and_moves():
    """The picture of the module: x = 9, a = 10 11, b = 20 21 22, c = 30 31 32."""
    drafter = lookahead(
        window=3,
        ngram=4,
        max_phrases=2,
        pool_from_prompt=False,
        buckets=0,
        vocab_size=60,
    )
    state = full(drafter, [[10, 11], [20, 21, 22], [30, 31, 32]])
    tree, state = propose(drafter, state)
    answer = jnp.where(tree.token >= 30, tree.token + 10, 0)  # d = 40 41 42
    state = observe(drafter, state, tree, answer[:, :, None])
    assert pool_of(state) == {
        9: [(20, 30, 40)],
        10: [(21, 31, 41)],
        11: [(22, 32, 42)],
    }
    assert state.window[0, 0, :2].tolist() == [21, 22]
    assert state.window[0, 1, :3].tolist() == [30, 31, 32]
    assert state.window[0, 2, :3].tolist() == [40, 41, 42]


def test_a_window_that_was_not_scored_whole_stands_still():
    drafter = lookahead(window=3, ngram=4, max_phrases=2, buckets=16)
    start = full(drafter, [[1, 2], [3, 4, 5], [6, 7, 8]])
    tree, state = propose(drafter, start)
    top_ids = jnp.full((1, tree.slots, 1), 11, jnp.int32)
    cut = dataclasses.replace(tree, num_nodes=tree.num_nodes - 1)
    after = observe(drafter, state, cut, top_ids)
    np.testing.assert_array_equal(after.window, start.window)
    moved = observe(drafter, state, tree, top_ids)
    assert moved.window[0, 2, :3].tolist() == [11, 11, 11]


def test_a_row_without_drafts_keeps_what_it_had():
    drafter = lookahead(window=3, ngram=4, max_phrases=2, buckets=16)
    start = full(drafter, [[1, 2], [3, 4, 5], [6, 7, 8]])
    tree, state = propose(drafter, start, room=1)
    assert int(tree.num_nodes[0]) == 1
    after = observe(drafter, state, tree, jnp.zeros((1, tree.slots, 1), jnp.int32))
    np.testing.assert_array_equal(after.window, start.window)
    assert int(after.fill[0]) == 2


def test_phrases_keep_to_the_room_and_the_window_does_not():
    """A draft model that decodes two tokens ahead has a room of two."""
    drafter = lookahead(window=2, ngram=4, max_phrases=1, buckets=16)
    state = full(drafter, [[1], [2, 3], [4, 5]])
    pool = phrases.insert(
        state.pool,
        jnp.full((1, 1), 9, jnp.int32),
        jnp.asarray([[[6, 7, 8]]], jnp.int32),
        jnp.ones((1, 1), jnp.bool_),
    )
    tree, _ = propose(drafter, dataclasses.replace(state, pool=pool), room=2)
    assert tree.token[0, 1 : int(tree.num_nodes[0])].tolist() == [6, 1, 2, 3, 4, 5]


class Oracle:
    """Lookahead of one row with lists and a dict."""

    def __init__(self, *, window, ngram, max_phrases, pool_from_prompt):
        self.window, self.length, self.ways = window, ngram - 1, max_phrases
        self.from_prompt = pool_from_prompt
        self.pool, self.rows, self.spelt = {}, None, 0

    def insert(self, key, phrase):
        known = self.pool.setdefault(key, [])
        if phrase in known:
            known.remove(phrase)
        known.append(phrase)
        del known[: -self.ways]

    def propose(self, text, room):
        if self.rows is None:
            self.rows = [self.start()]
        if room < 2:
            return []
        newest = self.pool.get(text[-1], [])[::-1]
        drafts = []
        for level in range(min(self.length, room - 1)):
            for at, phrase in enumerate(newest):
                above = (level - 1) * len(newest) + at if level else -1
                drafts.append((phrase[level], above))
        index = {}
        for row, tokens in enumerate(self.rows):
            for column, token in enumerate(tokens):
                above = (row - 1, column) if row > 1 else (0, column - 1)
                index[row, column] = len(drafts)
                drafts.append((token, index.get(above, -1)))
        return drafts

    def start(self):
        width = self.window + self.length - 2
        key, length = jnp.zeros((1, 2), jnp.uint32), len(self.prompt)
        ids = jnp.arange(width, dtype=jnp.int32)
        bits = noise.bits(key, jnp.asarray([length], jnp.int32), ids)
        return [self.prompt[int(x) % length] for x in np.asarray(bits)[0]]

    def observe(self, seen):
        if seen.room == 0:
            self.prompt = seen.text
        if seen.room > 1:
            self.move(seen)
        text = seen.text + seen.new
        if self.from_prompt:
            for end in range(seen.start + 1, seen.start + len(seen.after) + 1):
                if self.length <= end < len(text):
                    first = end - self.length
                    self.insert(text[first], tuple(text[first + 1 : end + 1]))

    def move(self, seen):
        count = len(self.rows[-1])
        answer = [int(x) for x in seen.top_ids[len(seen.top_ids) - count :, 0]]
        if len(self.rows) < self.length:
            added = answer if len(self.rows) == 1 else answer[1:]
            self.rows = [row[1:] for row in self.rows] + [added]
            return
        keys = [seen.text[-1], *self.rows[0]]
        columns = zip(*self.rows[1:], answer, strict=True)
        for key, phrase in zip(keys, columns, strict=True):
            self.insert(key, phrase)
            self.spelt += 1
        self.rows = [self.rows[1][1:], *self.rows[2:], answer]


@functools.cache
def replayed(window, ngram, max_phrases, pool_from_prompt):
    """Rounds that agree with the oracle's, draft for draft, and the oracles."""
    options = {
        "window": window,
        "ngram": ngram,
        "max_phrases": max_phrases,
        "pool_from_prompt": pool_from_prompt,
    }
    made = []

    def oracle():
        made.append(Oracle(**options))
        return made[-1]

    drafter = lookahead(vocab_size=7, buckets=0, **options)
    return replay.check(drafter, oracle, PROMPTS, max_new_tokens=60), made


@pytest.mark.parametrize(
    "sizes", [(3, 4, 2, True), (3, 4, 2, False), (1, 3, 3, True), (2, 5, 2, False)]
)
def test_replays_like_the_oracle(sizes):
    runs, made = replayed(*sizes)
    assert min(one.spelt for one in made) > 10
    assert all(len(row) == sizes[0] for one in made for row in one.rows[1:])
    drafted = [tag for run in runs for seen in run for tag in seen.tags]
    assert min(drafted) == 0  # phrases were drafted, not the window alone


def test_a_phrase_that_matches_whole_keeps_the_token_after_it():
    """Phrases of 3 tokens: 4 tokens in one round, where the reference emits 3."""
    runs, _ = replayed(3, 4, 2, True)
    whole = [
        seen
        for run in runs
        for seen in run
        if len(seen.path) == 3 and all(seen.tags[node] < 6 for node in seen.path)
    ]
    assert sum(len(seen.new) == 4 for seen in whole) > 3


def test_bounds():
    made = lookahead(window=7, ngram=5, max_phrases=7)
    # 7 phrases of 4, rows of 6, 7, 7, 7; the deepest is column 6 of row 3: 3 + 6.
    assert made.bounds == (28 + 27, 9, 7 + 2)
    assert [source.name for source in made.sources] == ["lookahead", "lookahead_window"]


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"window": 0}, "window"),
        ({"ngram": 2}, "ngram"),
        ({"max_phrases": 0}, "max_phrases"),
        ({"buckets": 12}, "buckets"),
        ({"buckets": 0}, "vocab_size"),
    ],
)
def test_bad_options(options, match):
    with pytest.raises(ValueError, match=f"lookahead: {match}"):
        lookahead(**options)
