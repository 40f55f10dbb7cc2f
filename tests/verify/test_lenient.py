"""The lenient review: its law, its noise, and what it keeps at temperature 0."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specjax import verify
from specjax.core import reading
from specjax.core import tree as tree_lib
from specjax.verify import law, walk
from specjax.verify import lenient as lenient_lib
from specjax.verify.lenient import lenient

VOCAB = 5
P = np.array([0.4, 0.25, 0.2, 0.1, 0.05])


def chains(drafts, laws, vocab_size):
    """A chain of drafts under each root, and the logits after each of its nodes.

    Args:
      drafts: rows of tokens.
      laws: rows of laws, one more than drafts.
      vocab_size: V.
    """
    drafts = np.asarray(drafts, np.int32)
    rows, length = drafts.shape
    slot = np.broadcast_to(np.arange(length + 1, dtype=np.int32), (rows, length + 1))
    tree = tree_lib.TokenTree(
        token=jnp.asarray(np.pad(drafts, ((0, 0), (1, 0)))),
        parent=jnp.asarray(slot - 1),
        depth=jnp.asarray(slot),
        tag=jnp.asarray(slot - 1),
        confidence=jnp.asarray(np.ones((rows, length + 1), np.float32)),
        num_trunk=jnp.asarray(np.ones(rows, np.int32)),
        num_nodes=jnp.asarray(np.full(rows, length + 1, np.int32)),
    )
    shape = (rows, length + 1, vocab_size)
    with np.errstate(divide="ignore"):
        logits = np.log(np.broadcast_to(np.asarray(laws, np.float64), shape))
    return tree, jnp.asarray(logits, jnp.float32)


def review(make_view, rule, tree, logits, **options):
    """Outcome of a review of all rows, each with its own seed."""
    rows, slots, vocab_size = logits.shape
    view = make_view(rows, vocab_size, **options)
    ready = jnp.ones((rows,), jnp.bool_)

    @jax.jit
    def run(logits, tree, view, ready):
        logits_at = reading.logits_at(lambda x: x, logits, tree)
        return rule.verify(logits_at, tree, view, ready, slots - 1)

    return run(logits, tree, view, ready).outcome


def emitted(outcome, row=0):
    return outcome.token[row, : int(outcome.num_new[row])].tolist()


@pytest.mark.parametrize("rule", [verify.exact(), verify.rejection(), lenient(1.0)])
@pytest.mark.parametrize(
    ("best", "expected"),
    [([7, 8, 4, 1], [7, 8, 4]), ([7, 8, 9, 1], [7, 8, 9, 1])],
)
def test_greedy_review(make_view, rule, best, expected):
    """Drafts 7 8 9: kept up to the first that is not the model's best token."""
    tree, logits = chains([[7, 8, 9]], [np.eye(10)[best]], 10)
    assert emitted(review(make_view, rule, tree, logits)) == expected


@pytest.mark.parametrize(
    ("lenience", "token", "expected"),
    [
        (1.0, 0, 0),  # the best token is kept by any lenience
        (3.0, 1, 0),  # 0.25 is not above 1/3
        (4.0, 1, 0),  # nor above 1/4
        (4.1, 1, 1),
        (5.1, 2, 2),  # 0.2 > 1/5.1
        (5.1, 3, 0),
    ],
)
def test_lenient_at_temperature_0(make_view, lenience, token, expected):
    tree, logits = chains([[token]], P, VOCAB)
    found = review(make_view, lenient(lenience), tree, logits)
    assert emitted(found)[0] == expected
    assert int(found.num_new[0]) == 1 + (token == expected)


def emission_rows(make_view, tokens, lenience, temperature=1.0):
    tree, logits = chains([[token] for token in tokens], P, VOCAB)
    view = make_view(len(tokens), VOCAB, temperature=temperature)
    root = jnp.arange(2)[None] == jnp.zeros((len(tokens), 1), jnp.int32)
    place = walk.Place(
        logits=logits[:, 0],
        tree=tree,
        alive=root,
        position=view.history.length,
        round_index=view.rounds,
        sampling=view.sampling,
    )
    children = walk.children(tree, root)
    return np.asarray(lenient_lib.emission_law(place, children, lenience))


def test_emission_law_at_a_tiny_temperature_is_all_on_the_best(make_view):
    best = int(np.argmax(P))
    laws = emission_rows(make_view, [best, 1 - best], 3.0, temperature=1e-38)
    np.testing.assert_array_equal(laws, np.eye(VOCAB)[[best, best]])


@pytest.mark.parametrize("lenience", [1.0, 2.0, 3.0, 1e6])
def test_emission_rows_are_the_twin_s(make_view, lenience):
    found = emission_rows(make_view, range(VOCAB), lenience)
    expected = [law.emission(P, token, lenience) for token in range(VOCAB)]
    np.testing.assert_allclose(found, expected, atol=1e-6)
    np.testing.assert_allclose(found.sum(axis=1), 1, atol=1e-6)


def test_emission_of_a_worked_example(make_view):
    # a = 3 * 0.1; the rest of p, 0.9, shares 0.7.
    expected = np.where(np.arange(5) == 3, 0.3, P * 0.7 / 0.9)
    np.testing.assert_allclose(emission_rows(make_view, [3], 3.0)[0], expected, 1e-5)


def test_without_lenience_the_law_is_the_model_s(make_view):
    found = emission_rows(make_view, range(VOCAB), 1.0)
    np.testing.assert_allclose(found, np.tile(P, (VOCAB, 1)), atol=1e-6)


def test_a_certain_token_leaves_nothing_to_draw(make_view):
    tree, logits = chains([[1], [2]], np.eye(VOCAB)[1], VOCAB)
    found = review(make_view, lenient(2.0), tree, logits, temperature=1.0)
    assert [emitted(found, row) for row in range(2)] == [[1, 1], [1]]


