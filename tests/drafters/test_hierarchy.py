"""Databases in order: quota, order, duplicates, and what is not asked."""

import dataclasses
import functools

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import Engine
from specjax.core import contracts, reading
from specjax.core import tree as tree_lib
from specjax.drafters import equipped
from specjax.drafters.compose.hierarchy import hierarchy
from specjax.drafters.lookup.context_ngrams import context_ngrams
from specjax.drafters.lookup.prompt_lookup import prompt_lookup
from specjax.verify.exact import exact
from tests import tiny_model
from tests.drafters import replay
from tests.drafters import test_context_ngrams as contexts
from tests.drafters.fixed import fixed

NODES = 7  # of a scripted child
ROWS = CHILDREN = 3  # few shapes and options, few programs
BUDGET = {"quota": 7, "max_nodes": 8}
REFERENCE = {"quota": 7, "compat": True}


@functools.cache
def scripted(name="scripted"):
    """Drafts the tree that its params hold, row by row.

    Its state counts how often it ran, and how often with room for the row.

    Params: token, parent i32[B, NODES], confidence f32[B, NODES], count i32[B].
    """

    def init(params, rows, capacity):
        return {name: jnp.zeros((rows,), jnp.int32) for name in ("ran", "asked")}

    def propose(params, state, view, tree):
        asked = view.room > 1
        state = {
            "ran": state["ran"] + 1,
            "asked": state["asked"] + asked.astype(jnp.int32),
        }
        own = params["drafter"]
        tree = tree_lib.append(
            tree,
            token=own["token"],
            parent=own["parent"],
            count=jnp.where(asked, own["count"], 0),
            tag=jnp.arange(NODES, dtype=jnp.int32),
            confidence=own["confidence"],
            anchor=tree_lib.spine_end(tree),
        )
        return tree, state

    return contracts.Drafter(
        init=init,
        propose=propose,
        observe=lambda params, state, view, tree, outcome: state,
        bounds=contracts.Bounds(nodes=NODES, depth=NODES, branching=NODES),
        needs=contracts.Needs(),
        sources=(contracts.Source(name, NODES),),
    )


def arrays(trees):
    """Params of a scripted child: for each row a list of (token, parent, confidence).

    Confidence is 0.5 where it is left out.
    """
    fields = {
        "token": np.zeros((len(trees), NODES), np.int32),
        "parent": np.full((len(trees), NODES), -1, np.int32),
        "confidence": np.full((len(trees), NODES), 0.5, np.float32),
    }
    for row, tree in enumerate(trees):
        for at, node in enumerate(tree):
            for name, value in zip(fields, node, strict=False):
                fields[name][row, at] = value
    count = np.asarray([len(tree) for tree in trees], np.int32)
    return {name: jnp.asarray(x) for name, x in {**fields, "count": count}.items()}


def listed(*chains):
    """Chains as one tree without shared nodes, level by level."""
    nodes, last = [], {}
    for level in range(max(map(len, chains), default=0)):
        for at, chain in enumerate(chains):
            if level < len(chain):
                nodes.append((chain[level], last.get(at, -1)))
                last[at] = len(nodes) - 1
    return nodes


def paths_of(nodes):
    """The tokens from the root to each node, as tuples."""
    paths = []
    for token, parent in nodes:
        paths.append((*paths[parent], token) if parent >= 0 else (token,))
    return paths


def ends_of(nodes):
    """The paths to nodes that no other path goes on from, by their first occurrence."""
    paths = list(dict.fromkeys(paths_of(nodes)))
    inner = {path[:-1] for path in paths}
    return [path for path in paths if path not in inner]


