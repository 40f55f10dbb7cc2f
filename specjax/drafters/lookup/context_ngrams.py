"""Context n-grams: draft what followed this token elsewhere in the same text.

Every n-gram of the text goes into a table of the row's own, prompt and output alike,
the first tokens as the key of the rest. The phrases of the last token are drafted side
by side, those that were seen most recently first::

    text  1 2 3 4 1 2 5 6 1      table  1: 2 3 4, 2 5 6      drafts  1 - 2 - 5 - 6
    n = 4                               2: 3 4 1, 5 6 1              `- 2 - 3 - 4
                                        3: 4 1 2
                                        4: 1 2 5
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp

from specjax import cached, checks
from specjax.core import contracts
from specjax.core import history as history_lib
from specjax.core import outcome as outcome_lib
from specjax.core import tree as tree_lib
from specjax.drafters.lookup import match, phrases, windows
from specjax.drafters.lookup import table as table_lib


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ContextNgramsState:
    """What is remembered of each row's text.

    Attributes:
      table: phrases by key, leaves [B, ...]; the keys of 1, 2, ... tokens lie in it
        side by side.
    """

    table: table_lib.Table


@cached.cached
def context_ngrams(
    *,
    vocab_size: int = 0,
    ngram: int = 5,
    key_tokens: int = 1,
    max_phrases: int = 7,
    buckets: int = 4096,
    evict: str = "oldest",
    order: str = "newest",
    compat: bool = False,
) -> contracts.Drafter:
    """Drafts the phrases that followed the last tokens earlier in the text.

    The tag of token j of phrase i is i * (ngram - 1) + j. A token's confidence is
    what an earlier match of the tokens before it lets one expect
    (``match.confidence_after``), for the first token of a phrase over 1 + the number
    of phrases before it: newer ones are likelier, and they often begin alike.

    Args:
      vocab_size: V, 0 if not known.
      ngram: tokens of an n-gram: a key of one token and the phrase behind it.
      key_tokens: most tokens of a key. Phrases of longer keys go first, those of
        shorter ones fill up; the phrases stay ``ngram`` - 1 tokens long.
      max_phrases: phrases that are kept of a key, and drafted a round.
      buckets: of the table, a power of two; a bucket holds the phrases of one key.
        With more distinct keys in the text than that, old ones are given up.
      evict: which phrase a key with ``max_phrases`` of them gives up: the "oldest", or
        the "rarest", of equally rare ones the oldest.
      order: which phrases of a key go first: the "newest", or the "commonest", of
        equally common ones the newest.
      compat: as the reference does it: phrases are drafted in the opposite order, the
        oldest first, and of the n-grams that end at the m + 1 new tokens of a round
        neither the first nor the last is stored, the others from the last to the first.

    Raises:
      ValueError: an option is out of range.
      TypeError: one is of the wrong kind.

    Source: Hierarchy Drafting (Cho et al. 2025), its context-dependent database. Its
    Jacobi window is left out: ``lookahead`` has one.
    """
    _check_sizes(vocab_size, ngram, key_tokens, max_phrases, buckets)
    checks.one_of("context_ngrams", "evict", evict, table_lib.EVICTIONS)
    checks.one_of("context_ngrams", "order", order, table_lib.ORDERS)
    length = ngram - 1
    nodes = max_phrases * length

    def init(params, rows, capacity):
        del params, capacity
        table = phrases.create(
            rows,
            vocab_size=vocab_size,
            buckets=buckets,
            ways=max_phrases,
            phrase_tokens=length,
            key_tokens=key_tokens,
        )
        return ContextNgramsState(table=table)

    def propose(params, state, view, tree):
        del params
        text = history_lib.append(view.history, *tree_lib.spine_tokens(tree))
        last = windows.last_tokens(text.tokens, text.length, key_tokens)
        known = functools.partial(
            _known, count=max_phrases, order=order, backward=compat
        )
        drafts = jax.vmap(known)(state.table, last)
        tree = _append(tree, view, *drafts, vocab_size=vocab_size)
        return tree, state

    def observe(params, state, view, tree, outcome):
        del params
        new = _new(view, tree, outcome, key_tokens, length, compat)
        insert = jax.vmap(functools.partial(table_lib.insert, evict=evict))
        return ContextNgramsState(table=insert(state.table, *new))

    return contracts.Drafter(
        init=init,
        propose=propose,
        observe=observe,
        bounds=contracts.Bounds(nodes=nodes, depth=length, branching=max_phrases),
        needs=contracts.Needs(),
        sources=(contracts.Source("context_ngrams", nodes),),
    )


def _known(
    table: table_lib.Table, last: jax.Array, *, count: int, order: str, backward: bool
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The phrases to draft after some tokens, without repeats; unbatched.

    Args:
      table: the row's.
      last: i32[K], the last tokens.
      count: G, most phrases.
      order: which of a key go first, see ``table.read``.
      backward: whether the others do.

    Returns:
      (i32[G, W] phrases, i32[G] tokens of the key of each, i32[] how many there are).
    """
    widest = last.shape[0]
    found, sizes = [], []
    for size in range(widest, 0, -1):
        inside = jnp.arange(widest, dtype=jnp.int32) >= widest - size
        key = jnp.where(inside, last, table_lib.NO_TOKEN)
        phrase, live = table_lib.read(table, key, count, order=order)
        if backward:
            phrase, live = phrase[::-1], live[::-1]
        found.append((phrase, live))
        sizes.append(jnp.full((count,), size, jnp.int32))
    phrase, live = (jnp.concatenate(parts) for parts in zip(*found, strict=True))
    same = jnp.all(phrase[:, None] == phrase[None], axis=2) & live[None]
    live = live & (jnp.argmax(same, axis=1) == jnp.arange(live.shape[0]))
    first = jnp.argsort(~live, stable=True)[:count]
    total = jnp.minimum(jnp.sum(live, dtype=jnp.int32), count)
    return phrase[first], jnp.concatenate(sizes)[first], total


