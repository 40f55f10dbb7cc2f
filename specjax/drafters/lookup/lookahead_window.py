"""Lookahead's window of guesses: as a tree, as phrases, and one round later.

``lookahead.py`` has a picture of it.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specjax.core import contracts, noise
from specjax.core import tree as tree_lib
from specjax.drafters.lookup import phrases

_UNLIKELY = 0.01  # confidence of a window node: it is there to be answered


class Shape(NamedTuple):
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


def _shape(rows: int, width: int) -> Shape:
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
    return Shape(parent, cell, np.asarray([len(plan) for plan in plans], np.int32))


class Window(NamedTuple):
    """The window in numbers; static.

    Attributes:
      shape: it as a tree.
      rows: R.
      width: X, columns of the state.
      columns: those of a full window.
      first: tag of its first cell.
      vocab_size: V, 0 if not known.
    """

    shape: Shape
    rows: int
    width: int
    columns: int
    first: int
    vocab_size: int

    @property
    def cells(self) -> int:
        """R * X, tags of the window."""
        return self.rows * self.width


def make(columns: int, rows: int, *, first: int, vocab_size: int) -> Window:
    """The window of so many columns and rows; other arguments are its fields."""
    width = columns + rows - 2
    return Window(_shape(rows, width), rows, width, columns, first, vocab_size)


def append(
    sizes: Window,
    tree: tree_lib.TokenTree,
    guess: jax.Array,
    fill: jax.Array,
    *,
    anchor: jax.Array,
    view: contracts.View,
) -> tree_lib.TokenTree:
    """Appends all of it wherever a row drafts, however little room there is.

    Its nodes are scored for their answers, and a draft model that decodes a few
    tokens ahead never has room for the deepest of them.

    Args:
      sizes: static.
      tree: where to append.
      guess: i32[B, R, X].
      fill: i32[B], rows that follow row 0.
      anchor: i32[B], slot of the spine's end.
      view: for the room.
    """
    shape = sizes.shape
    cell = jnp.asarray(shape.cell)[fill]  # i32[B, M]
    token = phrases.at_slots(guess.reshape(-1, sizes.cells), cell)
    return tree_lib.append(
        tree,
        token=phrases.within(token, sizes.vocab_size),
        parent=jnp.asarray(shape.parent)[fill],
        count=jnp.where(view.room > 1, jnp.asarray(shape.count)[fill], 0),
        tag=sizes.first + cell,
        confidence=jnp.full(token.shape, _UNLIKELY, jnp.float32),
        anchor=anchor,
    )


def spelt(
    sizes: Window,
    tree: tree_lib.TokenTree,
    fill: jax.Array,
    slots: jax.Array,
    answer: jax.Array,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Phrases down the columns of a full window.

    Args:
      sizes: static.
      tree: as it was scored.
      fill: i32[B], rows that follow row 0.
      slots: i32[B, R, X], where the cells stand in it, N where they don't.
      answer: i32[B, R, X], the target's to each of them.

    Returns:
      (i32[B, columns] keys, i32[B, columns, R] phrases, bool[B, columns] which of them
      are whole).
    """
    column = slots[:, 1:, : sizes.columns]  # i32[B, R - 1, columns]
    key = phrases.at_slots(tree.token, phrases.at_slots(tree.parent, column[:, 0]))
    above = phrases.at_slots(tree.token, column)
    phrase = jnp.concatenate([above, answer[:, -1:, : sizes.columns]], axis=1)
    whole = jnp.all(column < tree.slots, axis=1)
    whole = whole & (fill == sizes.rows - 1)[:, None]
    return key, jnp.swapaxes(phrase, 1, 2), whole


def moved(
    sizes: Window,
    guess: jax.Array,
    fill: jax.Array,
    scored: jax.Array,
    answer: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """Guesses and fill one round on, where all of the last row was answered.

    Args:
      sizes: static.
      guess: i32[B, R, X].
      fill: i32[B], rows that follow row 0.
      scored: bool[B, R, X], cells that have an answer.
      answer: i32[B, R, X].
    """
    rows, width = sizes.rows, sizes.width
    fill = jnp.clip(fill, 0, rows - 1)
    last = jnp.arange(rows, dtype=jnp.int32)[None] == fill[:, None]  # bool[B, R]
    used = width - fill + (fill > 0).astype(jnp.int32)  # columns of the last row
    inside = jnp.arange(width, dtype=jnp.int32)[None] < used[:, None]
    missing = last[:, :, None] & inside[:, None] & ~scored
    moves = ~jnp.any(missing, axis=(1, 2))

    left = jnp.roll(guess, -1, axis=2)
    full = jnp.concatenate([left[:, 1:2], guess[:, 2:], answer[:, -1:]], axis=1)
    added = jnp.sum(jnp.where(last[:, :, None], answer, 0), axis=1)  # i32[B, X]
    added = jnp.where((fill > 0)[:, None], jnp.roll(added, -1, axis=1), added)
    below = jnp.pad(last, ((0, 0), (1, 0)))[:, :rows]  # the row to be filled
    filling = jnp.where(below[:, :, None], added[:, None], left)
    after = jnp.where((fill == rows - 1)[:, None, None], full, filling)
    guess = jnp.where(moves[:, None, None], after, guess)
    return guess, jnp.where(moves, jnp.minimum(fill + 1, rows - 1), fill)


def prompt_tokens(view: contracts.View, count: int) -> jax.Array:
    """Tokens i32[B, count] at places of the prompt that a hash chooses."""
    length = jnp.maximum(view.history.prompt_length, 1)
    key = jnp.zeros((length.shape[0], 2), jnp.uint32)
    ids = jnp.arange(count, dtype=jnp.int32)
    place = noise.bits(key, length, ids) % length.astype(jnp.uint32)[:, None]
    return phrases.at_slots(view.history.tokens, place.astype(jnp.int32))
