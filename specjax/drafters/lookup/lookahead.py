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
from typing import NamedTuple

import jax
import jax.numpy as jnp

from specjax import cached, checks
from specjax.core import contracts
from specjax.core import outcome as outcome_lib
from specjax.core import tree as tree_lib
from specjax.drafters.lookup import lookahead_window as window_lib
from specjax.drafters.lookup import phrases, windows
from specjax.drafters.lookup import table as table_lib


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class LookaheadState:
    """What lookahead remembers.

    Attributes:
      pool: phrases of each row.
      window: i32[B, R, X], rows of guesses from column 0 on, X = window + R - 2 at
        the start; see ``lookahead_window.Shape`` for how many of them count.
      fill: i32[B], rows that follow row 0, 0 to R - 1.
    """

    pool: table_lib.Table
    window: jax.Array  # i32[B, R, X]
    fill: jax.Array  # i32[B]


class _Pool(NamedTuple):
    """The pool in numbers; static.

    Attributes:
      max_phrases: G, phrases of one token.
      length: W, tokens of a phrase.
      from_text: whether phrases of the text go in.
    """

    max_phrases: int
    length: int
    from_text: bool


@cached.cached
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
      TypeError: one is of the wrong kind.

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
    checks.at_least("lookahead", 3, ngram=ngram)
    length = ngram - 1
    sizes = _Pool(max_phrases, length, pool_from_prompt)
    guesses = window_lib.make(
        window, ngram - 1, first=max_phrases * length, vocab_size=vocab_size
    )

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
            window=jnp.zeros((batch, guesses.rows, guesses.width), jnp.int32),
            fill=jnp.zeros((batch,), jnp.int32),
        )

    def propose(params, state, view, tree):
        del params
        return _draft(sizes, guesses, state, view, tree)

    def observe(params, state, view, tree, outcome):
        del params
        return _learn(sizes, guesses, state, view, tree, outcome)

    return contracts.Drafter(
        init=init,
        propose=propose,
        observe=observe,
        bounds=contracts.Bounds(
            nodes=guesses.first + int(guesses.shape.count.max()),
            depth=max(guesses.width, length),
            branching=max_phrases + 2,
        ),
        needs=contracts.Needs(top_k=1),
        sources=(
            contracts.Source("lookahead", guesses.first),
            contracts.Source("lookahead_window", guesses.cells),
        ),
    )


def _draft(
    sizes: _Pool,
    guesses: window_lib.Window,
    state: LookaheadState,
    view: contracts.View,
    tree: tree_lib.TokenTree,
) -> tuple[tree_lib.TokenTree, LookaheadState]:
    """The tree with phrases and window, and the state with the window's first row."""
    anchor = tree_lib.spine_end(tree)
    key = phrases.at_slots(tree.token, anchor)
    fill = jnp.clip(state.fill, 0, guesses.rows - 1)
    start = window_lib.prompt_tokens(view, guesses.width)
    row = jnp.where((fill == 0)[:, None], start, state.window[:, 0])
    state = dataclasses.replace(state, window=state.window.at[:, 0].set(row), fill=fill)
    phrase, live = phrases.newest(state.pool, key, sizes.max_phrases)
    tree = phrases.append(
        tree, phrase, live, anchor=anchor, view=view, vocab_size=guesses.vocab_size
    )
    tree = window_lib.append(
        guesses, tree, state.window, fill, anchor=anchor, view=view
    )
    return tree, state


def _learn(
    sizes: _Pool,
    guesses: window_lib.Window,
    state: LookaheadState,
    view: contracts.View,
    tree: tree_lib.TokenTree,
    outcome: outcome_lib.Outcome,
) -> LookaheadState:
    """The state after a round: what its window spelt, and what the text says."""
    pool, window, fill = state.pool, state.window, state.fill
    if view.decoding:
        assert outcome.top_ids is not None
        slots = phrases.slots_of_tags(tree, guesses.first, guesses.cells)
        slots = slots.reshape(-1, guesses.rows, guesses.width)
        answer = phrases.at_slots(outcome.top_ids[:, :, 0], slots)  # i32[B, R, X]
        found = window_lib.spelt(guesses, tree, fill, slots, answer)
        pool = phrases.insert(pool, *found)
        scored = slots < tree.slots
        window, fill = window_lib.moved(guesses, window, fill, scored, answer)
    if sizes.from_text:
        known, new = windows.new_windows(view, outcome, sizes.length + 1)
        pool = phrases.insert(pool, known[:, :, 0], known[:, :, 1:], new)
    return LookaheadState(pool=pool, window=window, fill=fill)
