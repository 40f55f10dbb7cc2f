"""What a cascade is worth, and how long each drafter should draft.

All of it on the host, by acceptance rates a and costs c: a is the chance that a draft
is kept given that the one before was, the same at every position; c is the time of a
drafter's run over that of its reviewer's. The *improvement* is tokens a cycle over the
cycle's time in reviews, so plain decoding has 1 (in the paper: EWIF, the expected
walltime improvement factor).
"""

import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from specjax import checks

Matrix = tuple[tuple[int, ...], ...]
MODES = ("increment", "cumulative")


def geometric(acceptance: float, count: int) -> float:
    """1 + a + ... + a^(count - 1)."""
    return float(sum(acceptance**power for power in range(count)))


def speculative(acceptance: float, drafts: int, cost: float) -> float:
    """Improvement by ``drafts`` tokens of one drafter.

    ``(1 - a^(n + 1)) / ((1 - a) (1 + n c))``, Leviathan et al. 2023, theorem 3.8.
    """
    return geometric(acceptance, drafts + 1) / (1 + drafts * cost)


def emitted(x: float, acceptance: float, drafts: int) -> float:
    """E[x^N] of the number N of tokens that one review of ``drafts`` tokens emits.

    ``phi(x) = 1 + (x - 1) (1 + a x + ... + (a x)^drafts)``.
    """
    return 1 + (x - 1) * geometric(acceptance * x, drafts + 1)


def vertical(
    acceptance: float,
    inner_acceptance: float,
    reviews: int,
    inner_drafts: int,
    cost: float,
    inner_cost: float,
) -> float:
    """Improvement by a drafter that reviews the drafts of a second one.

    ``(1 - a phi(a)^n) / ((1 - a) (1 + n c_1 + n k c_2))``; at a = 1 its limit.

    Args:
      acceptance: a, of the first drafter by the target.
      inner_acceptance: a', of the second drafter by the first.
      reviews: n, of the first drafter in a cycle.
      inner_drafts: k, tokens that each of them reviews.
      cost, inner_cost: c_1 and c_2 of one run, in runs of the target.

    Source: Cascade Speculative Drafting (Chen et al. 2023), the vertical cascade.
    """
    spent = 1 + reviews * (cost + inner_drafts * inner_cost)
    if acceptance == 1:
        return (1 + reviews * geometric(inner_acceptance, inner_drafts + 1)) / spent
    phi = emitted(acceptance, inner_acceptance, inner_drafts)
    return (1 - acceptance * phi**reviews) / (1 - acceptance) / spent


def by_position(acceptances: Sequence[float], costs: Sequence[float]) -> float:
    """Improvement by drafts of any kind, in order.

    ``(1 + sum_j a_1 ... a_j) / (1 + sum_j c_j)``.
    """
    return float((1 + np.cumprod(acceptances).sum()) / (1 + np.sum(costs)))


def horizontal(
    acceptances: Sequence[float], costs: Sequence[float], tokens: Sequence[int]
) -> float:
    """Improvement by ``tokens[i]`` tokens of drafter i, one behind the other."""
    each = [np.repeat(values, tokens).tolist() for values in (acceptances, costs)]
    return by_position(*each)


def best_row(
    acceptances: Sequence[float], costs: Sequence[float], max_draft: int
) -> tuple[int, ...]:
    """Tokens of each drafter, in order, with the greatest improvement.

    All of up to ``max_draft`` tokens are tried; of equally good ones the shorter.

    Args:
      acceptances: of the drafters, largest first, by who reviews the row.
      costs: of one token each, in runs of the reviewer.
      max_draft: most tokens in all, without which a drafter that costs nothing would
        never end.
    """
    _check_rates("best_row", acceptances, costs, max_draft)
    rows = sorted(_rows(len(acceptances), max_draft), key=sum)
    return max(rows, key=lambda row: round(horizontal(acceptances, costs, row), 12))


