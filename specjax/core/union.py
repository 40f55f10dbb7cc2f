"""What is drafted by several as one trie, and the likeliest nodes of it."""

import dataclasses

import jax
import jax.numpy as jnp

from specjax.core import tree as tree_lib


def twins(tree: tree_lib.TokenTree) -> jax.Array:
    """Lowest slot i32[B, N] whose path spells the same tokens as a node's own.

    The nodes under one parent that carry the same token are one continuation; so are
    their children in turn. A node without such a twin is its own.
    """
    slot = jnp.arange(tree.slots, dtype=jnp.int32)
    drafts = tree_lib.draft_mask(tree)
    same = drafts[:, :, None] & drafts[:, None, :]
    same = same & (tree.token[:, :, None] == tree.token[:, None, :])
    same = same | jnp.eye(tree.slots, dtype=jnp.bool_)[None]
    parent = jnp.where(drafts, tree.parent, slot[None])

    def step(twin: jax.Array) -> jax.Array:
        up = jnp.where(drafts, jnp.take_along_axis(twin, parent, axis=1), slot[None])
        alike = same & (up[:, :, None] == up[:, None, :])
        return jnp.argmax(alike, axis=2).astype(jnp.int32)  # the lowest

    def going(carry: tuple[jax.Array, jax.Array]) -> jax.Array:
        return jnp.any(carry[0] != carry[1])

    # Once the parents of a depth are settled the next depth is.
    own = jnp.broadcast_to(slot[None], tree.token.shape)
    start = (own, step(own))
    return jax.lax.while_loop(going, lambda c: (c[1], step(c[1])), start)[1]


def fold(tree: tree_lib.TokenTree, base: jax.Array) -> tree_lib.TokenTree:
    """Folds equal siblings into one node each, so that what is new is a trie.

    The first of them stays, with the highest confidence of all; a tag that is gone
    counts for nothing in the statistics. Not for trees with laws: twins there are
    independent draws.

    Args:
      tree: the tree.
      base: i32[B], slots that stay; new nodes may fold into them, which can only
        raise their confidence.
    """
    slot = jnp.arange(tree.slots, dtype=jnp.int32)[None]
    twin = jnp.where(slot < base[:, None], slot, twins(tree))
    best = jax.vmap(lambda to, x: jnp.zeros_like(x).at[to].max(x))(
        twin, tree.confidence
    )
    up = jnp.take_along_axis(twin, jnp.maximum(tree.parent, 0), axis=1)
    folded = dataclasses.replace(
        tree,
        parent=jnp.where(tree.parent < 0, tree.parent, up),
        confidence=jnp.where(tree_lib.draft_mask(tree), best, tree.confidence),
    )
    return tree_lib.pack(folded, twin == slot)


def path_confidence(tree: tree_lib.TokenTree) -> jax.Array:
    """Estimated chance f32[B, N] that a draft is accepted: its path's product.

    1 in the trunk and in unused slots.
    """
    slot = jnp.arange(tree.slots, dtype=jnp.int32)[None]
    drafts = tree_lib.draft_mask(tree)
    chance = jnp.where(drafts, tree.confidence, 1.0)
    up = jnp.where(drafts, tree.parent, slot)
    for _ in range(max(tree.slots - 1, 1).bit_length()):
        chance = chance * jnp.take_along_axis(chance, up, axis=1)
        up = jnp.take_along_axis(up, up, axis=1)
    return chance


def keep_likeliest(
    tree: tree_lib.TokenTree,
    budget: jax.Array | int,
    base: jax.Array,
    chance: jax.Array | None = None,
) -> tree_lib.TokenTree:
    """Keeps, of the new drafts, those that are likeliest to be accepted.

    A parent is at least as likely as its children and goes first on ties.

    Args:
      tree: the tree, no confidence above 1.
      budget: i32[] or i32[B], most new drafts.
      base: i32[B], slots that are kept in any case.
      chance: f32[B, N], how likely each node is, no node more than its parent;
        ``path_confidence`` by default.
    """
    slot = jnp.arange(tree.slots, dtype=jnp.int32)[None]
    new = tree_lib.draft_mask(tree) & (slot >= base[:, None])
    chance = path_confidence(tree) if chance is None else chance
    chance = jnp.where(new, chance, -1.0)
    rank = jnp.argsort(jnp.argsort(-chance, axis=1, stable=True), axis=1)
    budget = jnp.broadcast_to(jnp.asarray(budget, jnp.int32), base.shape)
    return tree_lib.pack(
        tree, (slot < base[:, None]) | (new & (rank < budget[:, None]))
    )
