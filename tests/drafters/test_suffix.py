"""SuffixDecoding against worked examples and a slow oracle."""

import collections
import heapq
import inspect
from typing import Any

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.core import contracts
from specjax.core import history as history_lib
from specjax.core import tree as tree_lib
from specjax.drafters.lookup import datastore, match, suffix_array
from specjax.drafters.lookup.suffix import suffix, suffix_with_store
from tests.drafters import replay

CAPACITY = 24
SMALL = {"max_match": 4, "max_depth": 7, "max_votes": 8}  # these compile fast
REFERENCE_TEXT = [1, 2, 3, 1, 2, 4, 1, 2, 3]
REFERENCE = {
    "factor": 1.0,
    "offset": 0.0,
    "overrun": "cut",
    "tree": False,
    "count_self": True,
}
DEFAULTS = {name: p.default for name, p in inspect.signature(suffix).parameters.items()}
STEPS = 2**14
_PROPOSE = {}


def view_of(texts, room=99):
    """What a drafter sees of some texts, and trees with their last tokens."""
    tokens = np.zeros((len(texts), CAPACITY), np.int32)
    for row, text in enumerate(texts):
        tokens[row, : len(text)] = text
    lengths = jnp.asarray([len(text) for text in texts], jnp.int32)
    history = history_lib.create(jnp.asarray(tokens), lengths, CAPACITY)
    nothing: Any = None  # no drafter without a law of its own reads these
    view = contracts.View(
        history=history,
        sampling=nothing,
        processors=nothing,
        start=jnp.maximum(lengths - 1, 0),
        room=jnp.full((len(texts),), room, jnp.int32),
        rounds=jnp.zeros((len(texts),), jnp.int32),
    )
    return view, lambda slots: tree_lib.trunk(
        history, jnp.maximum(lengths - 1, 0), jnp.minimum(lengths, 1), slots
    )


def drafted(drafter, texts, room=99, params=None):
    """Each row's drafts as (token, parent, confidence)."""
    view, root = view_of(texts, room)
    run = _PROPOSE.setdefault(drafter, jax.jit(drafter.propose))
    own = {"drafter": params or {}}
    tree, _ = run(own, (), view, root(1 + drafter.bounds.nodes))
    tree = jax.tree.map(np.asarray, tree)
    return [
        [
            (
                int(tree.token[row, slot]),
                max(int(tree.parent[row, slot]) - 1, -1),
                float(tree.confidence[row, slot]),
            )
            for slot in range(1, tree.num_nodes[row])
        ]
        for row in range(len(texts))
    ]


def shape(nodes):
    return [(token, parent) for token, parent, _ in nodes]


class Oracle:
    """The same by counting tuples."""

    def __init__(self, store=(), **options):
        self.store = list(store)
        self.options = {**DEFAULTS, **options}

    def propose(self, text, room):
        return shape(self.nodes(text, room))

    def observe(self, seen):
        pass

    def nodes(self, text, room):
        """(token, parent, confidence), best first."""
        votes, best, score = self.votes(text), [], 0
        for size in sorted({size for size, _ in votes}, reverse=True):
            grown = self.grow([v for v in votes if v[0] >= size], size, room)
            total = sum(chance for chance, *_ in grown)
            if total > score:
                best, score = grown, total
        index = {path: at for at, (_, _, path, _) in enumerate(best)}
        return [
            (path[-1], index.get(path[:-1], -1), confidence)
            for _, _, path, confidence in best
        ]

    def votes(self, text):
        """(matched, continuation): the longest matches, of those the latest."""
        found = self.own(text) + self.stored(text)
        found.sort(key=lambda vote: -vote[0])
        return found[: self.options["max_votes"]]

    def own(self, text):
        found = []
        for end in range(len(text) - 1, 0, -1):
            size = self.agreement(text, text[:end])
            if size >= self.options["min_match"]:
                tail = text[end:]
                if self.options["overrun"] == "repeat":
                    tail = tail * self.options["max_depth"]
                found.append((size, tuple(tail[: self.options["max_depth"]])))
        return found

    def stored(self, text):
        """Those of the store, in the order of its suffix array, size by size."""
        known, found = self.store, []
        order = sorted(range(len(known)), key=lambda at: known[at:])
        size, bias = self.options["min_match"], self.options["store_bias"]
        size += bias
        while known and size <= self.options["max_match"]:
            after = 2 * size if 2 * size <= self.options["max_match"] else 10**6
            for end in (at + size for at in order):
                matched = self.agreement(text, known[:end])
                if size <= matched < after and end <= len(known):
                    tail = [*known[end:], suffix_array.SEPARATOR]
                    tail = tail[: tail.index(suffix_array.SEPARATOR)]
                    cut = tuple(tail[: self.options["max_depth"]])
                    found.append((matched - bias, cut))
            size *= 2
        return found

    def agreement(self, text, other):
        most = min(self.options["max_match"], len(other), len(text))
        sizes = (n for n in range(most) if text[-1 - n] != other[-1 - n])
        return next(sizes, most)

    def grow(self, votes, size, room):
        """(parts of chance, -order, path, confidence) of a trie's likeliest nodes."""
        count, born = collections.Counter(), {}
        for at, (_, tail) in enumerate(votes):
            for end in range(len(tail) + 1):
                count[tail[:end]] += 1
                born.setdefault(tail[:end], at)
        limit = np.floor(self.options["factor"] * size + self.options["offset"])
        limit = min(limit, room - 1, self.options["max_depth"])
        least = max(round(self.options["min_chance"] * STEPS), 1)
        heap, grown = [], []

        def push(path, chance):
            children = [p for p in count if p and p[:-1] == path]
            if self.options["tree"] is False:
                children.sort(key=lambda p: (-count[p], born[p]))
                children = children[:1]
            for child in children if len(path) < limit else []:
                worth = confidence(child)
                parts = round(chance * worth * STEPS)
                if parts >= least:
                    key = (-parts, len(child), born[child])
                    heapq.heappush(heap, (key, child, chance * worth, worth))

        def confidence(path):
            if self.options["count_self"]:
                return count[path] / (count[path[:-1]] + (len(path) == 1))
            discount = 1.4 / (size + len(path) - 1 + 0.9)
            return (count[path] - discount) / count[path[:-1]]

        push((), 1.0)
        while heap and len(grown) < self.options["max_nodes"]:
            key, path, chance, worth = heapq.heappop(heap)
            grown.append((-key[0], key[1:], path, worth))
            push(path, chance)
        return grown


