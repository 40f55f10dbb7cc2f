"""Prompt lookup against the worked examples and a NumPy oracle."""

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import drafters
from specjax.core import contracts
from specjax.core import history as history_lib
from specjax.core import tree as tree_lib

CAPACITY = 24
REFERENCE = {
    "min_ngram": 1,
    "max_ngram": 3,
    "long_match": 1,
    "recent": False,
}
_PROPOSE = {}


def propose(texts, room=20, **options):
    """Drafts of each text, as lists."""
    drafter = drafters.prompt_lookup(**options)
    tokens = np.zeros((len(texts), CAPACITY), np.int32)
    for row, text in enumerate(texts):
        tokens[row, : len(text)] = text
    lengths = jnp.asarray([len(text) for text in texts], jnp.int32)
    history = history_lib.create(jnp.asarray(tokens), lengths, CAPACITY)
    view = contracts.View(
        history=history,
        sampling=None,
        processors=None,
        start=jnp.maximum(history.length - 1, 0),
        room=jnp.full((len(texts),), room, jnp.int32),
        rounds=jnp.zeros((len(texts),), jnp.int32),
    )
    root = tree_lib.trunk(
        history, lengths - 1, jnp.ones_like(lengths), 1 + drafter.bounds.nodes
    )
    run = _PROPOSE.setdefault(drafter, jax.jit(drafter.propose))
    tree, _ = run({}, (), view, root)
    tree = jax.tree.map(np.asarray, tree)
    return [
        tree.token[row, 1 : tree.num_nodes[row]].tolist() for row in range(len(texts))
    ]


def oracle(
    text,
    *,
    max_ngram,
    min_ngram,
    max_draft,
    short_draft,
    long_match,
    recent,
    overrun,
):
    """The longest match by slices of a Python list."""
    for size in range(min(max_ngram, len(text) - 1), min_ngram - 1, -1):
        ends = [
            end
            for end in range(size, len(text))
            if text[end - size : end] == text[-size:]
            and (overrun != "whole" or end + max_draft <= len(text))
        ]
        if not ends:
            continue
        end = ends[-1] if recent else ends[0]
        count = max_draft if size >= long_match else min(short_draft, max_draft)
        tail = text[end:]
        if overrun == "repeat":
            return [tail[i % len(tail)] for i in range(count)]
        return tail[:count]
    return []


@pytest.mark.parametrize(
    ("text", "max_draft", "overrun", "draft"),
    [
        ([1, 2, 3, 4, 5, 1, 2], 3, "whole", [3, 4, 5]),
        ([1, 2, 3, 4, 5, 1, 2], 10, "whole", []),
        ([1, 2, 3, 4, 5, 1, 2], 10, "cut", [3, 4, 5, 1, 2]),
        ([7, 7, 7, 7], 2, "whole", [7, 7]),
        ([1, 2, 3, 9, 2, 3, 8, 2, 3], 2, "cut", [9, 2]),
        ([1, 2, 3, 4, 5, 1, 2], 7, "repeat", [3, 4, 5, 1, 2, 3, 4]),
    ],
)
def test_worked_examples(text, max_draft, overrun, draft):
    options = {**REFERENCE, "max_draft": max_draft, "overrun": overrun}
    assert propose([text], **options) == [draft]


def test_the_most_recent_of_equal_matches():
    text = [1, 2, 3, 1, 2, 4, 1, 2]
    options = {"min_ngram": 2, "max_draft": 2, "overrun": "cut"}
    assert propose([text], recent=True, **options) == [[4, 1]]
    assert propose([text], recent=False, **options) == [[3, 1]]


def test_a_short_match_drafts_nothing_and_a_longer_one_more():
    options = {"min_ngram": 2, "max_draft": 4, "short_draft": 2, "long_match": 3}
    one = [5, 1, 9, 8, 7, 6, 1]
    two = [5, 1, 9, 8, 7, 6, 5, 1]
    three = [4, 5, 1, 9, 8, 7, 6, 4, 5, 1]
    assert propose([one, two, three], **options) == [
        [],
        [9, 8],
        [9, 8, 7, 6],
    ]


def test_never_more_than_there_is_room_for():
    text = [1, 2, 3, 4, 5, 1, 2]
    options = {**REFERENCE, "max_draft": 5, "overrun": "cut"}
    assert propose([text], room=3, **options) == [[3, 4]]
    assert propose([text], room=1, **options) == [[]]
    assert propose([text], room=0, **options) == [[]]


@pytest.mark.parametrize("recent", [True, False])
@pytest.mark.parametrize("overrun", ["repeat", "cut", "whole"])
@hypothesis.given(data=st.data())
def test_agrees_with_the_oracle(data, recent, overrun):
    text = st.lists(st.integers(0, 2), min_size=1, max_size=CAPACITY - 1)
    texts = data.draw(st.lists(text, min_size=3, max_size=3))
    options = {
        "max_ngram": 4,
        "min_ngram": 2,
        "max_draft": 5,
        "short_draft": 2,
        "long_match": 3,
        "recent": recent,
        "overrun": overrun,
    }
    assert propose(texts, **options) == [oracle(t, **options) for t in texts]


@pytest.mark.parametrize(("room", "added"), [(9, [9, 8]), (4, [9]), (3, []), (0, [])])
def test_continues_the_spine_of_a_tree(room, added):
    """With drafts 3 4 already under the text, it looks up '3 4' and goes on.

    With room for 4 tokens drafts may be 3 deep, and two of these are there.
    """
    drafter = drafters.prompt_lookup(min_ngram=2, max_draft=2, overrun="cut")
    text = jnp.asarray([[1, 3, 4, 9, 8, 1] + [0] * 18], jnp.int32)
    length = jnp.asarray([6], jnp.int32)
    history = history_lib.create(text, length, CAPACITY)
    tree = tree_lib.trunk(history, length - 1, jnp.ones_like(length), 6)
    tree = tree_lib.append_chain(
        tree,
        token=jnp.asarray([[3, 4]], jnp.int32),
        count=jnp.asarray([2], jnp.int32),
        confidence=jnp.ones((1, 2), jnp.float32),
        anchor=jnp.zeros((1,), jnp.int32),
    )
    view = contracts.View(
        history=history,
        sampling=None,
        processors=None,
        start=jnp.maximum(history.length - 1, 0),
        room=jnp.asarray([room], jnp.int32),
        rounds=jnp.zeros((1,), jnp.int32),
    )
    tree, _ = drafter.propose({}, (), view, tree)
    assert tree.token[0, : int(tree.num_nodes[0])].tolist() == [1, 3, 4, *added]
    assert tree.parent[0, 3 : 3 + len(added)].tolist() == [2, 3][: len(added)]


@pytest.mark.parametrize(
    "options",
    [
        {"min_ngram": 0},
        {"min_ngram": 4, "max_ngram": 3},
        {"max_draft": 0},
        {"short_draft": 0},
        {"long_match": 0},
        {"overrun": "loop"},
    ],
)
def test_bad_options(options):
    with pytest.raises(ValueError, match="prompt_lookup"):
        drafters.prompt_lookup(**options)
