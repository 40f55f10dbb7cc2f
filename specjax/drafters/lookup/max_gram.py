"""Max-Gram: copy what followed the longest match, however short it is.

Three steps fill a draft of k tokens::

    A   the text's longest suffix that occurs earlier; copy what follows it
    B   too few, because the text ended: search again behind what A gave
    C   still too few: chain the likeliest successor of each token

    text 5 6 7 0 6    A: "6" was followed by 7 0 6    B: "6 7 0 6" by 7 0 6 again
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specjax import cached, checks
from specjax.core import contracts
from specjax.core import history as history_lib
from specjax.core import tree as tree_lib
from specjax.drafters import equipped
from specjax.drafters.lookup import datastore as datastore_lib
from specjax.drafters.lookup import match
from specjax.drafters.stateless import stateless


class Draft(NamedTuple):
    """A chain a row.

    Attributes:
      token: i32[B, k].
      count: i32[B], how many of them are drafted.
      matched: i32[B, k], tokens of the match behind each, those copied since it
        included; 1 behind a successor.
    """

    token: jax.Array
    count: jax.Array
    matched: jax.Array


@cached.cached
def max_gram(
    *,
    max_draft: int = 10,
    max_ngram: int = 16,
    recent: bool = False,
    compat: bool = False,
) -> contracts.Drafter:
    """Drafts what followed the longest match of the last tokens, however short it is.

    Steps A and B are taken, and C where its params hold a table.

    Args:
      max_draft: k, most tokens drafted. Steps end as soon as there are so many.
      max_ngram: longest suffix that is matched; there is no shortest one.
      recent: among equally long matches take the most recent, else the earliest.
      compat: search as the reference does, which keeps prompt and text apart and so
        sees a decoder's prompt twice: in A the prompt followed by the text, in B the
        text twice, in each case without the very last token. What is copied may run
        from the end of the one into the beginning of the other, and in A it may be
        nothing at all.

    Params: {} or {"successor": i32[V]}, the likeliest next token of each id, -1 where
    none is known; see ``max_gram_with_store``.

    Raises:
      ValueError: ``max_draft`` or ``max_ngram`` is below 1.

    Source: Cascade Speculative Drafting (Chen et al. 2023), the statistical drafter.
    Deviations: the reference has no longest suffix, drafts up to 2k - 1 tokens, and
    ten of them whatever it is asked for.
    """
    checks.at_least("max_gram", 1, max_draft=max_draft, max_ngram=max_ngram)

    def propose(params, view, tree):
        own = params["drafter"]
        spine, below = tree_lib.spine_tokens(tree)
        spare = view.history.tokens.shape[1] - view.history.length
        text = history_lib.append(view.history, spine, jnp.minimum(below, spare))
        wanted = jnp.clip(view.room - 1 - below, 0, max_draft)
        draft = draft_after(
            text,
            wanted,
            max_draft=max_draft,
            max_ngram=max_ngram,
            recent=recent,
            prompt=_prompt(text) if compat else None,
            successor=own["successor"] if own else None,
        )
        return tree_lib.append_chain(
            tree,
            token=draft.token,
            count=draft.count,
            confidence=match.confidence_after(draft.matched),
            anchor=tree_lib.spine_end(tree),
        )

    return stateless(
        propose,
        bounds=contracts.Bounds(nodes=max_draft, depth=max_draft, branching=1),
        sources=(contracts.Source("max_gram", max_draft),),
    )


def max_gram_with_store(
    store: datastore_lib.Datastore, **options: Any
) -> equipped.Equipped:
    """Max-Gram with the successors of a datastore for step C.

    Args:
      store: with successors, made for the tokenizer of the target.
      **options: of ``max_gram``.

    Raises:
      ValueError: the store has no successors or they are not i32[V] of ids below V, or
        an option is out of range.
    """
    table = store.arrays_of(datastore_lib.SUCCESSOR)["successor"]
    _check_successors(table)
    return equipped.Equipped(
        drafter=max_gram(**options),
        params={"successor": jnp.asarray(table)},
        fingerprint=store.fingerprint,
        label="max_gram_with_store",
        vocab_size=table.size,
    )


def _check_successors(table: np.ndarray) -> None:
    if table.dtype != np.int32 or table.ndim != 1 or not table.size:
        raise ValueError(
            f"max_gram: successor must be i32[V], got {table.dtype}{list(table.shape)}"
        )
    if table.min() < -1 or table.max() >= table.size:
        raise ValueError(
            f"max_gram: successor must hold ids below V={table.size} or -1, got "
            f"{table.min()} to {table.max()}"
        )


def draft_after(
    text: history_lib.History,
    wanted: jax.Array,
    *,
    max_draft: int,
    max_ngram: int,
    recent: bool = False,
    prompt: history_lib.History | None = None,
    successor: jax.Array | None = None,
) -> Draft:
    """Max-Gram's draft for each row.

    Args:
      text: the rows, with room for ``wanted`` more tokens.
      wanted: i32[B], most tokens, 0 to ``max_draft``.
      max_draft, max_ngram, recent: static, see ``max_gram``.
      prompt: what stands before the text in the reference's buffers; None searches
        the text alone.
      successor: i32[V] or None, without which step C is left out.
    """
    blank = jnp.zeros((wanted.shape[0], max_draft), jnp.int32)
    draft = Draft(token=blank, count=jnp.zeros_like(wanted), matched=blank + 1)

    def copy(draft: Draft, before: history_lib.History | None) -> Draft:
        grown = history_lib.append(text, draft.token, draft.count)
        return _copy(grown, before, draft, wanted, max_ngram, recent)

    draft = copy(draft, prompt)
    missing = draft.count < wanted
    draft = jax.lax.cond(
        jnp.any(missing),
        lambda draft: copy(draft, _again(text, draft) if prompt is not None else None),
        lambda draft: draft,
        draft,
    )
    return draft if successor is None else _chain(text, draft, wanted, successor)


def _copy(text, before, draft: Draft, wanted, max_ngram: int, recent: bool) -> Draft:
    """Adds to the draft what follows the longest match of the text's end."""
    if before is None:
        buffer, end = text, text.length
        length = match.match_lengths(buffer, max_ngram)
    else:
        buffer = _join(before, text)
        end = buffer.length - 1  # The last token is searched for, not copied.
        length = match.match_lengths(buffer, max_ngram)
        length = jnp.minimum(length, text.length[:, None])
    slots = buffer.tokens.shape[1]
    at, best = match.longest(length, recent=recent)
    start = at + 1
    copied = jnp.where(best > 0, jnp.maximum(end - start, 0), 0)
    count = jnp.minimum(draft.count + copied, wanted)
    link = jnp.arange(draft.token.shape[1], dtype=jnp.int32)[None]
    step = link - draft.count[:, None]  # place of each token in the copy
    new = (step >= 0) & (link < count[:, None])
    at = jnp.clip(start[:, None] + step, 0, slots - 1)
    token = jnp.take_along_axis(buffer.tokens, at, axis=1)
    return Draft(
        token=jnp.where(new, token, draft.token),
        count=count,
        matched=jnp.where(new, best[:, None] + step, draft.matched),
    )