def combined(trees, quota, most):
    """What a hierarchy drafts of the trees of its children, in plain Python."""
    ends, kept = [], []  # chains so far; paths of kept nodes in order
    for nodes in trees:
        if len(ends) >= quota or len(kept) >= most:
            break
        wanted, older = [], list(ends)
        known = {chain[:size] for chain in ends for size in range(len(chain) + 1)}
        for chain in sorted(ends_of(nodes), key=len, reverse=True):
            if chain in known:
                continue
            below = [end for end in older if chain[: len(end)] == end]
            if below and below[0] in ends:
                ends.remove(below[0])
            if len(ends) >= quota:
                ends += below
                break
            ends.append(chain)
            wanted += [chain[: size + 1] for size in range(len(chain))]
        wanted = [path for path in dict.fromkeys(wanted) if path not in kept]
        wanted = set(wanted[: most - len(kept)])
        kept += [path for path in dict.fromkeys(paths_of(nodes)) if path in wanted]
    at = {path: index for index, path in enumerate(kept)}
    return [(path[-1], at.get(path[:-1], -1)) for path in kept]


def apart(trees):
    """The same trees with tokens that differ everywhere, so that nothing is equal."""
    return [
        [((token, child, at), parent) for at, (token, parent) in enumerate(nodes)]
        for child, nodes in enumerate(trees)
    ]


@functools.cache
def jitted(function):
    return jax.jit(function)


def grow(make_view, rows, rooms=(20,) * ROWS, children=CHILDREN, **options):
    """One proposal of a hierarchy of scripted children: (tree, state).

    Args:
      make_view: the fixture.
      rows: rows[row][child], a tree each; what is missing is empty.
      rooms: of the rows.
      children: how many there are.
      **options: of the hierarchy.
    """
    blank = [[]] * children
    rows = [[*row, *blank][:children] for row in [*rows, *[blank] * ROWS][:ROWS]]
    drafter = hierarchy(*[scripted(f"s{at}") for at in range(children)], **options)
    params = tuple(arrays(trees) for trees in zip(*rows, strict=True))
    view = make_view(ROWS, 7)
    view = dataclasses.replace(view, room=jnp.asarray(rooms, jnp.int32))
    one = jnp.ones((ROWS,), jnp.int32)
    root = tree_lib.trunk(view.history, view.start, one, 1 + drafter.bounds.nodes)
    params = {"drafter": params}
    state = drafter.init(params, ROWS, 16)
    return jitted(drafter.propose)(params, state, view, root)


def drafts_of(tree):
    """(token, parent) of the drafts of each row."""
    tree = jax.tree.map(np.asarray, tree)
    return [
        [
            (int(tree.token[row, slot]), max(int(tree.parent[row, slot]) - 1, -1))
            for slot in range(1, tree.num_nodes[row])
        ]
        for row in range(tree.token.shape[0])
    ]


def drafted(make_view, rows, **options):
    """Drafts of a hierarchy of scripted children for each row."""
    return drafts_of(grow(make_view, rows, **options)[0])[: len(rows)]


def random_trees():
    """Three rows of three children's trees: trees[row][child]."""
    node = st.tuples(st.integers(0, 2), st.integers(0, 99))
    nodes = st.lists(node, max_size=NODES).map(
        lambda pairs: [(t, up % (at + 1) - 1) for at, (t, up) in enumerate(pairs)]
    )
    one_row = st.lists(nodes, min_size=3, max_size=3)
    return st.lists(one_row, min_size=3, max_size=3)


@pytest.mark.parametrize(("quota", "max_nodes"), [(3, 0), (7, 8)])
@hypothesis.given(rows=random_trees())
def test_agrees_with_plain_python(make_view, rows, quota, max_nodes):
    found = drafted(make_view, rows, quota=quota, max_nodes=max_nodes)
    most = max_nodes or min(quota * NODES, 3 * NODES)
    assert found == [combined(trees, quota, most) for trees in rows]
    assert all(len(ends_of(nodes)) <= quota for nodes in found)


@hypothesis.given(rows=random_trees())
def test_as_in_the_reference_equal_chains_count_apart(make_view, rows):
    found = drafted(make_view, rows, **REFERENCE)
    expected = [combined(apart(trees), 7, 3 * NODES) for trees in rows]
    assert found == [
        [(label[0], parent) for label, parent in nodes] for nodes in expected
    ]


