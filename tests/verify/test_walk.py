"""The walk under the default rule: plain decoding, cut to what the tree holds."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specjax import verify
from specjax.core import processors, reading
from specjax.core import sampling as sampling_lib
from specjax.core import tree as tree_lib
from specjax.verify.exact import draw

ROWS, SLOTS, VOCAB = 3, 8, 5
EVERY = np.ones(ROWS, bool)


@functools.partial(jax.jit, static_argnames="name")
def walk(hidden, tree, view, ready=EVERY, *, name="exact"):
    rule, ready = verify.by_name(name), jnp.asarray(ready)
    return rule.verify(
        reading.logits_at(lambda x: x, hidden, tree), tree, view, ready, SLOTS
    )


@jax.jit
def plain_step(state, sampling, logits, position):
    token = draw(processors.apply(state, sampling, logits), sampling, position)
    every = jnp.ones(token.shape, jnp.bool_)
    return token, processors.advance(state, sampling, token, every)


def plain(view, roots, logits_of, count):
    """Decodes ``count`` tokens a row, one by one."""
    contexts, state = [tuple(root) for root in roots], view.processors
    position = view.history.length
    for _ in range(count):
        logits = jnp.asarray(np.stack([logits_of(c, VOCAB) for c in contexts]))
        token, state = plain_step(state, view.sampling, logits, position)
        position = position + 1
        contexts = [(*c, int(t)) for c, t in zip(contexts, token, strict=True)]
    return [c[len(root) :] for c, root in zip(contexts, roots, strict=True)]


def emitted(outcome, num_trunk=1):
    tokens = np.asarray(outcome.token)[:, num_trunk - 1 :]
    return [tuple(row[:n]) for row, n in zip(tokens, outcome.num_new, strict=True)]


@st.composite
def planted(draw_):
    """Rows of (token, parent) pairs: a root and up to SLOTS - 1 drafts."""
    rows, tokens = [], st.integers(0, VOCAB - 1)
    for _ in range(ROWS):
        row = [(draw_(tokens), -1)]
        for slot in range(1, draw_(st.integers(1, SLOTS))):
            row.append((draw_(tokens), draw_(st.integers(0, slot - 1))))
        rows.append(row)
    return rows


def steered(rows, tokens):
    """Overwrites the first chain of each row with what plain decoding emits."""
    out = []
    for row, wanted in zip(rows, tokens, strict=True):
        chain = [row[0], *((int(t), at) for at, t in enumerate(wanted))]
        out.append(chain + [(t, min(p, at)) for at, (t, p) in enumerate(row[1:])])
    return [row[:SLOTS] for row in out]


def per_row(make_view, options):
    one = [sampling_lib.SamplingOptions(**o) for o in options]
    view = make_view(ROWS, VOCAB)
    sampling = sampling_lib.pack(one, range(ROWS))
    state = processors.start(view.history, sampling, VOCAB)
    return dataclasses.replace(view, sampling=sampling, processors=state)


OPTIONS = (
    {"temperature": 0.0},
    {"temperature": 0.9, "seed": 5},
    {
        "temperature": 1.3,
        "top_k": 4,
        "top_p": 0.9,
        "min_p": 0.01,
        "repetition_penalty": 1.4,
        "presence_penalty": 0.3,
        "frequency_penalty": 0.7,
        "logit_bias": {1: 0.5},
        "banned_ids": [2],
        "seed": 7,
    },
)


@given(planted(), st.integers(0, 1000), st.booleans())
def test_tokens_are_those_of_plain_decoding(
    make_view, plant, table, contexts, logits_of, rows, seed, steer
):
    view = per_row(make_view, [{**o, "seed": seed} for o in OPTIONS])
    expected = plain(view, [[row[0][0]] for row in rows], logits_of, SLOTS)
    if steer:
        rows = steered(rows, [tokens[:4] for tokens in expected])
    verdict = walk(table(rows, SLOTS, VOCAB), plant(rows, SLOTS), view)
    for row, wanted, got in zip(rows, expected, emitted(verdict.outcome), strict=True):
        drafted = {context[1:] for context in contexts(row)}
        kept = max(n for n in range(SLOTS) if wanted[:n] in drafted)
        assert got == wanted[: kept + 1]


def test_the_picture_of_the_tree(make_view, plant):
    """Trunk "the cat"; "sat" then "on" are right, and the bonus follows them."""
    the, cat, sat, ran, on = 0, 1, 2, 3, 4
    rows = [[(the, -1), (cat, 0), (sat, 1), (ran, 1), (on, 2)]] * ROWS
    best = np.array([cat, sat, on, ran, the, 0, 0, 0])  # after each slot
    hidden = np.broadcast_to(5 * np.eye(VOCAB)[best], (ROWS, SLOTS, VOCAB))
    tree, view = plant(rows, SLOTS, num_trunk=2), make_view(ROWS, VOCAB)
    outcome = walk(jnp.asarray(hidden, jnp.float32), tree, view).outcome
    np.testing.assert_array_equal(outcome.path_slot[0], [0, 1, 2, 4, 0, 0, 0, 0])
    np.testing.assert_array_equal(outcome.token[0], [cat, sat, on, the, 0, 0, 0, 0])
    np.testing.assert_array_equal(outcome.num_path, [4] * ROWS)
    np.testing.assert_array_equal(outcome.num_new, [3] * ROWS)
    expected = np.array([0, 1, 1, 1, 0, 0, 0, 0]) * (5 - np.log(np.exp(5) + 4))
    np.testing.assert_allclose(outcome.log_prob[0], expected, rtol=1e-5)


def _right_chain(make_view, logits_of, table, count, **options):
    """A view, and a tree of each row's own next ``count`` tokens."""
    view = make_view(ROWS, VOCAB, **options)
    roots = [[row] for row in range(ROWS)]
    tokens = plain(view, roots, logits_of, count + 1)
    rows = steered([[(root[0], -1)] for root in roots], [t[:count] for t in tokens])
    return view, tokens, rows, table(rows, SLOTS, VOCAB)


