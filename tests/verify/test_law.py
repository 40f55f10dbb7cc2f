"""The twins against the worked examples, which were found with rational numbers."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specjax.verify import law

P = np.array([1 / 2, 3 / 10, 1 / 5])
Q = np.array([1 / 5, 1 / 2, 3 / 10])


def same(found, expected):
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


def transport_bound(p, candidate_sets):
    """alpha* = min over H of 1 + p(H) - P(all candidates in H)."""
    vocab = range(len(p))
    subsets = itertools.chain.from_iterable(
        itertools.combinations(vocab, size) for size in range(len(p) + 1)
    )
    return min(
        1
        + sum(p[x] for x in subset)
        - sum(w for w, tokens in candidate_sets if set(tokens) <= set(subset))
        for subset in subsets
    )


def drawn_sets(q, count):
    return [
        (weight, [candidate.token for candidate in candidates])
        for weight, candidates in law.drawings([law.Drawn(q, count)], len(q))
    ]


def test_single_candidate():
    found = law.rejection(P, Q)
    same(found.acceptance, 7 / 10)
    same(found.output, P)
    same(law.residual(P, Q), [1, 0, 0])
    same(np.minimum(1, P / Q), [1, 3 / 5, 2 / 3])


def test_two_without_replacement():
    found = law.without_replacement(P, Q, 2)
    same(found.acceptance, 283 / 350)
    same(found.acceptance - law.rejection(P, Q).acceptance, 19 / 175)
    same(found.output, P)


def test_deterministic_top_two():
    found = law.exact(P, [1, 2])
    same(found.acceptance, 1 / 2)
    same(found.output, P)
    points = np.eye(3)
    split = law.try_in_order(
        P, [law.Candidate(1, points[1]), law.Candidate(2, points[2])]
    )
    # 3/10, then 2/7 of what is left.
    same(split.kept, [3 / 10, 7 / 10 * 2 / 7])


def test_transport_bounds():
    same(transport_bound(P, drawn_sets(Q, 1)), 7 / 10)
    same(transport_bound(P, drawn_sets(Q, 2)), 69 / 70)
    twice = [(Q[a] * Q[b], (a, b)) for a in range(3) for b in range(3)]
    same(transport_bound(P, twice), 43 / 50)


laws = st.lists(st.integers(0, 6), min_size=4, max_size=4).filter(any)


@given(laws, laws, st.integers(1, 3))
def test_every_rule_serves_the_target_within_the_bound(p, q, count):
    p, q = np.array(p) / sum(p), np.array(q) / sum(q)
    top = np.argsort(-q, kind="stable")[:count]
    cases = (
        (law.rejection(p, q), drawn_sets(q, 1)),
        (law.without_replacement(p, q, count), drawn_sets(q, count)),
        (law.exact(p, top), [(1.0, list(top))]),
    )
    for found, candidate_sets in cases:
        same(found.output, p)
        assert found.acceptance <= transport_bound(p, candidate_sets) + 1e-12
    assert cases[1][0].acceptance >= cases[0][0].acceptance - 1e-12


@given(laws, st.permutations(range(4)))
def test_testing_point_masses_in_order_is_one_shared_draw(p, tokens):
    p = np.array(p) / sum(p)
    groups = [law.Fixed(tokens[:3])]
    one = law.one_token(law.try_in_order, p, groups)
    other = law.one_token(law.shared_draw, p, groups)
    same(one.output, other.output)
    same(one.acceptance, other.acceptance)


@given(laws, laws, laws)
def test_siblings_of_different_laws_serve_the_target(p, q, r):
    p, q, r = (np.array(x) / sum(x) for x in (p, q, r))
    groups = [law.Drawn(q, 2), law.Fixed([2]), law.Drawn(r, 1)]
    same(law.one_token(law.try_in_order, p, groups).output, p)


@pytest.mark.parametrize("rule", [law.try_in_order, law.try_first, law.shared_draw])
def test_trees_of_depth_two_serve_the_target(rule):
    generator = np.random.default_rng(0)
    target = {c: generator.dirichlet(np.ones(3)) for c in [(), (0,), (1,), (2,)]}
    draft = {c: generator.dirichlet(np.ones(3)) for c in target}

    def drafts(context):
        if len(context) > 1:
            return ()
        if rule is law.shared_draw:
            return [law.Fixed(np.argsort(-draft[context])[:2])]
        return [law.Drawn(draft[context], 2)]

    found = law.joint(rule, lambda c: target[c], drafts, 2)
    expected = np.stack([target[()][x] * target[(x,)] for x in range(3)])
    same(found.output, expected)
    assert 0 < found.accepted < 2


# Wrong on purpose: the check of the law must see it.


def test_point_mass_tested_by_the_draft_law_is_seen():
    # The candidate is argmax q = 1, but it is accepted as if drawn from q.
    split = law.try_in_order(P, [law.Candidate(1, Q)])
    output = split.rest + split.kept[0] * np.eye(3)[1]
    same(output, [2 / 5, 3 / 5, 0])
    assert np.abs(output - P).sum() / 2 > 0.25


def test_residual_by_argmax_is_seen():
    p, q = np.array([2 / 5, 2 / 5, 1 / 5]), np.array([1 / 10, 1 / 5, 7 / 10])
    same(law.residual(p, q), [3 / 5, 2 / 5, 0])

    def greedy_residual(p, candidates):
        split = law.try_in_order(p, candidates)
        best = np.eye(3)[np.argmax(split.rest)]
        return law.Split(split.kept, split.rest.sum() * best)

    found = law.one_token(greedy_residual, p, [law.Drawn(q, 1)])
    same(found.acceptance, 1 / 2)
    same(found.output, [3 / 5, 1 / 5, 1 / 5])


def test_dropping_candidates_by_their_value_is_seen():
    p, q = np.array([1 / 2, 1 / 2]), np.array([9 / 10, 1 / 10])

    def timid(p, candidates):
        kept = [c for c in candidates if q[c.token] >= 1 / 2]
        split = law.try_in_order(p, kept)
        return law.Split(np.append(split.kept, [0.0])[:1], split.rest)

    same(law.one_token(timid, p, [law.Drawn(q, 1)]).output, [11 / 20, 9 / 20])
