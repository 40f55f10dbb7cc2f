"""NumPy twins of the rules: exact output laws by enumeration, in float64.

Slow and obvious on purpose; tests hold the traced rules and drafters against them.
A context is the tuple of tokens after the trunk. ``target(context)`` is the law p
there, ``drafts(context)`` the groups of candidates that a drafter puts there.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

Context = tuple[int, ...]


class Drawn(NamedTuple):
    """Candidates drawn from one law without replacement."""

    law: np.ndarray  # f64[V]
    count: int


class Fixed(NamedTuple):
    """Candidates that are a function of the history: point masses."""

    tokens: Sequence[int]


Group = Drawn | Fixed


class Candidate(NamedTuple):
    """A candidate and its law given the siblings before it."""

    token: int
    law: np.ndarray  # f64[V]


class Split(NamedTuple):
    """Where the probability of one step goes; sums to 1."""

    kept: np.ndarray  # f64[k], that candidate i is the one kept
    rest: np.ndarray  # f64[V], that none is kept and the token is drawn


class Law(NamedTuple):
    """The law of one emitted token, and how probably it was a candidate."""

    output: np.ndarray  # f64[V]
    acceptance: float


class Joint(NamedTuple):
    """The law of several tokens, and the expected number of accepted drafts."""

    output: np.ndarray  # f64[V, V, ...]
    accepted: float


Rule = Callable[[np.ndarray, Sequence[Candidate]], Split]


def residual(law: np.ndarray, candidate_law: np.ndarray) -> np.ndarray:
    """norm((p - q)+), or p where nothing is left."""
    rest = np.maximum(law - candidate_law, 0.0)
    return rest / rest.sum() if rest.sum() > 0 else law


def try_in_order(law: np.ndarray, candidates: Sequence[Candidate]) -> Split:
    """The rule of `without_replacement` on given candidates, step by step."""
    kept, alive = [], 1.0
    for token, candidate_law in candidates:
        chance = min(1.0, law[token] / candidate_law[token])
        kept.append(alive * chance)
        alive *= 1.0 - chance
        law = residual(law, candidate_law)
    return Split(np.asarray(kept), alive * law)


def try_first(law: np.ndarray, candidates: Sequence[Candidate]) -> Split:
    """The rule of `rejection`: only the first candidate is tried."""
    split = try_in_order(law, candidates[:1])
    kept = np.zeros(len(candidates))
    kept[: len(split.kept)] = split.kept
    return Split(kept, split.rest)


def shared_draw(law: np.ndarray, candidates: Sequence[Candidate]) -> Split:
    """The rule of `exact`: one draw from the target; equal twins count once."""
    kept, rest = [], law.astype(np.float64)
    for token, _ in candidates:
        kept.append(rest[token])
        rest = np.where(np.arange(len(law)) == token, 0.0, rest)
    return Split(np.asarray(kept), rest)


def emission(law: np.ndarray, token: int | None, lenience: float) -> np.ndarray:
    """Law of what `lenient` emits where ``token`` (or nothing) was drafted.

    q'(x) = a = min(1, l p(x)) and q'(y) = (1 - a) p(y) / (1 - p(x)) elsewhere.
    """
    law = law.astype(np.float64)
    if token is None:
        return law
    kept = min(1.0, lenience * law[token])
    rest = np.where(np.arange(len(law)) == token, 0.0, law)
    emitted = (1.0 - kept) * rest / rest.sum() if rest.sum() > 0 else rest
    emitted[token] = kept
    return emitted


def lenient(lenience: float) -> Rule:
    """The rule of `lenient` at temperature 1: favours the likeliest candidate."""

    def rule(law: np.ndarray, candidates: Sequence[Candidate]) -> Split:
        tokens = [candidate.token for candidate in candidates]
        best = max(tokens, key=lambda token: law[token], default=None)
        return shared_draw(emission(law, best, lenience), candidates)

    return rule


def replay(
    law: np.ndarray, candidates: Sequence[Candidate], uniforms: Sequence[float]
) -> tuple[int | None, np.ndarray]:
    """What `without_replacement` decides for given uniforms.

    Returns:
      The index of the kept candidate, or None; and the law left to draw from.
    """
    for index, (token, candidate_law) in enumerate(candidates):
        if uniforms[index] * candidate_law[token] < law[token]:
            return index, law
        law = residual(law, candidate_law)
    return None, law


def drawings(
    groups: Sequence[Group], vocab_size: int
) -> Iterator[tuple[float, tuple[Candidate, ...]]]:
    """All outcomes of drawing the candidates of one context, with probabilities."""
    options = [list(_drawings_of(group, vocab_size)) for group in groups]
    for choice in itertools.product(*options):
        weight = float(np.prod([w for w, _ in choice]))
        yield weight, tuple(itertools.chain.from_iterable(c for _, c in choice))


def _drawings_of(group: Group, vocab_size: int):
    points = np.eye(vocab_size)
    if isinstance(group, Fixed):
        yield 1.0, tuple(Candidate(token, points[token]) for token in group.tokens)
        return

    def draw(weight: float, found: tuple[Candidate, ...]):
        if len(found) == group.count:
            yield weight, found
            return
        before = [candidate.token for candidate in found]
        law = np.where(np.isin(np.arange(vocab_size), before), 0.0, group.law)
        if law.sum() > 0:
            law = law / law.sum()
        else:  # out of tokens: what follows is fixed, lowest id first
            law = points[min(set(range(vocab_size)) - set(before))]
        for token in np.flatnonzero(law):
            candidate = Candidate(int(token), law)
            yield from draw(weight * law[token], (*found, candidate))

    yield from draw(1.0, ())


def one_token(rule: Rule, law: np.ndarray, groups: Sequence[Group]) -> Law:
    """The law of the token that ``rule`` emits at one context."""
    joint_law = joint(rule, lambda _: law, lambda _: groups, 1)
    return Law(joint_law.output, joint_law.accepted)


def exact(law: np.ndarray, tokens: Sequence[int]) -> Law:
    """Law of `exact` over deterministic children."""
    return one_token(shared_draw, law, [Fixed(tokens)])


def rejection(law: np.ndarray, candidate_law: np.ndarray) -> Law:
    """Law of `rejection` over one candidate drawn from ``candidate_law``."""
    return one_token(try_first, law, [Drawn(candidate_law, 1)])


def without_replacement(law: np.ndarray, candidate_law: np.ndarray, count: int) -> Law:
    """Law of `without_replacement` over ``count`` candidates of one law."""
    return one_token(try_in_order, law, [Drawn(candidate_law, count)])


def joint(
    rule: Rule,
    target: Callable[[Context], np.ndarray],
    drafts: Callable[[Context], Sequence[Group]],
    length: int,
) -> Joint:
    """The law of the first ``length`` tokens: one round, then plain decoding.

    Args:
      rule: how one step splits.
      target: context -> f64[V].
      drafts: context -> candidates there; none ends the tree.
      length: tokens to follow.
    """
    vocab_size = len(target(()))
    output = np.zeros((vocab_size,) * length)
    accepted = 0.0

    def descend(context: Context, weight: float, drafting: bool) -> None:
        nonlocal accepted
        if weight == 0.0:
            return
        if len(context) == length:
            output[context] += weight
            return
        groups = drafts(context) if drafting else ()
        for chance, candidates in drawings(groups, vocab_size):
            split = rule(np.asarray(target(context), np.float64), candidates)
            for candidate, kept in zip(candidates, split.kept, strict=True):
                accepted += weight * chance * kept
                descend((*context, candidate.token), weight * chance * kept, True)
            for token, rest in enumerate(split.rest):
                descend((*context, token), weight * chance * rest, False)

    descend((), 1.0, True)
    return Joint(output, accepted)