def best_matrix(
    acceptances: Sequence[Sequence[float]], costs: Sequence[float], max_draft: int
) -> Matrix:
    """The increments K of a cascade with the greatest improvement, row by row.

    Row i says what is drafted for reviewer i: the target for row 0, else drafter i - 1.
    From the last row up: what a drafter costs a token is its run over the improvement
    that its own row gives it.

    Args:
      acceptances: f64[n, n]; entry (i, j) for j >= i is the acceptance of drafter j's
        tokens by reviewer i. The others are not read.
      costs: of one run of each drafter, largest first, in runs of the target.
      max_draft: most tokens of a row.

    Raises:
      ValueError: a size does not fit, or a value is out of range.
    """
    count = len(costs)
    if not count or [len(row) for row in acceptances] != [count] * count:
        raise ValueError(
            f"best_matrix: acceptances must be {count} rows of {count} numbers, one a "
            f"drafter, got rows of {[len(row) for row in acceptances]}"
        )
    rows: list[tuple[int, ...]] = []
    token_cost = list(costs)  # of drafter j as soon as its row is known
    for reviewer in reversed(range(count)):
        own = 1.0 if reviewer == 0 else costs[reviewer - 1]
        rates = acceptances[reviewer][reviewer:]
        if own <= 0:  # Nothing is saved for one that costs nothing.
            tokens = (0,) * len(rates)
        else:
            relative = [cost / own for cost in token_cost[reviewer:]]
            tokens = best_row(rates, relative, max_draft)
            if reviewer:
                gain = horizontal(rates, relative, tokens)
                token_cost[reviewer - 1] = own / gain
        rows.insert(0, (0,) * reviewer + tokens)
    return tuple(rows)


def increments(k: Sequence[Sequence[int]], drafters: int, k_mode: str) -> Matrix:
    """The matrix K of a cascade with what each entry adds to the ones before it.

    Args:
      k: K.
      drafters: n, the last of them included.
      k_mode: "increment" or "cumulative", what the entries of ``k`` are.

    Raises:
      ValueError: it is not n rows of n integers from 0 up with zeros below the
        diagonal, or a row of cumulated numbers falls.
      TypeError: it is no matrix.
    """
    check_mode(k_mode)
    try:
        rows = [list(row) for row in k]
    except TypeError:
        raise TypeError(f"cascade: k must be rows of integers, got {k!r}") from None
    whole = all(isinstance(x, int) and 0 <= x < 2**31 for row in rows for x in row)
    triangular = all(not any(row[:at]) for at, row in enumerate(rows))
    if [len(row) for row in rows] != [drafters] * drafters or not (
        whole and triangular
    ):
        raise ValueError(
            f"cascade: k must be {drafters} rows of {drafters} integers from 0 up, one "
            f"a drafter with Max-Gram the last, and 0 below the diagonal, got {rows}"
        )
    if k_mode == "cumulative":
        rows = [_differences(row, at) for at, row in enumerate(rows)]
    return tuple(tuple(row) for row in rows)


def check_mode(k_mode: str) -> None:
    """Refuses a ``k_mode`` that is none.

    Raises:
      ValueError: it is not one of MODES.
    """
    checks.one_of("cascade", "k_mode", k_mode, MODES)


def _differences(row: list[int], diagonal: int) -> list[int]:
    """What each entry adds to the one before."""
    if row[diagonal:] != sorted(row[diagonal:]):
        raise ValueError(
            f"cascade: a cumulative row of k must not fall from the diagonal on, got "
            f"{row}"
        )
    return [x - before for x, before in zip(row, [0, *row], strict=False)]


def _rows(count: int, most: int) -> Iterator[tuple[int, ...]]:
    """All tuples of ``count`` numbers from 0 up that sum to ``most`` or less."""
    bars = range(most + count)
    for cuts in itertools.combinations(bars, count):
        edges = (-1, *cuts)
        yield tuple(b - a - 1 for a, b in itertools.pairwise(edges))


def _check_rates(name: str, acceptances, costs, max_draft: int) -> None:
    if len(acceptances) != len(costs):
        raise ValueError(
            f"{name}: acceptances and costs must be as many, got {len(acceptances)} "
            f"and {len(costs)}"
        )
    if not all(0 <= rate <= 1 for rate in acceptances):
        raise ValueError(f"{name}: acceptances must be in [0, 1], got {acceptances}")
    if not all(cost >= 0 for cost in costs):
        raise ValueError(f"{name}: costs must be at least 0, got {costs}")
    checks.at_least(name, 0, max_draft=max_draft)
