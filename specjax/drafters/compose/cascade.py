"""Cascade speculative drafting: reviews all the way down to Max-Gram.

A *step* for a reviewer drafts by each of its drafters in turn, larger ones first, and
each of these, a neural one, drafts by the step that is below it::

    step(target)   = horizontal(review(d1, step(d1)), review(d2, step(d2)), max_gram)
    step(d1)       = horizontal(review(d2, step(d2)), max_gram)
    step(d2)       = max_gram

so no model decodes token by token. ``review`` is ``speculate``: a decoder is a drafter.
"""

from collections.abc import Sequence

from specjax import cached
from specjax.core import contracts
from specjax.drafters.compose import schedule
from specjax.drafters.compose.horizontal import horizontal
from specjax.drafters.compose.speculate import speculate
from specjax.drafters.lookup.max_gram import max_gram
from specjax.drafters.none import none
from specjax.verify.lenient import check_lenience

_WHOLE = 10  # tokens that Max-Gram drafts a call where nothing is trimmed
# Rows of 15 tokens, which fill a width of 16 together with the trunk.
_MATRICES: dict[int, schedule.Matrix] = {
    1: ((10,),),
    2: ((5, 10), (0, 10)),
    3: ((3, 2, 10), (0, 1, 10), (0, 0, 10)),
}


def cascade(
    levels: Sequence[contracts.Target],
    *,
    k: Sequence[Sequence[int]] | None = None,
    k_mode: str = "increment",
    lenience: float = 1.0,
    trim: bool = True,
    max_ngram: int = 16,
    recent: bool = False,
) -> contracts.Drafter:
    """Vertical and horizontal cascade of some models and Max-Gram.

    Entry (i, j) of the matrix K says how many tokens drafter j adds to what is drafted
    for reviewer i, which is the target for i = 0 and drafter i - 1 else; the last
    drafter is Max-Gram. A drafter with 0 is left out of the row; a row of zeros lets
    its reviewer decode token by token. A model that stands in several rows drafts in
    several places, and has a cache in each.

    Args:
      levels: n - 1 models of the target's vocabulary, the largest first.
      k: K, n rows of n numbers from 0 up with zeros below the diagonal, by default 15
        tokens in all for up to two models; ``best_matrix`` finds one by acceptance
        rates and costs.
      k_mode: "increment", or "cumulative" where an entry counts the tokens of the
        drafters before it too, as the paper writes them.
      lenience: of all reviews but the target's, see ``verify.lenient``.
      trim: cut each drafter's part at its number of tokens. As published a part goes
        on to the end of a review, and Max-Gram drafts 10 tokens whatever it is asked
        for.
      max_ngram: longest suffix that Max-Gram matches.
      recent: whether Max-Gram takes the most recent of equally long matches, else the
        earliest.

    Params: those of the combinators, nested in the same way; see ``nested_params``.

    Raises:
      ValueError: K or an option is not as described.

    Source: Cascade Speculative Drafting (Chen et al. 2023); its code's recursion, whose
    K holds increments.
    """
    check_lenience("cascade", lenience)
    shape = _matrix(k, len(levels) + 1, k_mode)
    return _step(tuple(levels), shape, lenience, trim, max_ngram, recent)


def nested_params(
    weights: Sequence[contracts.Params],
    *,
    k: Sequence[Sequence[int]] | None = None,
    k_mode: str = "increment",
    last: contracts.Params | None = None,
) -> contracts.Params:
    """Params of a cascade.

    Args:
      weights: params of the models, the largest first.
      k, k_mode: as for ``cascade``.
      last: params of Max-Gram, {} by default.

    Returns:
      ``{"model", "drafter"}`` for a review, a tuple where several drafters follow one
      another, and those of Max-Gram at the ends; no array is copied.
    """
    shape = _matrix(k, len(weights) + 1, k_mode)
    return _nest(tuple(weights), shape, {} if last is None else last)


def _matrix(k, drafters: int, k_mode: str) -> schedule.Matrix:
    """K as increments, checked; the usual one where none is given."""
    schedule.check_mode(k_mode)
    if k is not None:
        return schedule.increments(k, drafters, k_mode)
    if drafters not in _MATRICES:
        raise ValueError(
            f"cascade: give k for {drafters - 1} models, {drafters} rows of {drafters} "
            "integers"
        )
    return _MATRICES[drafters]


def _below(shape: schedule.Matrix, index: int) -> schedule.Matrix:
    """The rows and columns of the drafters below drafter ``index``."""
    return tuple(row[index + 1 :] for row in shape[index + 1 :])


@cached.cached
def _step(
    levels: tuple[contracts.Target, ...],
    shape: schedule.Matrix,
    lenience: float,
    trim: bool,
    max_ngram: int,
    recent: bool,
) -> contracts.Drafter:
    """What is drafted for one reviewer by the drafters below it."""
    if not any(shape[0]):
        return none()
    options = (lenience, trim, max_ngram, recent)
    children = []
    for index, model in enumerate(levels):
        count = shape[0][index]
        if not count:
            continue
        inner = _step(levels[index + 1 :], _below(shape, index), *options)
        children.append(
            speculate(
                model,
                drafter=inner,
                # A part that is trimmed takes as many reviews as it needs at once.
                max_draft=count if trim else inner.bounds.depth + 1,
                once=not trim,
                lenience=lenience,
                name=f"model_{len(levels) - index}",
            )
        )
    count = shape[0][-1]
    if count:
        most = count if trim else _WHOLE
        if not trim and not children:
            most = -(-count // _WHOLE) * _WHOLE
        last = max_gram(max_draft=most, max_ngram=max_ngram, recent=recent)
        if not children:
            return last
        children.append(last)
    tokens = tuple(count for count in shape[0] if count)
    return horizontal(*children, tokens=tokens, trim=trim)


def _nest(
    weights: tuple, shape: schedule.Matrix, last: contracts.Params
) -> contracts.Params:
    """Params of ``_step``."""
    if not any(shape[0][:-1]):
        return last if shape[0][-1] else {}
    nested = [
        {
            "model": model,
            "drafter": _nest(weights[index + 1 :], _below(shape, index), last),
        }
        for index, model in enumerate(weights)
        if shape[0][index]
    ]
    return (*nested, last) if shape[0][-1] else tuple(nested)
