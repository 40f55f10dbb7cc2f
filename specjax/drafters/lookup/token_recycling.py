"""Token recycling: draft by what the target last thought likely after each token.

Every forward pass ranks the next tokens after all nodes of a tree, rejected ones too.
Those rankings are kept, one row a token of the vocabulary, and fill a fixed tree: the
node of rank i below token t is the i-th of what last was likely after t::

    after 5: 6 7    after 6: 1 2             6 -- 1 -- 9
    after 7: 3 4    after 1: 9 8        5 -<  `-- 2
                                             7 -- 3
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from specjax import cached, checks
from specjax.core import contracts, template
from specjax.core import outcome as outcome_lib
from specjax.core import tree as tree_lib

UNSEEN = -1
RANKS = 8

# The tree of the reference ("2.2.2"): how many children, best first, a choice has.
_CHILDREN = {
    (): 8,
    (0,): 8,
    (1,): 4,
    (2,): 3,
    (3,): 2,
    **{(rank,): 1 for rank in range(4, 8)},
    (0, 0): 8,
    (0, 1): 3,
    (0, 2): 2,
    **{(0, rank): 1 for rank in range(3, 8)},
    (1, 0): 2,
    (1, 1): 1,
    **{(rank, 0): 1 for rank in range(2, 6)},
    (0, 0, 0): 5,
    (0, 0, 1): 2,
    **{(0, 0, rank): 1 for rank in range(2, 5)},
    **{(0, rank, 0): 1 for rank in (1, 2)},
    **{(rank, 0, 0): 1 for rank in (1, 2, 3)},
    (0, 0, 0, 0): 3,
    **{(0, 0, 0, rank): 1 for rank in (1, 2)},
    (0, 0, 1, 0): 1,
    (0, 1, 0, 0): 1,
    (1, 0, 0, 0): 1,
    (0, 0, 0, 0, 0): 2,
    (0, 0, 0, 1, 0): 1,
}
CHOICES = tuple(
    (*parent, rank) for parent, count in _CHILDREN.items() for rank in range(count)
)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TokenRecyclingState:
    """What was last likely after each token.

    Attributes:
      successor: i32[B, V, K], best first; UNSEEN for a token that was never scored.
    """

    successor: jax.Array  # i32[B, V, K]


def confidence_of(rank: np.ndarray | int) -> np.ndarray:
    """How likely a token's last i-th best successor is to follow it now.

    ``0.39 / (i + 1)^1.75``: 0.39, 0.12, 0.06, 0.03, ... 0.01. A fit to what SmolLM2
    answered to 40 instructions, questions and texts (0.39, 0.10, 0.06, 0.04, 0.03,
    0.02, 0.02, 0.02 by rank, of the tokens that had been scored before).
    """
    return 0.39 / (np.asarray(rank) + 1.0) ** 1.75


def chance_of(choice: tuple[int, ...]) -> float:
    """How likely a node of the tree is to be accepted: the product along its path."""
    return float(np.prod(confidence_of(np.asarray(choice))))


def likeliest(nodes: int, ranks: int = RANKS) -> template.Template:
    """The part of the reference's tree that is likeliest to be accepted.

    Args:
      nodes: how many of its 80 nodes; on ties the shallower, then the lower ranks.
      ranks: only successors of a rank below count.
    """

    def key(choice: tuple[int, ...]):
        return -round(chance_of(choice), 9), len(choice), choice

    fitting = [choice for choice in CHOICES if max(choice) < ranks]
    return template.from_choices(sorted(fitting, key=key)[:nodes])


@cached.cached
def token_recycling(
    *,
    vocab_size: int = 0,
    nodes: int = len(CHOICES),
    top_k: int = RANKS,
    warm_prompt: bool = True,
) -> contracts.Drafter:
    """Drafts a fixed tree of what was last likely after each token.

    A node whose token is not known, because its parent was never scored, is left out
    with all below it. The tag of a node is its number in the template. A state that is
    passed on to the next request knows what it has learnt.

    Args:
      vocab_size: V; the registry fills in the target's.
      nodes: nodes of the tree: all 80 of the reference's, or the likeliest of them;
        15 of them and the trunk fill a rung of the ladder.
      top_k: K, successors that are kept of each token: 4 * V * K bytes a row.
      warm_prompt: learns from prompts too, which costs a row of the head for each of
        their tokens.

    Raises:
      ValueError: an argument is out of range.
      TypeError: one is of the wrong kind.

    Source: Token Recycling (Luo et al. 2024), section 3. There prompts are not learnt
    from, a token that was never scored is followed by token 0, and of equal tokens in
    a tree it is open which one counts (see ``_winners``).
    """
    _check(vocab_size, nodes, top_k)
    ranks = min(top_k, vocab_size)
    shape = likeliest(nodes, ranks)
    confidence = confidence_of(shape.rank).astype(np.float32)  # [M]

    def init(params, rows, capacity):
        del params, capacity
        blank = jnp.full((rows, vocab_size, ranks), UNSEEN, jnp.int32)
        return TokenRecyclingState(successor=blank)

    def propose(params, state, view, tree):
        del params
        anchor = tree_lib.spine_end(tree)
        root = jnp.take_along_axis(tree.token, anchor[:, None], axis=1)[:, 0]
        levels = tree_lib.room_below(tree, anchor, view.room)
        token = jax.vmap(functools.partial(_fill, shape))(state.successor, root)
        keep = (token >= 0) & (jnp.asarray(shape.depth)[None] <= levels[:, None])
        order = jnp.argsort(~keep, axis=1, stable=True).astype(jnp.int32)
        place = jnp.cumsum(keep, axis=1, dtype=jnp.int32) - 1
        above = jnp.asarray(shape.parent)[order]
        parent = jnp.take_along_axis(place, jnp.maximum(above, 0), axis=1)
        tree = tree_lib.append(
            tree,
            token=jnp.take_along_axis(token, order, axis=1),
            parent=jnp.where(above < 0, tree_lib.NO_PARENT, parent),
            count=jnp.sum(keep, axis=1, dtype=jnp.int32),
            tag=order,
            confidence=jnp.asarray(confidence)[order],
            anchor=anchor,
        )
        return tree, state

    def observe(params, state, view, tree, outcome):
        del params
        if outcome.top_ids is None or not (view.decoding or warm_prompt):
            return state
        at = jnp.where(_winners(tree, outcome), tree.token, vocab_size)
        put = jax.vmap(lambda table, at, new: table.at[at].set(new, mode="drop"))
        return TokenRecyclingState(successor=put(state.successor, at, outcome.top_ids))

    return contracts.Drafter(
        init=init,
        propose=propose,
        observe=observe,
        bounds=shape.bounds,
        needs=contracts.Needs(top_k=ranks, prompt_top_k=warm_prompt),
        sources=(contracts.Source("token_recycling", len(shape.choices)),),
    )


def _fill(shape: template.Template, successor: jax.Array, root: jax.Array) -> jax.Array:
    """Tokens i32[M] of a template, UNSEEN where the parent has none; unbatched.

    Args:
      shape: static.
      successor: i32[V, K].
      root: i32[], the token above the template.
    """
    vocab_size = successor.shape[0]
    known = root[None]  # the tokens so far, the root in front
    for level in range(1, shape.bounds.depth + 1):
        here = shape.depth == level
        parent = known[shape.parent[here] + 1]
        token = successor[jnp.clip(parent, 0, vocab_size - 1), shape.rank[here]]
        # A state may be another vocabulary's or spoilt; an id must be one.
        sound = (parent >= 0) & (parent < vocab_size) & (token < vocab_size)
        known = jnp.concatenate([known, jnp.where(sound, token, UNSEEN)])
    return known[1:]


def _winners(tree: tree_lib.TokenTree, outcome: outcome_lib.Outcome) -> jax.Array:
    """bool[B, N]: of the nodes that carry the same token the one to learn from.

    Nodes of the path, which is the text, go before others, and the last of them
    first, as if tokens had come one by one; of others the shallowest, then the first.
    """
    on_path = outcome_lib.on_path(outcome, tree.slots)
    slot = jnp.arange(tree.slots, dtype=jnp.int32)[None]
    worth = jnp.where(on_path, 1 + tree.depth, -1 - tree.depth * tree.slots - slot)
    used = tree_lib.node_mask(tree)
    rival = (tree.token[:, :, None] == tree.token[:, None]) & used[:, None]
    beaten = rival & (worth[:, None] > worth[:, :, None])
    return used & ~jnp.any(beaten, axis=2)


def _check(vocab_size: int, nodes: int, top_k: int) -> None:
    checks.integer("token_recycling", "vocab_size", vocab_size, 1)
    checks.integer("token_recycling", "nodes", nodes, 1, len(CHOICES))
    checks.integer("token_recycling", "top_k", top_k, 1, RANKS)
