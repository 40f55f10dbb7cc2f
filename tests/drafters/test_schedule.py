"""Formulas of what a cascade is worth, against simulation and enumeration."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specjax.drafters.compose import schedule

RUNS = 200_000


def simulated_review(generator, acceptance, drafts):
    """Tokens emitted by each of RUNS reviews of ``drafts`` tokens."""
    kept = generator.random((RUNS, drafts)) < acceptance
    return 1 + np.cumprod(kept, axis=1).sum(axis=1)


def test_worked_examples():
    assert schedule.emitted(0.8, 0.3, 2) == pytest.approx(0.74048, abs=5e-6)
    # 1 + 0.8 + 0.8^2 + 0.8^3 + 0.8^4 over 1 + 4 * 0.05
    assert schedule.speculative(0.8, 4, 0.05) == pytest.approx(2.80133, abs=5e-6)
    made = schedule.vertical(0.8, 0.3, 4, 2, 0.05, 0.0)
    assert made == pytest.approx(3.16452, abs=5e-6)
    assert made * (1 + 4 * 0.05) == pytest.approx(3.79742, abs=5e-6)
    made = schedule.horizontal([0.8, 0.5], [0.1, 0.01], [3, 4])
    assert made == pytest.approx(2.56119, abs=5e-6)
    assert schedule.speculative(0.8, 3, 0.1) == pytest.approx(2.27077, abs=5e-6)
    assert schedule.speculative(0.8, 7, 0.1) == pytest.approx(2.44773, abs=5e-6)


def test_generating_function_by_simulation():
    tokens = simulated_review(np.random.default_rng(0), 0.3, 2)
    sampled = 0.8**tokens
    # Five standard errors of the mean.
    bound = 5 * sampled.std() / RUNS**0.5
    assert schedule.emitted(0.8, 0.3, 2) == pytest.approx(sampled.mean(), abs=bound)


def test_vertical_by_simulation():
    generator = np.random.default_rng(1)
    length = sum(simulated_review(generator, 0.3, 2) for _ in range(4))
    # The target keeps a geometric number of drafts, as many as there are at most.
    kept = np.minimum(generator.geometric(0.2, RUNS) - 1, length)
    bound = 5 * kept.std() / RUNS**0.5
    made = schedule.vertical(0.8, 0.3, 4, 2, 0.0, 0.0)
    assert made == pytest.approx(1 + kept.mean(), abs=bound)


def test_horizontal_by_simulation():
    generator = np.random.default_rng(2)
    kept = generator.random((RUNS, 7)) < np.repeat([0.8, 0.5], [3, 4])
    tokens = 1 + np.cumprod(kept, axis=1).sum(axis=1)
    bound = 5 * tokens.std() / RUNS**0.5
    made = schedule.horizontal([0.8, 0.5], [0, 0], [3, 4])
    assert made == pytest.approx(tokens.mean(), abs=bound)


rates = st.floats(0.01, 0.99)
prices = st.floats(0.001, 1)


@given(rates, st.integers(0, 8), prices)
def test_one_drafter_is_the_simplest_cascade(rate, drafts, price):
    one = schedule.speculative(rate, drafts, price)
    assert schedule.horizontal([rate], [price], [drafts]) == pytest.approx(one)
    # A second drafter that is never right leaves the first one alone.
    assert schedule.vertical(rate, 0.0, drafts, 3, price, 0.0) == pytest.approx(one)


@given(rates, rates, st.integers(1, 8), st.integers(1, 5), prices)
def test_a_free_second_drafter_always_helps(rate, inner, reviews, drafts, price):
    """The corollary: phi(a) < a, so the vertical cascade beats speculation."""
    assert schedule.emitted(rate, inner, drafts) < rate
    made = schedule.vertical(rate, inner, reviews, drafts, price, 0.0)
    assert made > schedule.speculative(rate, reviews, price)


def test_vertical_of_a_drafter_that_is_always_right():
    limit = schedule.vertical(1 - 1e-7, 0.3, 4, 2, 0.05, 0.0)
    assert schedule.vertical(1.0, 0.3, 4, 2, 0.05, 0.0) == pytest.approx(limit)


@given(st.lists(st.tuples(rates, prices), min_size=2, max_size=3), st.integers(1, 5))
def test_the_best_row_is_the_best(models, most):
    model_rates, model_prices = map(list, zip(*models, strict=True))
    row = schedule.best_row(model_rates, model_prices, most)
    made = schedule.horizontal(model_rates, model_prices, row)
    others = itertools.product(range(most + 1), repeat=len(models))
    best = max(
        schedule.horizontal(model_rates, model_prices, other)
        for other in others
        if sum(other) <= most
    )
    assert made == pytest.approx(best)
    assert sum(row) <= most
    # One position more behind all of them would not help either.
    if sum(row) < most:
        kept = [np.repeat(x, row).tolist() for x in (model_rates, model_prices)]
        for more in models:
            longer = [[*x, y] for x, y in zip(kept, more, strict=True)]
            assert schedule.by_position(*longer) <= made + 1e-9


def test_early_tokens_go_to_the_better_drafter():
    row = schedule.best_row([0.8, 0.5], [0.1, 0.01], 12)
    assert row[0] > 0 < row[1]
    assert schedule.best_row([0.8, 0.5], [0.9, 0.01], 12)[0] == 0
    assert schedule.best_row([0.8, 0.0], [0.1, 0.0], 12)[1] == 0


def test_a_matrix_from_the_last_row_up():
    """A review that pays makes its drafter cheaper, so that more is drafted by it."""
    acceptances = [[0.8, 0.3], [0.0, 0.6]]
    costs = [0.2, 0.0]
    found = schedule.best_matrix(acceptances, costs, 6)
    inner = schedule.best_row([0.6], [0.0], 6)
    assert found[1] == (0, *inner) == (0, 6)
    cheaper = 0.2 / schedule.horizontal([0.6], [0.0], inner)
    assert found[0] == schedule.best_row([0.8, 0.3], [cheaper, 0.0], 6)
    alone = schedule.best_row([0.8, 0.3], costs, 6)
    assert found[0][0] > alone[0]


def test_a_drafter_that_does_not_pay_is_left_out():
    assert schedule.best_matrix([[0.5, 0.4], [0.0, 0.1]], [0.95, 0.0], 5)[0] == (0, 5)
    assert schedule.best_matrix([[0.0]], [0.1], 5) == ((0,),)


@pytest.mark.parametrize(
    ("acceptances", "costs", "most", "found"),
    [
        ([0.5], [0.1, 0.2], 3, "as many"),
        ([1.5], [0.1], 3, "acceptances"),
        ([0.5], [-0.1], 3, "costs"),
        ([0.5], [0.1], -1, "max_draft"),
    ],
)
def test_bad_rates(acceptances, costs, most, found):
    with pytest.raises(ValueError, match=f"best_row: .*{found}"):
        schedule.best_row(acceptances, costs, most)


def test_bad_matrix():
    with pytest.raises(ValueError, match="2 rows of 2"):
        schedule.best_matrix([[0.5, 0.4]], [0.1, 0.0], 3)
