"""Lookahead decoding: guess far tokens in parallel, keep what they spell as phrases.

Beside the text runs a window of guesses, R = ngram - 1 rows of them. As a token tree
row 0 is a chain under the current token ``x``, row 1 hangs under the nodes before it,
each later row under the one above it. With window=3, ngram=4::

    x - a0 - a1        row 0   depth 1 2
    |    |    |
    b0   b1   b2       row 1   depth 1 2 3
    |    |    |
    c0   c1   c2       row 2   depth 2 3 4

What the target answers after the last row, d0 d1 d2, completes three phrases, x: b0 c0
d0, a0: b1 c1 d1 and a1: b2 c2 d2; and it is the last row of the next round.
"""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specjax.core import contracts, noise
from specjax.core import tree as tree_lib
from specjax.drafters.lookup import phrases, windows
from specjax.drafters.lookup import table as table_lib

_UNLIKELY = 0.01  # confidence of a window node: it is there to be answered


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class LookaheadState:
    """What lookahead remembers.

    Attributes:
      pool: phrases of each row.
      window: i32[B, R, X], rows of guesses from column 0 on, X = window + R - 2 at
        the start; see ``_Shape`` for how many of them count.
      fill: i32[B], rows that follow row 0, 0 to R - 1.
    """

    pool: table_lib.Table
    window: jax.Array  # i32[B, R, X]
    fill: jax.Array  # i32[B]


class _Shape(NamedTuple):
    """The window as a tree, for each number of rows that are filled; NumPy.

    A row that is added takes its answers from the one above, which stands one place
    further left: so all rows lose a column a round, and start R - 2 columns wider.

    Attributes:
      parent: i32[R, M], index of the parent, NO_PARENT under the current token.
      cell: i32[R, M], row * X + column.
      count: i32[R], nodes.
    """

    parent: np.ndarray
    cell: np.ndarray
    count: np.ndarray


def _shape(rows: int, width: int) -> _Shape:
    """Nodes of the window, row by row. R = ``rows``, X = ``width``."""
    plans = []
    for fill in range(rows):
        index: dict[tuple[int, int], int] = {}
        plan = []
        for row in range(fill + 1):
            for column in range(width - fill + (row > 0)):
                above = (row - 1, column) if row > 1 else (0, column - 1)
                index[row, column] = len(plan)
                plan.append((index.get(above, tree_lib.NO_PARENT), row, column))
        plans.append(plan)
    most = max(len(plan) for plan in plans)
    parent = np.full((rows, most), tree_lib.NO_PARENT, np.int32)
    cell = np.zeros((rows, most), np.int32)
    for fill, plan in enumerate(plans):
        for node, (above, row, column) in enumerate(plan):
            parent[fill, node], cell[fill, node] = above, row * width + column
    return _Shape(parent, cell, np.asarray([len(plan) for plan in plans], np.int32))


class _Sizes(NamedTuple):
    """The window in numbers; static.

    Attributes:
      shape: it as a tree.
      rows: R.
      width: X, columns of the state.
      window: columns of a full window.
      first: tag of its first cell.
      vocab_size: V, 0 if not known.
    """

    shape: _Shape
    rows: int
    width: int
    window: int
    first: int
    vocab_size: int

    @property
    def cells(self) -> int:
        """R * X, tags of the window."""
        return self.rows * self.width


@functools.cache
def lookahead(
    *,
    vocab_size: int = 0,
    window: int = 4,
    ngram: int = 3,
    max_phrases: int = 4,
    pool_from_prompt: bool = True,
    buckets: int = 4096,
) -> contracts.Drafter:
    """Drafts phrases out of a pool that the target fills while it verifies.

    A tree has up to max_phrases * (ngram - 1) nodes of phrases and (ngram - 1) * window
    - 1 of the window: by default, with the current token, 16. The phrases go first, so
    that the spine is the newest of them. Window nodes are nodes like others and may be
    accepted, but have next to no confidence: under a combinator that drops unlikely
    nodes the window stands still, as in every round where the target did not score all
    of its last row.

    Args:
      vocab_size: V, 0 if not known.
      window: columns, guesses that are worked on at once.
      ngram: tokens of a phrase, its key included; at least 3.
      max_phrases: phrases that are kept, and drafted, of one token.
      pool_from_prompt: whether what stands in the text goes into the pool as well.
      buckets: of the pool, a power of two; 0 gives each token id one.

    Raises:
      ValueError: an option is out of range.

    Source: Break the Sequential Dependency of LLM Inference Using Lookahead Decoding
    (Fu et al. 2024), whose code suggests ``window=7, ngram=5, max_phrases=7`` for a
    GPU and takes no phrases from the prompt. We keep the token after a phrase that
    matched whole, which its code loses, draft phrases while the window is still being
    filled, and let the window outlive a request with the rest of the state. Its first
    row is tokens of the prompt at places that a hash chooses, the same in any row.
    """
    phrases.check_sizes(
        "lookahead",
        vocab_size=vocab_size,
        buckets=buckets,
        window=window,
        max_phrases=max_phrases,
    )
    if ngram < 3:
        raise ValueError(f"lookahead: ngram must be at least 3, got {ngram}")
    rows, length = ngram - 1, ngram - 1  # rows of the window, tokens of a phrase
    width = window + rows - 2
    shape = _shape(rows, width)
    first = max_phrases * length
    sizes = _Sizes(shape, rows, width, window, first, vocab_size)

    def init(params, batch, capacity):
        del params, capacity
        return LookaheadState(
            pool=phrases.create(
                batch,
                vocab_size=vocab_size,
                buckets=buckets,
                ways=max_phrases,
                phrase_tokens=length,
            ),
            window=jnp.zeros((batch, rows, width), jnp.int32),
            fill=jnp.zeros((batch,), jnp.int32),
        )

    def propose(params, state, view, tree):
        del params
        anchor = tree_lib.spine_end(tree)
        key = phrases.at_slots(tree.token, anchor)
        fill = jnp.clip(state.fill, 0, rows - 1)
        start = _prompt_tokens(view, width)
        row = jnp.where((fill == 0)[:, None], start, state.window[:, 0])
        state = dataclasses.replace(
            state, window=state.window.at[:, 0].set(row), fill=fill
        )
        phrase, live = phrases.newest(state.pool, key, max_phrases)
        tree = phrases.append(
            tree, phrase, live, anchor=anchor, view=view, vocab_size=vocab_size
        )
        return _append_window(sizes, tree, state, view, anchor), state

    def observe(params, state, view, tree, outcome):
        del params
        pool = state.pool
        if view.decoding:
            slots = phrases.slots_of_tags(tree, first, sizes.cells)
            slots = slots.reshape(-1, rows, width)
            answer = phrases.at_slots(outcome.top_ids[:, :, 0], slots)  # i32[B, R, X]
            pool = phrases.insert(pool, *_spelt(sizes, state, tree, slots, answer))
            state = _moved(sizes, state, slots < tree.slots, answer)
        if pool_from_prompt:
            known, new = windows.new_windows(view, outcome, ngram)
            pool = phrases.insert(pool, known[:, :, 0], known[:, :, 1:], new)
        return dataclasses.replace(state, pool=pool)

    nodes = first + int(shape.count.max())
    return contracts.Drafter(
        init=init,
        propose=propose,
        observe=observe,
        bounds=contracts.Bounds(
            nodes=nodes, depth=max(width, length), branching=max_phrases + 2
        ),
        needs=contracts.Needs(top_k=1),
        sources=(
            contracts.Source("lookahead", first),
            contracts.Source("lookahead_window", sizes.cells),
        ),
    )