def _append(
    tree: tree_lib.TokenTree,
    view: contracts.View,
    phrase: jax.Array,
    size: jax.Array,
    count: jax.Array,
    *,
    vocab_size: int,
) -> tree_lib.TokenTree:
    """Appends phrases one after the other, each a chain under the spine's end.

    Args:
      tree: where to append.
      view: for the room; no draft lies deeper.
      phrase: i32[B, G, W].
      size: i32[B, G], tokens of the key of each.
      count: i32[B], phrases in use.
      vocab_size: V, 0 if not known.
    """
    rows, ways, width = phrase.shape
    anchor = tree_lib.spine_end(tree)
    levels = jnp.clip(tree_lib.room_below(tree, anchor, view.room), 0, width)  # i32[B]
    across = jnp.maximum(levels, 1)[:, None]
    node = jnp.arange(ways * width, dtype=jnp.int32)[None]
    chain = jnp.minimum(node // across, ways - 1)  # i32[B, G * W]
    level = node % across
    tag = chain * width + level
    token = jnp.take_along_axis(phrase.reshape(rows, ways * width), tag, axis=1)
    matched = jnp.take_along_axis(size, chain, axis=1) + level
    chance = match.confidence_after(matched)
    rank = jnp.where(level == 0, chain, 0).astype(jnp.float32)
    return tree_lib.append(
        tree,
        token=phrases.within(token, vocab_size),
        parent=jnp.where(level == 0, tree_lib.NO_PARENT, node - 1),
        count=count * levels,
        tag=tag,
        confidence=chance / (1 + rank),
        anchor=anchor,
    )


def _new(
    view: contracts.View,
    tree: tree_lib.TokenTree,
    outcome: outcome_lib.Outcome,
    key_tokens: int,
    length: int,
    compat: bool,
) -> list[jax.Array]:
    """N-grams that a round made known, those of shorter keys first.

    Returns:
      Keys i32[B, M, K], phrases i32[B, M, W] and bool[B, M], which of them count.
    """
    items = []
    for size in range(1, key_tokens + 1):
        window, new = windows.new_windows(view, outcome, size + length)
        if compat:
            window, new = _as_reference(window, new, tree, outcome)
        pad = ((0, 0), (0, 0), (key_tokens - size, 0))
        key = jnp.pad(window[:, :, :size], pad, constant_values=table_lib.NO_TOKEN)
        items.append((key, window[:, :, size:], new))
    return [jnp.concatenate(parts, axis=1) for parts in zip(*items, strict=True)]


def _as_reference(
    window: jax.Array,
    new: jax.Array,
    tree: tree_lib.TokenTree,
    outcome: outcome_lib.Outcome,
) -> tuple[jax.Array, jax.Array]:
    """The windows that the reference stores of a round, in its order.

    It walks back from the end of what was emitted and slices the text by negative
    indices, where "up to minus zero" is nothing at all: the last window is lost. It
    stops one window early at the other end. Windows of given text are all stored.

    Args:
      window: i32[B, L, W], by their ends.
      new: bool[B, L].
      tree: as it was scored.
      outcome: of the round.
    """
    step = jnp.arange(new.shape[1], dtype=jnp.int32)[None]
    spoke = outcome.num_new > 0
    given = jnp.where(spoke, tree.num_trunk - 1, outcome.num_path)[:, None]
    last = outcome.num_path[:, None] - 1
    emitted = (step >= given) & (step <= last)
    at = jnp.where(emitted, given + last - step, step)  # those that were emitted, back
    inner = (step > given) & (step < last)
    new = jnp.take_along_axis(new, at, axis=1) & (~emitted | inner)
    return jnp.take_along_axis(window, at[:, :, None], axis=1), new


def _check_sizes(vocab_size, ngram, key_tokens, max_phrases, buckets) -> None:
    checks.at_least("context_ngrams", 0, vocab_size=vocab_size)
    checks.at_least("context_ngrams", 2, ngram=ngram)
    checks.at_least("context_ngrams", 1, key_tokens=key_tokens, max_phrases=max_phrases)
    if not table_lib.may_hash(buckets):
        raise ValueError(
            "context_ngrams: buckets must be a power of two of at least "
            f"{table_lib.PROBES}, got {buckets}"
        )