@hypothesis.given(rows=random_trees())
def test_the_last_changes_nothing_where_the_quota_was_met(make_view, rows):
    """Rows that are met share the batch with rows that are not."""
    whole = drafted(make_view, rows, quota=3)
    without = drafted(make_view, rows, quota=3, children=2)
    for before, after in zip(without, whole, strict=True):
        if len(ends_of(before)) == 3:
            assert after == before
        assert after[: len(before)] == before  # the others only gain nodes


W, S = [(1,), (2,), (3,)], [(at,) for at in range(11, 18)]  # worse ones first


@pytest.mark.parametrize(("compat", "step"), [(True, 1), (False, -1)])
def test_seven_of_ten(make_view, compat, step):
    """Worked example: three of the first database, four of the second, none of a third.

    The reference reads w1 w2 w3 s1 s2 s3 s4; with the newest and the most frequent
    first, as databases draft them here, it is w3 w2 w1 s7 s6 s5 s4.
    """
    rows = [[listed(*W[::step]), listed(*S[::step]), listed((4,))]] * ROWS
    tree, state = grow(make_view, rows, **(REFERENCE if compat else BUDGET))
    assert ends_of(drafts_of(tree)[0]) == [*W[::step], *S[::step][:4]]
    assert [int(child["ran"][0]) for child in state] == [1, 1, 0]


def runs(make_view, rows, **options):
    """How often each child ran, and for which rows; with a quota of 3."""
    _, state = grow(make_view, rows, quota=3, **options)
    return [(int(child["ran"][0]), child["asked"].tolist()) for child in state]


def test_a_child_that_no_row_needs_is_not_run(make_view):
    full, half = listed((1, 2), (3, 4), (5, 6)), listed((1, 2))
    never = (0, [0, 0, 0])
    assert runs(make_view, [[full, half, half]] * ROWS) == [(1, [1] * 3), never, never]
    rows = [[full, half], [half, full], [full]]
    assert runs(make_view, rows) == [(1, [1] * 3), (1, [0, 1, 0]), never]
    rows = [[full, half], [half, half], [half, full]]
    assert runs(make_view, rows) == [(1, [1] * 3), (1, [0, 1, 1]), (1, [0, 1, 0])]


def test_idle_rows_need_nothing(make_view):
    rows = [[listed((1, 2))]] * ROWS
    assert runs(make_view, rows, rooms=[0, 1, 0]) == [(0, [0, 0, 0])] * 3
    assert runs(make_view, rows, rooms=[0, 2, 1]) == [(1, [0, 1, 0])] * 3


def test_repeats_and_beginnings_of_others_go(make_view):
    """Worked example: 8 9 is where 8 9 1 2 begins, 8 7 is not."""
    rows = [[listed((8, 9, 1), (8, 9), (8,))], [listed((8, 9), (8, 9), (8, 7))]]
    found = drafted(make_view, rows, **BUDGET)
    assert found == [[(8, -1), (9, 0), (1, 1)], [(8, -1), (9, 0), (7, 0)]]


def test_the_longest_of_a_child_go_first(make_view):
    rows = [[listed((1,), (2, 3)), listed((4,), (5, 6))]]
    assert ends_of(drafted(make_view, rows, quota=3)[0]) == [(1,), (2, 3), (5, 6)]


def test_a_longer_chain_takes_the_place_of_its_beginning(make_view):
    """1 2 3 lengthens 1 2; 1 2 4 does so second and takes a place, so 5 has none."""
    rows = [[listed((1, 2), (6,)), listed((1, 2, 3), (1, 2, 4), (5,))]]
    found = drafted(make_view, rows, quota=3)[0]
    assert ends_of(found) == [(6,), (1, 2, 3), (1, 2, 4)]


def test_the_budget_cuts_the_last_chain_short(make_view):
    rows = [[listed((1, 2, 3)), listed((4, 5, 6)), listed((7, 8, 9))]]
    found = drafted(make_view, rows, **BUDGET)[0]
    assert ends_of(found) == [(1, 2, 3), (4, 5, 6), (7, 8)]