def test_the_reference_example():
    """Twice "1 2 3", once followed by 1 2 4: half a chance, and then certain.

    After "3" alone the draft is one token, after "2 3" two: scores 0.5, 1.0, 1.5.
    """
    for size in (1, 2, 3):
        options = {**SMALL, **REFERENCE, "max_match": size}
        nodes = drafted(suffix(**options), [REFERENCE_TEXT])[0]
        draft = [(1, -1), (2, 0), (4, 1)][:size]
        assert shape(nodes) == draft
        assert [chance for *_, chance in nodes] == [0.5, 1.0, 1.0][:size]


def test_the_same_example_as_estimates_of_acceptance():
    """One vote: (n - 0.5) / (n + 0.9) after 3, 4 and 5 tokens that agree."""
    nodes = drafted(
        suffix(**SMALL, factor=1.0, offset=0.0, overrun="cut"), [REFERENCE_TEXT]
    )[0]
    assert shape(nodes) == [(1, -1), (2, 0), (4, 1)]
    expected = [2.5 / 3.9, 3.5 / 4.9, 4.5 / 5.9]
    np.testing.assert_allclose([c for *_, c in nodes], expected, rtol=1e-6)


def test_a_tree_of_three_votes():
    """After "5" came 1 2, 1 3 and 7 7; a token of match gives a discount of 1.4 / 1.9.

    Below the first tokens two agree, so it is 1.4 / 2.9. Chances are 0.421, 0.109
    twice, the latest vote first, 0.088 and 0.045.
    """
    text = [5, 7, 7, 5, 1, 3, 5, 1, 2, 5]
    options = {"factor": 0.0, "offset": 2.0, "min_chance": 0.0, "max_nodes": 9}
    nodes = drafted(suffix(**SMALL, **options), [text])[0]
    assert shape(nodes) == [(1, -1), (2, 0), (3, 0), (7, -1), (7, 3)]
    first, second = 1.4 / 1.9, 1.4 / 2.9
    two, one = (2 - first) / 3, (1 - first) / 3
    expected = [two, (1 - second) / 2, (1 - second) / 2, one, 1 - second]
    np.testing.assert_allclose([c for *_, c in nodes], expected, rtol=1e-6)


def test_a_shorter_match_wins_by_its_votes():
    """By plain shares: "2 5" says 3 for 1 of 2; "5" says 1 for 4 of 6, 3 for 1 of 6."""
    text = [2, 5, 3, 5, 1, 9, 5, 1, 8, 5, 1, 7, 5, 1, 2, 5]
    options = {**SMALL, **REFERENCE, "factor": 0.0, "offset": 1.0}
    assert drafted(suffix(**options), [text]) == [[(1, -1, pytest.approx(4 / 6))]]


