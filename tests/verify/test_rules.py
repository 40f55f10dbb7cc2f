"""Whole rules over sampled drafts: the law of what they emit."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from specjax import verify
from specjax.core import noise, reading
from specjax.core import tree as tree_lib
from specjax.verify import law
from specjax.verify.candidates import draw_without_replacement

DRAWS, VOCAB = 200_000, 4


def padded(*rows):
    """A law, or one by first token, of three tokens; a fourth is never emitted."""
    laws = np.pad(np.array(rows), ((0, 0), (0, 1)))
    return laws[0] if len(rows) == 1 else np.concatenate([laws, laws[:1]])


# The worked example, with the context-dependent table of section 9.6.
TARGET = (
    padded([1 / 2, 3 / 10, 1 / 5]),
    padded([0.1, 0.6, 0.3], [0.4, 0.4, 0.2], [1 / 3, 1 / 3, 1 / 3]),
)
DRAFT = (
    padded([1 / 5, 1 / 2, 3 / 10]),
    padded([0.3, 0.3, 0.4], [0.2, 0.2, 0.6], [0.5, 0.25, 0.25]),
)
# Laws whose residuals hold several tokens, so that how these are drawn matters.
RICH_TARGET = (
    np.array([0.4, 0.3, 0.2, 0.1]),
    np.array([[0.1, 0.2, 0.4, 0.3], [0.3, 0.1, 0.3, 0.3]] * 2),
)
RICH_DRAFT = (
    np.array([0.1, 0.2, 0.3, 0.4]),
    np.array([[0.4, 0.4, 0.1, 0.1], [0.1, 0.7, 0.1, 0.1]] * 2),
)
TABLES = {"worked": (TARGET, DRAFT), "rich": (RICH_TARGET, RICH_DRAFT)}


def at_context(tables, context):
    return tables[1][context[0]] if context else tables[0]


def twin_drafts(draft, width, sampled):
    """What ``drafted`` puts at each context, for the twins."""

    def drafts(context):
        if len(context) > 1:
            return ()
        q = at_context(draft, context)
        if sampled:
            return [law.Drawn(q, width)]
        return [law.Fixed(np.argsort(-q, kind="stable")[:width])]

    return drafts


def drafted(view, rounds, draft, width, pick, with_laws):
    """A tree of depth 2 under each row's root, ``width`` children a node."""
    rows = rounds.shape[0]
    slots = 1 + width + width * width
    position = view.history.length
    key = noise.lane(view.sampling.key, noise.LANE_DRAFT, rounds)
    laws = [jnp.broadcast_to(draft[0][None], (rows, VOCAB))]
    tokens = [pick(laws[0], key, position, width)]
    parents, law_rows = [tree_lib.NO_PARENT] * width, [0] * width
    for child in range(width):
        laws.append(draft[1][tokens[0][:, child]])
        tokens.append(pick(laws[-1], key, position + 1, width))
        parents += [child] * width
        law_rows += [child + 1] * width
    ones = jnp.ones((rows,), jnp.int32)
    return tree_lib.append(
        tree_lib.trunk(view.history, position - 1, ones, slots),
        token=jnp.concatenate(tokens, axis=1),
        parent=jnp.asarray(parents, jnp.int32),
        count=ones * (slots - 1),
        tag=jnp.arange(slots - 1, dtype=jnp.int32),
        confidence=jnp.ones((rows, slots - 1)),
        anchor=ones * 0,
        law=jnp.asarray(law_rows, jnp.int32) if with_laws else None,
        laws=jnp.stack(laws, axis=1) if with_laws else None,
    )


def best(law_rows, key, position, count):
    del key, position
    return jax.lax.top_k(law_rows, count)[1].astype(jnp.int32)


@functools.partial(jax.jit, static_argnames=("name", "width", "pick", "with_laws"))
def two_tokens(view, rounds, target, draft, *, name, width, pick, with_laws):
    """The first two tokens i32[B, 2], how many drafts were kept, and the tree."""
    tree = drafted(view, rounds, draft, width, pick, with_laws)
    target = [jnp.log(table) for table in target]
    own = target[1][jnp.where(tree.depth == 1, tree.token, 0)]
    hidden = jnp.where((tree.depth == 0)[:, :, None], target[0][None, None], own)
    ready = jnp.ones(rounds.shape, jnp.bool_)
    rule = verify.by_name(name)
    view = dataclasses.replace(view, rounds=rounds)
    outcome = rule.verify(
        reading.logits_at(lambda x: x, hidden, tree), tree, view, ready, 2
    ).outcome
    # A round that emitted one token is completed from the target.
    first, second = outcome.token[:, 0], outcome.token[:, 1]
    plain = jax.random.categorical(jax.random.key(9), target[1][first], axis=1)
    second = jnp.where(outcome.num_new > 1, second, plain.astype(jnp.int32))
    return jnp.stack([first, second], axis=1), outcome.num_path - 1, tree