def test_budget_ends_the_walk(make_view, plant, logits_of, table):
    view, tokens, rows, hidden = _right_chain(make_view, logits_of, table, 4)
    view = dataclasses.replace(view, room=jnp.asarray([0, 2, 9], jnp.int32))
    outcome = walk(hidden, plant(rows, SLOTS), view).outcome
    assert emitted(outcome) == [(), tokens[1][:2], tokens[2][:5]]
    np.testing.assert_array_equal(outcome.num_path, [1, 3, 5])


def test_stop_id_ends_the_walk(make_view, plant, logits_of, table):
    view, tokens, rows, hidden = _right_chain(make_view, logits_of, table, 4)
    stops = np.full((ROWS, sampling_lib.MAX_STOP_IDS), sampling_lib.NO_ID, np.int32)
    stops[1, 3] = tokens[1][1]
    sampling = dataclasses.replace(view.sampling, stop_ids=jnp.asarray(stops))
    view = dataclasses.replace(view, sampling=sampling)
    got = emitted(walk(hidden, plant(rows, SLOTS), view).outcome)
    upto = tokens[1].index(tokens[1][1]) + 1
    assert got == [tokens[0][:5], tokens[1][:upto], tokens[2][:5]]


def test_rows_that_are_not_ready_emit_nothing(make_view, plant, logits_of, table):
    view, tokens, rows, hidden = _right_chain(make_view, logits_of, table, 4)
    verdict = walk(hidden, plant(rows, SLOTS), view, np.array([True, False, True]))
    outcome = verdict.outcome
    assert emitted(outcome) == [tokens[0][:5], (), tokens[2][:5]]
    np.testing.assert_array_equal(outcome.num_path, [5, 1, 5])
    np.testing.assert_array_equal(verdict.processors.num_emitted, [5, 0, 5])
    empty = dataclasses.replace(
        plant(rows, SLOTS),
        num_trunk=jnp.zeros((ROWS,), jnp.int32),
        num_nodes=jnp.zeros((ROWS,), jnp.int32),
    )
    outcome = walk(hidden, empty, view, ~EVERY).outcome
    assert not np.any(outcome.num_path)
    assert not np.any(outcome.token)


