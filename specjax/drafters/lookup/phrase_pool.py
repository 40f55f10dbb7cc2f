"""Ouroboros's pool: longer drafts out of phrases that the target left behind.

Behind the last drafted token hang the newest phrases that are known of it; the target
scores them all in the same forward::

    the - cat - sat        drafted by another
                 |- on - the - mat      phrases of "sat", the newest first
                 `- down - on - a

What the target answers to drafts, kept or rejected, becomes new phrases: a rejected
draft is often right in the wrong place. See ``harvest.py``.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

from specjax import cached, checks
from specjax.core import contracts
from specjax.core import outcome as outcome_lib
from specjax.core import tree as tree_lib
from specjax.drafters.lookup import harvest as harvest_lib
from specjax.drafters.lookup import phrases, windows
from specjax.drafters.lookup import table as table_lib

_RULES = ("agreement", "answers", "none")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PhrasePoolState:
    """What the pool remembers: phrases of each row."""

    pool: table_lib.Table


class _Lessons(NamedTuple):
    """What a round teaches; static.

    Attributes:
      harvest, correct, text: options of ``phrase_pool``.
      suffixes: K, phrases drafted.
      length: W, tokens of a phrase.
    """

    harvest: str
    correct: str
    text: bool
    suffixes: int
    length: int

    @property
    def from_answers(self) -> bool:
        """Whether the target's best ids are read at all."""
        return self.harvest != "none" or self.correct != "none"


@cached.cached
def phrase_pool(
    *,
    vocab_size: int = 0,
    ngram: int = 5,
    max_phrases: int = 20,
    suffixes: int = 3,
    harvest: str = "agreement",
    correct: str = "agreement",
    text: bool = True,
    buckets: int = 2048,
) -> contracts.Drafter:
    """Drafts the newest phrases known of the token at the spine's end.

    Behind another drafter it lengthens what that one drafted, for nothing but a wider
    tree; alone it continues the text. Put it behind others with ``with_suffixes``.

    Args:
      vocab_size: V, 0 if not known.
      ngram: tokens of a phrase, its key included; at least 3.
      max_phrases: phrases that are kept of one token.
      suffixes: phrases drafted a round; 0 only learns.
      harvest: what is learnt where the target rejects the chain before the suffixes:
        "agreement" takes phrases of the target's answers along which the draft said
        the same but for the last token, "answers" takes all of them, run on by the
        answers to the suffixes, "none" nothing.
      correct: what becomes of the suffixes just drafted: "agreement" puts the
        target's last token in where it differs from a suffix in that alone, "answers"
        overwrites them with its answers wherever they differ, "none" leaves them.
      text: whether the phrases of the text itself go in, prompt included.
      buckets: of the pool, a power of two; 0 gives each token id one.

    Raises:
      ValueError: an option is out of range.
      TypeError: one is of the wrong kind.

    Source: Ouroboros (Zhao et al. 2024). "agreement" and "answers" are the two rules
    of harvest that its code ships; ``correct="answers"`` is what its code means to do
    after every round, though it does so after accepted drafts only. That answers to a
    suffix count where the suffix itself was what the target had answered so far,
    ``correct="agreement"``, is our own, and so is ``text``, without which the pool is
    empty until a draft is rejected.
    """
    _check(vocab_size, ngram, max_phrases, suffixes, buckets, harvest, correct)
    length = ngram - 1
    nodes = suffixes * length
    lessons = _Lessons(harvest, correct if suffixes else "none", text, suffixes, length)

    def init(params, rows, capacity):
        del params, capacity
        pool = phrases.create(
            rows,
            vocab_size=vocab_size,
            buckets=buckets,
            ways=max_phrases,
            phrase_tokens=length,
        )
        return PhrasePoolState(pool=pool)

    def propose(params, state, view, tree):
        del params
        if not suffixes:
            return tree, state
        anchor = tree_lib.spine_end(tree)
        key = phrases.at_slots(tree.token, anchor)
        phrase, live = phrases.newest(state.pool, key, suffixes)
        tree = phrases.append(
            tree, phrase, live, anchor=anchor, view=view, vocab_size=vocab_size
        )
        return tree, state

    def observe(params, state, view, tree, outcome):
        del params
        return PhrasePoolState(pool=_learn(lessons, state.pool, view, tree, outcome))

    return contracts.Drafter(
        init=init,
        propose=propose,
        observe=observe,
        bounds=contracts.Bounds(
            nodes=nodes, depth=length if suffixes else 0, branching=suffixes
        ),
        needs=contracts.Needs(top_k=int(lessons.from_answers)),
        sources=(contracts.Source("phrase_pool", nodes),),
    )


def _learn(
    lessons: _Lessons,
    pool: table_lib.Table,
    view: contracts.View,
    tree: tree_lib.TokenTree,
    outcome: outcome_lib.Outcome,
) -> table_lib.Table:
    """The pool after a round: first what answers teach, then what the text says."""
    found = []
    if view.decoding and lessons.from_answers:
        seen = harvest_lib.see(tree, outcome, lessons.suffixes, lessons.length)
        if lessons.harvest == "agreement":
            found.append(harvest_lib.agreed(seen))
        if lessons.harvest == "answers":
            found.append(harvest_lib.answered(seen))
        if lessons.correct != "none":
            agree = lessons.correct == "agreement"
            old, new = harvest_lib.corrected(seen, agree=agree)
            pool = phrases.forget(pool, *old)
            found.append(new)
    if lessons.text:
        known, new = windows.new_windows(view, outcome, lessons.length + 1)
        found.append(harvest_lib.Found(known[:, :, 0], known[:, :, 1:], new))
    if not found:
        return pool
    joined = [jnp.concatenate(x, axis=1) for x in zip(*found, strict=True)]
    return phrases.insert(pool, *joined)


def _check(vocab_size, ngram, max_phrases, suffixes, buckets, harvest, correct) -> None:
    phrases.check_sizes(
        "phrase_pool",
        vocab_size=vocab_size,
        buckets=buckets,
        max_phrases=max_phrases,
    )
    checks.at_least("phrase_pool", 3, ngram=ngram)
    if not 0 <= suffixes <= max_phrases:
        raise ValueError(
            f"phrase_pool: suffixes must be 0 to max_phrases={max_phrases}, "
            f"got {suffixes}"
        )
    checks.one_of("phrase_pool", "harvest", harvest, _RULES)
    checks.one_of("phrase_pool", "correct", correct, _RULES)