def test_a_tie_goes_to_the_longer_match():
    """By plain shares: "2 5" says 3 for 1 of 2; "5" says 1 for 2 of 4, 3 for 1 of 4."""
    text = [2, 5, 3, 5, 1, 9, 5, 1, 2, 5]
    options = {**SMALL, **REFERENCE, "factor": 0.0, "offset": 1.0}
    assert drafted(suffix(**options), [text]) == [[(3, -1, 0.5)]]


def test_the_longer_the_match_the_deeper_the_draft():
    texts = [[1, 9, 8, 7, 6, 1], [2, 1, 9, 8, 7, 2, 1], [3, 2, 1, 9, 8, 7, 3, 2, 1]]
    rows = drafted(suffix(**SMALL, min_chance=0.0, overrun="cut"), texts)
    assert [len(nodes) for nodes in rows] == [1, 3, 5]


def test_a_continuation_goes_on_with_the_period_of_the_match():
    options = {**SMALL, "factor": 0.0, "offset": 7.0, "min_chance": 0.0, "tree": False}
    text = [1, 2, 3, 1, 2]
    chain = drafted(suffix(**options), [text])[0]
    assert [token for token, *_ in chain] == [3, 1, 2, 3, 1, 2, 3]
    cut = drafted(suffix(**options, overrun="cut"), [text])[0]
    assert [token for token, *_ in cut] == [3, 1, 2]


def test_unlikely_nodes_are_left_out():
    """After "5" seven different tokens: (1 - 1.4 / 1.9) / 7 = 0.0376 each."""
    text = [token for other in range(6, 13) for token in (5, other)] + [5]
    assert drafted(suffix(**SMALL, min_chance=0.04), [text]) == [[]]
    assert len(drafted(suffix(**SMALL, min_chance=0.03), [text])[0]) == 7


@pytest.mark.parametrize(
    "options",
    [
        {"max_votes": 6, "max_nodes": 9},
        {"overrun": "cut", "factor": 1.5, "offset": 1.0, "min_match": 2},
        {**REFERENCE, "max_match": 4},
    ],
)
@hypothesis.given(data=st.data())
def test_agrees_with_the_oracle(data, options):
    text = st.lists(st.integers(0, 2), max_size=CAPACITY - 1)
    texts = data.draw(st.lists(text, min_size=3, max_size=3))
    options = {"max_match": 5, "max_depth": 4, **options}
    oracle = Oracle(**options)
    rows = drafted(suffix(**options), texts)
    for nodes, row in zip(rows, texts, strict=True):
        expected = oracle.nodes(row, 99)
        assert shape(nodes) == shape(expected)
        np.testing.assert_allclose(
            [c for *_, c in nodes], [c for *_, c in expected], rtol=1e-5
        )


@hypothesis.given(st.lists(st.integers(0, 2), max_size=CAPACITY - 1), st.integers(0, 9))
def test_a_tree_is_sound_and_within_its_bounds(text, room):
    drafter = suffix(max_match=5, max_depth=4, max_votes=6, max_nodes=9)
    depth, sons = {-1: 0}, collections.Counter()
    for at, (token, parent, chance) in enumerate(drafted(drafter, [text], room)[0]):
        assert parent < at
        assert (parent, token) not in sons
        depth[at] = depth[parent] + 1
        sons[parent, token] += 1
        assert 0 < chance <= 1
    assert len(depth) - 1 <= drafter.bounds.nodes
    assert max(depth.values()) <= min(drafter.bounds.depth, max(room - 1, 0))
    per_node = collections.Counter(parent for parent, _ in sons)
    assert max(per_node.values(), default=0) <= drafter.bounds.branching


@pytest.mark.parametrize(("temperature", "tree"), [(0.0, True), (0.8, False)])
def test_rounds_agree_with_the_oracle(temperature, tree):
    options = {"max_match": 6, "max_votes": 6, "max_depth": 5, "tree": tree}
    runs = replay.check(
        suffix(**options),
        lambda: Oracle(**options),
        [[1, 2, 3, 1, 2], [5], [4, 4, 1, 6, 4, 4, 2, 6, 4, 4, 1, 0]],
        temperature=temperature,
    )
    seen = [one for run in runs for one in run]
    assert any(one.drafts for one in seen)
    assert any(one.path for one in seen)
    assert (
        any(parent < at - 1 for o in seen for at, (_, parent) in enumerate(o.drafts))
        == tree
    )