def _append_window(
    sizes: _Sizes,
    tree: tree_lib.TokenTree,
    state: LookaheadState,
    view: contracts.View,
    anchor: jax.Array,
) -> tree_lib.TokenTree:
    """All of it wherever a row drafts, however little room there is.

    Its nodes are scored for their answers, and a draft model that decodes a few
    tokens ahead never has room for the deepest of them.
    """
    shape = sizes.shape
    cell = jnp.asarray(shape.cell)[state.fill]  # i32[B, M]
    token = phrases.at_slots(state.window.reshape(-1, sizes.cells), cell)
    return tree_lib.append(
        tree,
        token=phrases.within(token, sizes.vocab_size),
        parent=jnp.asarray(shape.parent)[state.fill],
        count=jnp.where(view.room > 1, jnp.asarray(shape.count)[state.fill], 0),
        tag=sizes.first + cell,
        confidence=jnp.full(token.shape, _UNLIKELY, jnp.float32),
        anchor=anchor,
    )


def _spelt(
    sizes: _Sizes,
    state: LookaheadState,
    tree: tree_lib.TokenTree,
    slots: jax.Array,
    answer: jax.Array,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Phrases down the columns of a full window: key, phrase, which are whole."""
    column = slots[:, 1:, : sizes.window]  # i32[B, R - 1, columns]
    key = phrases.at_slots(tree.token, phrases.at_slots(tree.parent, column[:, 0]))
    above = phrases.at_slots(tree.token, column)
    phrase = jnp.concatenate([above, answer[:, -1:, : sizes.window]], axis=1)
    whole = jnp.all(column < tree.slots, axis=1)
    whole = whole & (state.fill == sizes.rows - 1)[:, None]
    return key, jnp.swapaxes(phrase, 1, 2), whole


def _moved(
    sizes: _Sizes, state: LookaheadState, scored: jax.Array, answer: jax.Array
) -> LookaheadState:
    """The state with its window one round on, where its last row was answered."""
    rows, width = sizes.rows, sizes.width
    fill = jnp.clip(state.fill, 0, rows - 1)
    last = jnp.arange(rows, dtype=jnp.int32)[None] == fill[:, None]  # bool[B, R]
    used = width - fill + (fill > 0).astype(jnp.int32)  # columns of the last row
    inside = jnp.arange(width, dtype=jnp.int32)[None] < used[:, None]
    missing = last[:, :, None] & inside[:, None] & ~scored
    moves = ~jnp.any(missing, axis=(1, 2))

    old, left = state.window, jnp.roll(state.window, -1, axis=2)
    full = jnp.concatenate([left[:, 1:2], old[:, 2:], answer[:, -1:]], axis=1)
    added = jnp.sum(jnp.where(last[:, :, None], answer, 0), axis=1)  # i32[B, X]
    added = jnp.where((fill > 0)[:, None], jnp.roll(added, -1, axis=1), added)
    below = jnp.pad(last, ((0, 0), (1, 0)))[:, :rows]  # the row to be filled
    filling = jnp.where(below[:, :, None], added[:, None], left)
    after = jnp.where((fill == rows - 1)[:, None, None], full, filling)
    return dataclasses.replace(
        state,
        window=jnp.where(moves[:, None, None], after, old),
        fill=jnp.where(moves, jnp.minimum(fill + 1, rows - 1), fill),
    )


def _prompt_tokens(view: contracts.View, count: int) -> jax.Array:
    """Tokens i32[B, count] at places of the prompt that a hash chooses."""
    length = jnp.maximum(view.history.prompt_length, 1)
    key = jnp.zeros((length.shape[0], 2), jnp.uint32)
    ids = jnp.arange(count, dtype=jnp.int32)
    place = noise.bits(key, length, ids) % length.astype(jnp.uint32)[:, None]
    return phrases.at_slots(view.history.tokens, place.astype(jnp.int32))
