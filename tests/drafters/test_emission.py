"""Chains that carry the laws of their tokens, under the rule that tests these."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import drafters, verify
from specjax.core import tree as tree_lib
from specjax.drafters.lookup.max_gram import max_gram
from specjax.verify import law
from tests.drafters.table_target import joint, run, table, table_target

VOCAB, ROWS, TEMPERATURE = 5, 4096, 0.9
MODEL = table_target(VOCAB)
# Flat enough that lenience moves the law of a draft far.
TARGET, DRAFT = table(VOCAB, 0, scale=0.7), table(VOCAB, 1, scale=0.7)
PROMPT = (0, 1, 2, 3, 4, 0)  # every token has been there, so Max-Gram always speaks
SAID = [1, 2, 3]  # and here it says this
EXPECTED = joint(TARGET, PROMPT, TEMPERATURE)


def chain(lenience, inner=None):
    inner = max_gram(max_draft=3) if inner is None else inner
    return drafters.speculate(
        MODEL, drafter=inner, max_draft=3, lenience=lenience, laws=True
    )


def distance(drafter, inner_params):
    """From the exact law of three tokens, over the distance that a sample has.

    The expected distance of a sample of this size is at most half the sum of the
    standard deviations of the cells.
    """
    out = run(
        drafter,
        {"model": DRAFT, "drafter": inner_params},
        TARGET,
        PROMPT,
        rows=ROWS,
        max_new_tokens=6,  # so that there is room for the inner drafts of the first
        verifier=verify.rejection(),
        temperature=TEMPERATURE,
    )
    assert int(jnp.sum(out.stats.accepted)) > ROWS / 20
    counts = np.zeros((VOCAB,) * 3)
    np.add.at(counts, tuple(np.asarray(out.tokens[:, :3]).T), 1)
    found = 0.5 * np.abs(counts / ROWS - EXPECTED).sum()
    return found / (0.5 * np.sqrt(EXPECTED * (1 - EXPECTED) / ROWS).sum())


@pytest.mark.parametrize("lenience", [1.0, 3.0])
def test_the_output_keeps_the_target_s_law(lenience):
    assert distance(chain(lenience), {}) < 1.25


def test_so_it_does_over_a_second_model():
    """The inner one draws by the target's noise, and the law takes that as given."""
    inner = drafters.speculate(MODEL, max_draft=3)
    below = {"model": table(VOCAB, 2), "drafter": {}}
    assert distance(chain(3.0, inner), below) < 1.25


def test_another_law_than_the_emission_s_is_seen():
    """With lenience the reviewer's own law is not what its tokens are drawn from."""
    drafter = chain(3.0)

    def lie(params, state, view, tree):
        told, _ = chain(1.0).propose(params, state, view, tree)
        tree, state = drafter.propose(params, state, view, tree)
        return dataclasses.replace(tree, laws=told.laws), state

    assert distance(drafter._replace(propose=lie), {}) > 2


def conditional(logits, context):
    scaled = np.asarray(logits, np.float64)[context[-2], context[-1]] / TEMPERATURE
    weight = np.exp(scaled - scaled.max())
    return weight / weight.sum()


def test_rows_are_the_twin_s(make_view):
    """Each row is the law of its token, given those before it and Max-Gram's draft."""
    rows, lenience = 6, 3.0
    drafter = chain(lenience)
    view = make_view(rows, VOCAB, temperature=TEMPERATURE)
    prompt = jnp.tile(jnp.asarray([PROMPT], jnp.int32), (rows, 1))
    history = dataclasses.replace(
        view.history,
        tokens=view.history.tokens.at[:, :6].set(prompt),
        length=jnp.full((rows,), 6, jnp.int32),
    )
    view = dataclasses.replace(view, history=history)
    ones = jnp.ones((rows,), jnp.int32)
    tree = tree_lib.trunk(history, ones * 5, ones, 4)
    params = {"drafter": {"model": DRAFT, "drafter": {}}}
    state = drafter.init(params, rows, 16)
    tree, _ = jax.jit(drafter.propose)(params, state, view, tree)
    assert tree.law[:, 1:].tolist() == [[0, 1, 2]] * rows
    checked = 0
    for row in range(rows):
        text, left = list(PROMPT), SAID[:2]  # one less than is wanted
        for at, token in enumerate(tree.token[row, 1:].tolist()):
            said = left.pop(0) if left else None
            expected = law.emission(conditional(DRAFT, text), said, lenience)
            np.testing.assert_allclose(tree.laws[row, at], expected, atol=1e-5)
            text.append(token)
            checked += 1
            if token != said:
                break  # the next review asks Max-Gram anew
    assert checked > 8  # of 18


def test_the_whole_cascade_by_enumeration():
    """Law of two tokens in float64: emission rows as candidates of `rejection`."""

    def target(context):
        return conditional(TARGET, (*PROMPT, *context))

    for lenience in (1.0, 3.0):

        def drafts(context, lenience=lenience):
            p = conditional(DRAFT, (*PROMPT, *context))
            asked = len(context) < 2 and list(context) == SAID[: len(context)]
            token = SAID[len(context)] if asked else None
            return [law.Drawn(law.emission(p, token, lenience), 1)]

        found = law.joint(law.try_first, target, drafts, 2)
        np.testing.assert_allclose(found.output, EXPECTED.sum(axis=2), atol=1e-6)


def test_at_temperature_0_the_output_is_greedy():
    tokens = []
    for drafter in (chain(3.0), drafters.none()):
        rule = verify.rejection() if drafter.needs.laws else None
        params = {"model": DRAFT, "drafter": {}} if drafter.needs.laws else {}
        out = run(drafter, params, TARGET, PROMPT, max_new_tokens=12, verifier=rule)
        tokens.append(out.tokens[0].tolist())
    assert tokens[0] == tokens[1]


def test_only_with_laws_it_says_so():
    assert chain(1.0).needs.laws
    assert not drafters.speculate(MODEL, max_draft=3).needs.laws