def run(view, name, width, sampled, *, rounds=0, tables="worked", with_laws=None):
    target, draft = (
        [jnp.asarray(table, jnp.float32) for table in tables_]
        for tables_ in (TABLES[tables] if isinstance(tables, str) else tables)
    )
    tokens, kept, tree = two_tokens(
        view,
        jnp.asarray(np.full(DRAWS, rounds, np.int32)),
        target,
        draft,
        name=name,
        width=width,
        pick=draw_without_replacement if sampled else best,
        with_laws=sampled if with_laws is None else with_laws,
    )
    return np.asarray(tokens), np.asarray(kept), tree


@pytest.fixture(scope="module")
def view(make_view):
    return make_view(DRAWS, VOCAB, temperature=1.0)


EXACT = ("exact", 2, False)
REJECTION = ("rejection", 1, True)
WITHOUT = ("without_replacement", 2, True)
POINTS = ("without_replacement", 2, False)
TWINS = {
    "exact": law.shared_draw,
    "rejection": law.try_first,
    "without_replacement": law.try_in_order,
}


@pytest.mark.parametrize("tables", TABLES)
@pytest.mark.parametrize("case", [EXACT, REJECTION, WITHOUT, POINTS])
def test_law_of_two_tokens(view, case, tables):
    name, width, sampled = case
    target, draft = TABLES[tables]
    tokens, kept, _ = run(view, *case, tables=tables)
    counts = np.zeros((VOCAB, VOCAB))
    np.add.at(counts, tuple(tokens.T), 1)
    expected = target[0][:, None] * target[1]
    assert not counts[expected == 0].any()
    distance = np.abs(counts / DRAWS - expected).sum() / 2
    assert distance < 4 * np.sqrt(VOCAB**2 / DRAWS)
    found, wanted = counts[expected > 0], DRAWS * expected[expected > 0]
    chi = ((found - wanted) ** 2 / wanted).sum()
    assert scipy.stats.chi2.sf(chi, found.size - 1) > 1e-4
    twin = law.joint(
        TWINS[name],
        functools.partial(at_context, target),
        twin_drafts(draft, width, sampled),
        2,
    )
    np.testing.assert_allclose(twin.output, expected, atol=1e-12)
    assert abs(kept.mean() - twin.accepted) < 5 * kept.std() / np.sqrt(DRAWS)


@pytest.mark.parametrize(
    ("case", "first"),
    [(EXACT, 1 / 2), (REJECTION, 7 / 10), (WITHOUT, 283 / 350), (POINTS, 1 / 2)],
)
def test_worked_acceptance_of_the_first_token(view, case, first):
    _, kept, _ = run(view, *case)
    assert (kept > 0).mean() == pytest.approx(first, abs=5e-3)


def test_drafts_of_a_wrong_law_are_seen(view):
    """Wrong on purpose: the best of q, handed on as if drawn from q."""
    tokens, _, _ = run(view, "rejection", 1, False, with_laws=True)
    found = np.bincount(tokens[:, 0], minlength=VOCAB) / DRAWS
    np.testing.assert_allclose(found, [2 / 5, 3 / 5, 0, 0], atol=5e-3)
    assert np.abs(found - TARGET[0]).sum() / 2 > 4 * np.sqrt(VOCAB / DRAWS)


@pytest.mark.parametrize("case", [EXACT, REJECTION, WITHOUT])
def test_at_temperature_zero_every_rule_is_greedy(view, case):
    cold = dataclasses.replace(view.sampling, temperature=view.sampling.temperature * 0)
    cold = dataclasses.replace(view, sampling=cold)
    tokens, kept, tree = run(cold, *case)
    best_first = TARGET[0].argmax()
    best_second = TARGET[1][best_first].argmax()
    np.testing.assert_array_equal(tokens[:, 0], best_first)
    np.testing.assert_array_equal(tokens[kept > 0, 1], best_second)
    width = case[1]
    drafted_best = np.any(np.asarray(tree.token)[:, 1 : 1 + width] == best_first, 1)
    np.testing.assert_array_equal(kept > 0, drafted_best)


@pytest.mark.parametrize("case", [REJECTION, WITHOUT])
def test_drafts_from_the_target_itself_are_all_kept(view, case):
    _, kept, _ = run(view, *case, tables=(TARGET, TARGET))
    # Softmax of log p is p up to rounding, and a test may miss by that much.
    assert kept.mean() > 2 - 1e-5


def test_lanes_do_not_repeat_from_round_to_round(view):
    first, again, later = (run(view, *REJECTION, rounds=r)[0] for r in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    equal = np.mean(first[:, 0] == later[:, 0])
    assert equal == pytest.approx((TARGET[0] ** 2).sum(), abs=0.01)


def test_rules_by_name():
    for name in ("exact", "rejection", "without_replacement"):
        rule = verify.by_name(name)
        assert rule is getattr(verify, name)()
        assert rule.lossless
        assert rule.same_tokens == (name == "exact")
        assert rule.needs_laws == (name != "exact")


def test_unknown_rule_is_named_with_the_choices():
    with pytest.raises(ValueError, match=r"exact, rejection, without.*'exakt'"):
        verify.by_name("exakt")