def test_tags_and_confidence_of_what_is_kept(make_view):
    first = [(1, -1, 0.3), (2, 0, 0.5)]
    second = [(1, -1, 0.8), (3, -1, 0.4), (4, 0, 0.6)]
    tree, _ = grow(make_view, [[first, second]], quota=3)
    # 1, 1-2 of the first; 3 and 1-4 of the second, whose tags begin at NODES.
    assert drafts_of(tree)[0] == [(1, -1), (2, 0), (3, -1), (4, 0)]
    assert tree.tag[0, 1:5].tolist() == [0, 1, NODES + 1, NODES + 2]
    np.testing.assert_allclose(tree.confidence[0, 1:5], [0.8, 0.5, 0.4, 0.6])


def test_one_draw_a_node_has_the_law_of_candidates_in_turn(make_view):
    """Worked example: p = a .5, b .3, c .2, candidates a and b of two databases.

    In turn: a is accepted with .5; else b with .3 / (1 - .5) = .6, that is .5 * .6 =
    .3 in all; else c, .5 * .4 = .2. Here all three draws are tried, each in a row of
    its own: whether the child that carries the drawn token is kept gives the law.
    """
    p = np.array([0.5, 0.3, 0.2])
    tree, _ = grow(make_view, [[listed((0,)), listed((1,))]] * 3, quota=3)
    draws = 50.0 * jnp.eye(3)  # row y draws token y after every node
    hidden = jnp.broadcast_to(draws[:, None], (3, tree.slots, 3))
    view = make_view(3, 3)
    ready = jnp.ones((3,), jnp.bool_)
    verdict = exact().verify(
        reading.logits_at(lambda x: x, hidden, tree), tree, view, ready, 1
    )
    kept, law = np.zeros(3), np.zeros(3)
    for y in range(3):
        law[int(verdict.outcome.token[y, 0])] += p[y]
        if int(verdict.outcome.num_path[y]) == 2:
            slot = int(verdict.outcome.path_slot[y, 1])
            kept[int(tree.token[y, slot])] += p[y]
    np.testing.assert_allclose(kept, [0.5, 0.5 * 0.6, 0.0])
    np.testing.assert_allclose(law, [0.5, 0.5 * 0.6, 0.5 * 0.4])


class LookupOracle:
    """The latest earlier occurrence of the last token, cut at the end of the text."""

    def propose(self, text, room):
        ends = [at for at in range(1, len(text)) if text[at - 1] == text[-1]]
        draft = text[ends[-1] :][: min(5, room - 1)] if ends else []
        return [(token, at - 1) for at, token in enumerate(draft)]

    def observe(self, seen):
        pass


class HierarchyOracle:
    def __init__(self, quota, most):
        options = {"key_tokens": 1, "max_phrases": 3, "compat": False}
        self.children = [
            contexts.Oracle(ngram=4, **options),
            contexts.Oracle(ngram=3, **options),
            LookupOracle(),
        ]
        self.quota, self.most = quota, most

    def propose(self, text, room):
        if room < 2:
            return []
        trees = [child.propose(text, room) for child in self.children]
        return combined(trees, self.quota, self.most)

    def observe(self, seen):
        for child in self.children:
            child.observe(seen)


def test_a_whole_hierarchy_over_rounds():
    options = {"max_phrases": 3, "buckets": 64}
    lookup = prompt_lookup(
        min_ngram=1, max_ngram=1, max_draft=5, long_match=1, overrun="cut"
    )
    drafter = hierarchy(
        context_ngrams(ngram=4, **options),
        context_ngrams(ngram=3, **options),
        lookup,
        quota=3,
        max_nodes=10,
    )
    rng = np.random.default_rng(1)
    prompts = [rng.integers(0, 7, size).tolist() for size in (2, 9, 25)]
    runs = replay.check(
        drafter, lambda: HierarchyOracle(3, 10), prompts, temperature=0.5
    )
    tags = {tag for run in runs for seen in run for tag in seen.tags}
    # The ranges of the three children begin at 0, 3 * 3 and 9 + 3 * 2.
    assert {(tag >= 9) + (tag >= 15) for tag in tags} == {0, 1, 2}
    assert sum(len(seen.path) > 2 for run in runs for seen in run) > 5