@given(planted())
def test_equal_siblings_walk_as_their_merged_trie(
    make_view, plant, table, contexts, rows
):
    view = make_view(ROWS, VOCAB, temperature=0.5)
    merged = []
    for row in rows:
        paths = contexts(row)
        order = sorted(set(paths), key=lambda path: (len(path), path))
        at = {path: slot for slot, path in enumerate(order)}
        merged.append([(path[-1], at.get(path[:-1], -1)) for path in order])
    twins = walk(table(rows, SLOTS, VOCAB), plant(rows, SLOTS), view).outcome
    trie = walk(table(merged, SLOTS, VOCAB), plant(merged, SLOTS), view).outcome
    for name in ("token", "num_path", "num_new", "log_prob"):
        np.testing.assert_array_equal(getattr(twins, name), getattr(trie, name))


@given(planted(), st.randoms(use_true_random=False))
def test_slots_are_only_names(make_view, plant, table, contexts, rows, random):
    """Nodes in another order: the same tokens, and the same path by tags."""
    view = make_view(ROWS, VOCAB, temperature=0.5)
    rows = [_without_twins(row, contexts) for row in rows]
    orders = [_parents_first(row, random) for row in rows]
    moved = [
        [(row[old][0], _index(order, row[old][1])) for old in order]
        for row, order in zip(rows, orders, strict=True)
    ]
    first = walk(table(rows, SLOTS, VOCAB), plant(rows, SLOTS), view).outcome
    other = walk(table(moved, SLOTS, VOCAB), plant(moved, SLOTS), view).outcome
    np.testing.assert_array_equal(first.token, other.token)
    for at, order in enumerate(orders):
        count = int(first.num_path[at])
        names = [order[slot] for slot in np.asarray(other.path_slot)[at, :count]]
        assert names == list(np.asarray(first.path_slot)[at, :count])


def _without_twins(row, contexts):
    paths = contexts(row)
    order = list(dict.fromkeys(paths))
    return [(path[-1], _index(order, path[:-1])) for path in order]


def _index(order, item):
    return order.index(item) if item in order else -1


def _parents_first(row, random):
    order, waiting = [0], list(range(1, len(row)))
    while waiting:
        able = [slot for slot in waiting if row[slot][1] in order]
        order.append(random.choice(able))
        waiting.remove(order[-1])
    return order


@given(planted(), st.integers(0, 2**32 - 1))
def test_nodes_dropped_by_pack_leave_no_trace(
    make_view, plant, table, contexts, rows, seed
):
    """A tree with dead branches, packed, is the tree without them."""
    view = make_view(ROWS, VOCAB, temperature=0.5)
    generator = np.random.default_rng(seed)
    keep = np.zeros((ROWS, SLOTS), bool)
    for at, row in enumerate(rows):
        for slot, (_, parent) in enumerate(row):
            keep[at, slot] = slot == 0 or (
                keep[at, parent] and generator.random() < 0.7
            )
    packed = tree_lib.pack(plant(rows, SLOTS), jnp.asarray(keep))
    alone = []
    for row, kept in zip(rows, keep, strict=True):
        left = [slot for slot in range(len(row)) if kept[slot]]
        alone.append([(row[slot][0], _index(left, row[slot][1])) for slot in left])
    expected = plant(alone, SLOTS)
    for name in ("token", "parent", "depth", "num_trunk", "num_nodes"):
        np.testing.assert_array_equal(getattr(packed, name), getattr(expected, name))
    hidden = table(alone, SLOTS, VOCAB)
    _same(walk(hidden, packed, view), walk(hidden, expected, view))