def test_continues_the_spine_of_a_tree():
    """With drafts 3 4 already under the text, it looks up "3 4" and has less room."""
    drafter = suffix(**SMALL, overrun="cut")
    view, root = view_of([[1, 3, 4, 9, 8, 7, 1]], room=4)
    tree = tree_lib.append_chain(
        root(9),
        token=jnp.asarray([[3, 4]], jnp.int32),
        count=jnp.asarray([2], jnp.int32),
        confidence=jnp.ones((1, 2), jnp.float32),
        anchor=jnp.zeros((1,), jnp.int32),
    )
    grown, _ = jax.jit(drafter.propose)({"drafter": {}}, (), view, tree)
    assert grown.token[0, : int(grown.num_nodes[0])].tolist() == [1, 3, 4, 9]
    assert int(grown.parent[0, 3]) == 2


def store_of(*documents):
    text = suffix_array.join(documents)
    return datastore.Datastore(
        arrays={"text": text, "order": suffix_array.build(text)},
        fingerprint="abc",
        vocab_size=99,
        documents=len(documents),
        tokens=len(text) - len(documents),
    )


def stored(store, texts, **options):
    held = suffix_with_store(store, **{**SMALL, "min_chance": 0.0, **options})
    return drafted(held.drafter, texts, params=held.params)


def test_a_store_votes_where_the_text_has_nothing_to_say():
    """Three tokens agree there, which count as 3 - 1 of one's own."""
    store = store_of([7, 1, 2, 3, 4, 5], [2, 3, 9])
    nodes = stored(store, [[6, 1, 2, 3]])[0]
    assert shape(nodes) == [(4, -1), (5, 0)]
    assert nodes[0][2] == pytest.approx(float(match.confidence_after(jnp.int32(2))))


def test_a_text_votes_before_its_store():
    """Own "1 2" and the store's "1 2 3" less one match alike; the text's goes first."""
    nodes = stored(store_of([3, 1, 2, 9]), [[1, 2, 8, 3, 1, 2]])[0]
    assert [token for token, parent in shape(nodes) if parent < 0] == [8, 9]


def test_many_occurrences_in_a_store_are_sampled_evenly():
    """30 of "1 2 5", 10 of "1 2 6"; every fifth of the 40 is counted, 6 and 2."""
    store = store_of(*[[1, 2, 5]] * 30, *[[1, 2, 6]] * 10)
    (first, second) = stored(store, [[1, 2]])[0]
    discount = 1.4 / 1.9
    assert first == (5, -1, pytest.approx((6 - discount) / 8))
    assert second == (6, -1, pytest.approx((2 - discount) / 8))


@hypothesis.given(data=st.data())
def test_a_store_agrees_with_the_oracle(data):
    tokens = st.integers(0, 3)
    text = st.lists(tokens, max_size=CAPACITY - 1)
    texts = data.draw(st.lists(text, min_size=3, max_size=3))
    half = data.draw(st.lists(tokens, min_size=15, max_size=15))
    store = store_of(half, half[::-1])
    options = {"max_match": 7, "max_depth": 4, "max_votes": 30, "min_chance": 0.05}
    oracle = Oracle(store=store.arrays["text"].tolist(), **options)
    rows = stored(store, texts, **options)
    assert [shape(nodes) for nodes in rows] == [oracle.propose(t, 99) for t in texts]


def test_a_store_without_texts_changes_nothing():
    assert stored(store_of(), [REFERENCE_TEXT]) == drafted(
        suffix(**SMALL, min_chance=0.0), [REFERENCE_TEXT]
    )


def test_a_store_keeps_its_tokenizer():
    held = suffix_with_store(store_of([1, 2]))
    assert (held.fingerprint, set(held.params)) == ("abc", {"text", "order"})


def test_a_bias_that_no_match_in_the_store_can_make_up_for():
    with pytest.raises(ValueError, match=r"store_bias must be 0 to .* = 0 with"):
        suffix_with_store(store_of([1, 2]), max_match=3, min_match=3)
    assert drafted(suffix(max_match=3, min_match=3), [[1, 2]]) == [[]]


@pytest.mark.parametrize(
    "options",
    [
        {"min_match": 0},
        {"min_match": 4, "max_match": 3},
        {"max_nodes": 0},
        {"max_depth": 0},
        {"max_votes": 0},
        {"min_chance": -0.1},
        {"min_chance": 1.5},
        {"overrun": "whole"},
        {"factor": 0.0},
        {"offset": float("nan")},
        {"store_bias": -1},
    ],
)
def test_bad_options(options):
    with pytest.raises(
        ValueError, match=f"suffix: ({'|'.join(options)}|factor|store_bias)"
    ):
        suffix(**options)