laws = st.lists(st.integers(0, 6), min_size=4, max_size=4).filter(any)


@given(laws, st.permutations(range(4)), st.integers(0, 3), st.floats(1, 9))
def test_twins_keep_the_bound(p, tokens, count, lenience):
    """Rows sum to 1, and no token gets more than lenience times its probability."""
    p = np.array(p) / sum(p)
    found = law.one_token(law.lenient(lenience), p, [law.Fixed(tokens[:count])])
    assert found.output.sum() == pytest.approx(1, abs=1e-12)
    assert np.all(found.output <= lenience * p + 1e-12)
    assert found.acceptance >= law.exact(p, tokens[:count]).acceptance - 1e-12


@pytest.mark.parametrize("coupled", [False, True])
def test_law_of_what_is_emitted(make_view, coupled):
    """20000 seeds; the distance expected of a sample is at most ``noise``."""
    rows, lenience = 20_000, 3.0
    tree, logits = chains([[3]] * rows, P, VOCAB)
    rule = lenient(lenience, coupled=coupled)
    found = review(make_view, rule, tree, logits, temperature=1.0)
    share = np.bincount(np.asarray(found.token[:, 0]), minlength=VOCAB) / rows
    expected = law.emission(P, 3, lenience)
    noise = 0.5 * np.sqrt(expected * (1 - expected) / rows).sum()
    assert 0.5 * np.abs(share - expected).sum() < 2 * noise


def test_the_noise_of_a_lane_changes_with_the_round(make_view):
    tree, logits = chains([[3]] * 64, P, VOCAB)
    view = make_view(64, VOCAB, temperature=1.0)
    ready = jnp.ones((64,), jnp.bool_)

    def tokens(rule, rounds):
        at = dataclasses.replace(view, rounds=jnp.full((64,), rounds, jnp.int32))
        verdict = rule.verify(
            reading.logits_at(lambda x: x, logits, tree), tree, at, ready, 1
        )
        return verdict.outcome.token[:, 0].tolist()

    assert tokens(lenient(3.0), 0) != tokens(lenient(3.0), 1)
    coupled = lenient(3.0, coupled=True)
    assert tokens(coupled, 0) == tokens(coupled, 1)


def test_coupled_without_lenience_is_exact(make_view):
    generator = np.random.default_rng(0)
    drafts = generator.integers(0, VOCAB, (200, 2))
    tree, logits = chains(drafts, generator.dirichlet(np.ones(VOCAB), (200, 3)), VOCAB)
    runs = [
        review(make_view, rule, tree, logits, temperature=0.7)
        for rule in (lenient(1.0, coupled=True), verify.exact())
    ]
    np.testing.assert_array_equal(runs[0].token, runs[1].token)
    assert int(jnp.sum(runs[0].num_path)) > 220  # of 200 roots and 400 drafts


def test_laws_of_a_whole_review(make_view, plant, table, logits_of):
    """Of two children the likelier is favoured, of one that one; then nothing is."""
    rows = [[(0, -1), (1, 0), (2, 0), (3, 1), (3, 2)]]
    tree, hidden = plant(rows, 5), table(rows, 5, VOCAB)
    lenience = 100.0  # keeps any draft, so that the path is known
    view = make_view(1, VOCAB, temperature=1.0)
    ready = jnp.ones((1,), jnp.bool_)
    rule = lenient(lenience)
    outcome = rule.verify(
        reading.logits_at(lambda x: x, hidden, tree), tree, view, ready, 2
    ).outcome
    found = lenient_lib.emission_laws(
        reading.logits_at(lambda x: x, hidden, tree), tree, view, outcome, 2, lenience
    )
    laws = [
        np.asarray(jax.nn.softmax(logits_of(context, VOCAB)))
        for context in [(0,), (0, 1), (0, 2), (0, 1, 3), (0, 2, 3)]
    ]
    first = 1 if laws[0][1] > laws[0][2] else 2
    assert emitted(outcome)[:2] == [first, 3]
    expected = [
        law.emission(laws[0], first, lenience),
        law.emission(laws[first], 3, lenience),
        laws[first + 2],
    ]
    np.testing.assert_allclose(found[0], expected, atol=1e-6)


def test_laws_follow_the_processors(make_view):
    """A penalty for what was emitted, and what is past the room is left out."""
    tree, logits = chains([[3, 3]], P, VOCAB)
    view = make_view(1, VOCAB, temperature=1.0, frequency_penalty=2.0, room=2)
    ready = jnp.ones((1,), jnp.bool_)
    rule = lenient(1000.0)
    outcome = rule.verify(
        reading.logits_at(lambda x: x, logits, tree), tree, view, ready, 2
    ).outcome
    found = lenient_lib.emission_laws(
        reading.logits_at(lambda x: x, logits, tree), tree, view, outcome, 2, 1.5
    )
    assert emitted(outcome) == [3, 3]
    penalised = np.where(np.arange(VOCAB) == 3, P * np.exp(-2), P)
    penalised = penalised / penalised.sum()
    expected = [law.emission(P, 3, 1.5), law.emission(penalised, 3, 1.5), [0] * VOCAB]
    np.testing.assert_allclose(found[0], expected, atol=1e-6)


@pytest.mark.parametrize("lenience", [0.5, float("inf"), float("nan")])
def test_bad_lenience(lenience):
    with pytest.raises(ValueError, match="lenient: lenience"):
        lenient(lenience)


@pytest.mark.parametrize("lenience", ["a", True, None])
def test_a_lenience_is_a_number(lenience):
    with pytest.raises(TypeError, match="lenience must be a number"):
        lenient(lenience)