@pytest.mark.parametrize("name", ["exact", "rejection", "without_replacement"])
def test_padding_is_never_read(make_view, plant, logits_of, table, name):
    """Random values in unused slots: bitwise the same verdict."""
    options = {"temperature": 0.5}
    view, _, rows, hidden = _right_chain(make_view, logits_of, table, 3, **options)
    rows[1] = rows[1][:2]
    tree = plant(rows, SLOTS)
    generator = np.random.default_rng(1)
    used = np.asarray(tree_lib.node_mask(tree))

    def noisy(field, top):
        other = generator.integers(0, top, used.shape)
        return jnp.asarray(np.where(used, field, other))

    dirty = dataclasses.replace(
        tree,
        token=noisy(tree.token, VOCAB),
        parent=noisy(tree.parent, 4),
        depth=noisy(tree.depth, SLOTS),
        tag=noisy(tree.tag, SLOTS),
    )
    junk = jnp.asarray(generator.normal(size=hidden.shape), jnp.float32)
    dirty_hidden = jnp.where(jnp.asarray(used)[:, :, None], hidden, junk)
    clean = walk(hidden, tree, view, name=name)
    _same(walk(dirty_hidden, dirty, view, name=name), clean)


@pytest.mark.parametrize("name", ["exact", "without_replacement"])
def test_rows_alone_agree(make_view, plant, logits_of, table, name):
    options = {"temperature": 0.5}
    view, _, rows, hidden = _right_chain(make_view, logits_of, table, 3, **options)
    batch = (hidden, plant(rows, SLOTS), view)
    together = walk(*batch, name=name)
    for at in range(ROWS):
        alone = walk(*_row(at, batch), np.ones(1, bool), name=name)
        _same(alone, _row(at, together), tolerance=1e-6)


@pytest.mark.parametrize("name", ["exact", "without_replacement"])
def test_eager_agrees(make_view, plant, logits_of, table, name):
    options = {"temperature": 0.5}
    view, _, rows, hidden = _right_chain(make_view, logits_of, table, 3, **options)
    batch = (hidden, plant(rows, SLOTS), view)
    eager = walk.__wrapped__(*batch, name=name)
    _same(eager, walk(*batch, name=name), tolerance=1e-6)


def _row(at, pytree):
    return jax.tree.map(lambda x: np.asarray(x)[at : at + 1], pytree)


def _same(first, other, tolerance=0.0):
    for one, two in zip(jax.tree.leaves(first), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(one, two, rtol=tolerance, atol=tolerance)


def test_grammar_and_minimum_hold_along_the_path(make_view, plant):
    """Ids alternate between even and odd; id 4 stops, but not before 3 tokens."""
    even = np.arange(VOCAB) % 2 == 0
    after = np.stack([np.where(even, 1, -1), np.where(even, -1, 0)])
    shared = {"next": jnp.asarray(after, jnp.int32)}
    grammar = sampling_lib.Grammar(shared=shared, start=jnp.zeros((ROWS,), jnp.int32))
    view = make_view(ROWS, VOCAB, stop_token_ids=[4], min_new_tokens=3)
    sampling = dataclasses.replace(view.sampling, grammar=grammar)
    view = dataclasses.replace(view, sampling=sampling)
    # The target likes 4, then 2, then 3: 4 is a stop id and too early at the first
    # and the third token, and not odd at the second and the fourth.
    liking = jnp.asarray([0.0, 1.0, 3.0, 2.0, 4.0])
    hidden = jnp.broadcast_to(liking[None, None], (ROWS, SLOTS, VOCAB))
    rows = [[(0, -1), (4, 0), (2, 0), (3, 2), (2, 3), (4, 3), (1, 5)]] * ROWS
    outcome = walk(hidden, plant(rows, SLOTS), view).outcome
    assert emitted(outcome) == [(2, 3, 2, 3)] * ROWS