def _chain(text, draft: Draft, wanted, successor: jax.Array) -> Draft:
    """Fills the draft up with the successor of the token before, while there is one."""
    end = jnp.maximum(text.length - 1, 0)
    last = jnp.take_along_axis(text.tokens, end[:, None], axis=1)[:, 0]
    known = text.length > 0
    tokens, count = [], draft.count
    for link in range(draft.token.shape[1]):
        here = link < draft.count
        after = successor[jnp.clip(last, 0, successor.shape[0] - 1)]
        known = known & (here | ((after >= 0) & (last < successor.shape[0])))
        last = jnp.where(here, draft.token[:, link], jnp.maximum(after, 0))
        tokens.append(last)
        count = count + (known & ~here & (link < wanted)).astype(jnp.int32)
    return draft._replace(token=jnp.stack(tokens, axis=1), count=count)


def _prompt(text: history_lib.History) -> history_lib.History:
    """The prompt alone."""
    return history_lib.History(
        tokens=text.tokens,
        length=text.prompt_length,
        prompt_length=text.prompt_length,
    )


def _again(text: history_lib.History, draft: Draft) -> history_lib.History:
    """The text and its draft without the last token: what B searches first."""
    grown = history_lib.append(text, draft.token, draft.count)
    return history_lib.History(
        tokens=grown.tokens,
        length=jnp.maximum(grown.length - 1, 0),
        prompt_length=grown.prompt_length,
    )


def _join(
    first: history_lib.History, second: history_lib.History
) -> history_lib.History:
    """Each row of the one followed by that of the other."""
    slots = first.tokens.shape[1] + second.tokens.shape[1]
    slot = jnp.arange(slots, dtype=jnp.int32)[None]
    behind = slot - first.length[:, None]
    in_first = jnp.clip(slot, 0, first.tokens.shape[1] - 1)
    in_first = jnp.broadcast_to(in_first, behind.shape)
    in_second = jnp.clip(behind, 0, second.tokens.shape[1] - 1)
    return history_lib.History(
        tokens=jnp.where(
            behind < 0,
            jnp.take_along_axis(first.tokens, in_first, axis=1),
            jnp.take_along_axis(second.tokens, in_second, axis=1),
        ),
        length=first.length + second.length,
        prompt_length=first.prompt_length,
    )