def test_children_observe_what_they_were_not_asked_for():
    """What stands behind a child that fills the quota alone learns as well."""
    text = [0, 1, 2, 0, 1, 3]
    alone = context_ngrams(ngram=3, max_phrases=3, buckets=64)
    behind = hierarchy(fixed((1, -1, 0.5)), alone, quota=1)
    learnt = contexts.after_prompt(alone, text)
    jax.tree.map(
        np.testing.assert_array_equal, contexts.after_prompt(behind, text)[1], learnt
    )
    assert int(learnt.table.clock[0]) == 4


def test_bounds_needs_and_sources():
    first = fixed((1, -1, 0.5), (3, -1, 0.5), (2, 0, 0.5), top_k=2, name="first")
    second = fixed((1, -1, 0.5), (2, 0, 0.5), (3, 1, 0.5), name="second")
    both = hierarchy(first, second, quota=3)
    assert both.bounds == contracts.Bounds(nodes=6, depth=3, branching=3)
    assert both.needs.top_k == 2
    assert [source.name for source in both.sources] == ["first", "second"]
    assert hierarchy(first, second, quota=1).bounds == (3, 3, 1)
    assert hierarchy(first, second, max_nodes=4).bounds == (4, 3, 3)
    assert hierarchy(second).bounds == (3, 3, 1)


def test_params_of_equipped_children():
    held = equipped.Equipped(scripted(), {"weights": 1}, "words", "scripted", 7)
    made = hierarchy(held, fixed((1, -1, 0.5)), quota=2)
    assert made.params == ({"weights": 1}, {})
    assert made.label == "hierarchy(scripted, fixed)"


@pytest.mark.parametrize("options", [{"quota": 0}, {"max_nodes": -1}])
def test_bad_options(options):
    (name,) = options
    with pytest.raises(ValueError, match=f"hierarchy: {name} must be"):
        hierarchy(fixed((1, -1, 0.5)), **options)


def test_no_child_is_too_few():
    with pytest.raises(ValueError, match="at least 1 drafters"):
        hierarchy()


def test_laws_are_dropped(make_view):
    """A child that draws from laws fits beside one that does not; none is handed on."""
    plain = fixed((1, -1, 0.5))

    def propose(params, state, view, tree):
        grown, state = plain.propose(params, state, view, tree)
        law = jnp.where(tree_lib.node_mask(grown), 0, tree_lib.NO_LAW)
        laws = jnp.full((law.shape[0], 1, 7), 1 / 7)
        return dataclasses.replace(grown, law=law, laws=laws), state

    drawn = plain._replace(propose=propose, needs=contracts.Needs(laws=True))
    for drafter in (hierarchy(drawn, plain), hierarchy(plain, drawn)):
        view = make_view(1, 7)
        one = jnp.ones((1,), jnp.int32)
        root = tree_lib.trunk(view.history, view.start, one, 3)
        state = drafter.init(contexts.PARAMS, 1, 16)
        grow = functools.partial(drafter.propose, contexts.PARAMS)
        tree, _ = jax.eval_shape(grow, state, view, root)
        assert tree.law is None
        assert tree.laws is None
        assert not drafter.needs.laws


def test_fewer_nodes_than_a_chain_is_long():
    """The walk may not go deeper than the tree is wide."""
    made = equipped.equip(hierarchy(prompt_lookup(max_draft=9), max_nodes=3))
    assert made.drafter.bounds == contracts.Bounds(nodes=3, depth=3, branching=1)
    lm, text = tiny_model.language_model(), [5, 6, 7, 5, 6, 7, 5, 6]
    options = {"max_new_tokens": 12, "ignore_eos": True}
    wanted, got = (
        Engine(lm, drafter, widths=(1,), prompt_widths=(16,)).generate(text, **options)
        for drafter in ("none", made)
    )
    assert got.tokens == wanted.tokens
