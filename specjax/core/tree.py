"""Padded token trees.

A tree holds first its *trunk*, the committed tokens that the target's cache
lacks, as a chain, then draft *nodes*. Nodes lie dense and parents come first::

    slot    0   1   2   3   4   5        num_trunk = 2 (slots 0 and 1)
    token   the cat sat ran on  -        num_nodes = 5
    parent -1   0   1   1   2   -        1 -> 2 "sat" -> 4 "on"
    depth   0   1   2   2   3   -        1 -> 3 "ran"
"""

import dataclasses

import jax
import jax.numpy as jnp

from specjax.core import history as history_lib

NO_PARENT = -1
NO_TAG = -1
NO_LAW = -1


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TokenTree:
    """A tree of tokens for each row of a batch.

    Attributes:
      token: i32[B, N].
      parent: i32[B, N], slot of the parent, NO_PARENT for slot 0.
      depth: i32[B, N], edges from slot 0.
      tag: i32[B, N], the drafter's own number of a node, NO_TAG in the trunk.
      confidence: f32[B, N], estimated acceptance given that of the parent.
      num_trunk: i32[B], committed tokens at the head of the tree.
      num_nodes: i32[B], slots in use, trunk included.
      law: i32[B, N] or None, row of ``laws`` that a node was drawn from, NO_LAW
        for a point mass.
      laws: f32[B, R, V] or None, distributions that nodes were drawn from.
    """

    token: jax.Array  # i32[B, N]
    parent: jax.Array  # i32[B, N]
    depth: jax.Array  # i32[B, N]
    tag: jax.Array  # i32[B, N]
    confidence: jax.Array  # f32[B, N]
    num_trunk: jax.Array  # i32[B]
    num_nodes: jax.Array  # i32[B]
    law: jax.Array | None = None  # i32[B, N]
    laws: jax.Array | None = None  # f32[B, R, V]

    @property
    def slots(self) -> int:
        """N, the static number of slots."""
        return self.token.shape[1]


def trunk(
    history: history_lib.History, start: jax.Array, count: jax.Array, slots: int
) -> TokenTree:
    """The tree that holds history[start : start + count] and no drafts.

    Args:
      history: the committed tokens.
      start: i32[B], tokens that the target's cache holds.
      count: i32[B], trunk length, 0 to ``slots``.
      slots: N, static.
    """
    slot = jnp.arange(slots, dtype=jnp.int32)[None, :]
    inside = slot < count[:, None]  # bool[B, N]
    at = jnp.minimum(start[:, None] + slot, history.tokens.shape[1] - 1)
    token = jnp.take_along_axis(history.tokens, at, axis=1)
    rows = count.shape[0]
    return TokenTree(
        token=jnp.where(inside, token, 0),
        parent=jnp.where(inside, slot - 1, NO_PARENT),
        depth=jnp.where(inside, slot, 0),
        tag=jnp.full((rows, slots), NO_TAG, jnp.int32),
        confidence=jnp.ones((rows, slots), jnp.float32),
        num_trunk=count,
        num_nodes=count,
    )


def append(
    tree: TokenTree,
    *,
    token: jax.Array,
    parent: jax.Array,
    count: jax.Array,
    tag: jax.Array,
    confidence: jax.Array,
    anchor: jax.Array,
    law: jax.Array | None = None,
    laws: jax.Array | None = None,
) -> TokenTree:
    """Appends a small tree of draft nodes under one node of each row.

    Args:
      tree: where to append.
      token: i32[B, M], new nodes, parents first.
      parent: i32[M] or i32[B, M], index among the new nodes, NO_PARENT for
        those that hang under ``anchor``.
      count: i32[B], new nodes in use, 0 to M; what does not fit is left out.
      tag: i32[M] or i32[B, M].
      confidence: f32[B, M].
      anchor: i32[B], slot of ``tree``.
      law: i32[M] or i32[B, M], row of ``laws`` that a new node was drawn from,
        NO_LAW for a point mass; None if all are point masses.
      laws: f32[B, R, V], laws of the new nodes; they go behind those of ``tree``.

    Raises:
      ValueError: one of ``law`` and ``laws`` is given without the other.
    """
    if (law is None) != (laws is None):
        raise ValueError("append: law and laws belong together, one is None")
    width = token.shape[1]
    new = jnp.arange(width, dtype=jnp.int32)[None, :]
    base = tree.num_nodes[:, None]
    count = jnp.minimum(count, tree.slots - tree.num_nodes)
    parent = jnp.broadcast_to(parent, token.shape)
    parent_slot = jnp.where(parent < 0, anchor[:, None], base + parent)
    slot = jnp.where(new < count[:, None], base + new, tree.slots)

    def put(field: jax.Array, value: jax.Array | int) -> jax.Array:
        value = jnp.broadcast_to(jnp.asarray(value, field.dtype), token.shape)
        return jax.vmap(lambda row, at, x: row.at[at].set(x, mode="drop"))(
            field, slot, value
        )

    grown = dataclasses.replace(
        tree,
        token=put(tree.token, token),
        parent=put(tree.parent, parent_slot),
        tag=put(tree.tag, tag),
        confidence=put(tree.confidence, confidence),
        num_nodes=tree.num_nodes + count,
    )
    grown = _put_laws(grown, put, law, laws)
    below = jnp.take_along_axis(tree.depth, anchor[:, None], axis=1)
    depth = put(tree.depth, below + edges_from_anchor(parent))
    return dataclasses.replace(grown, depth=depth)


def edges_from_anchor(parent: jax.Array) -> jax.Array:
    """Depth i32[B, M] of nodes by index of their parents, 1 under the anchor.

    Every node points at its parent, then at its grandparent, and so on by doubling.
    """
    width = parent.shape[1]
    root = jnp.full((parent.shape[0], 1), width, jnp.int32)
    up = jnp.concatenate([jnp.where(parent < 0, width, parent), root], axis=1)
    edges = jnp.ones_like(up).at[:, width].set(0)
    for _ in range(max(width - 1, 1).bit_length()):
        edges = edges + jnp.take_along_axis(edges, up, axis=1)
        up = jnp.take_along_axis(up, up, axis=1)
    return edges[:, :width]


def _put_laws(tree: TokenTree, put, law, laws) -> TokenTree:
    """Notes the laws of appended nodes; a tree of point masses has no arrays."""
    if law is None and tree.law is None:
        return tree
    before = jnp.full_like(tree.token, NO_LAW) if tree.law is None else tree.law
    if law is None:
        return dataclasses.replace(tree, law=put(before, NO_LAW))
    if tree.laws is not None:
        law = jnp.where(law < 0, NO_LAW, law + tree.laws.shape[1])
        laws = jnp.concatenate([tree.laws, laws], axis=1)
    return dataclasses.replace(tree, law=put(before, law), laws=laws)


def append_chain(
    tree: TokenTree,
    *,
    token: jax.Array,
    count: jax.Array,
    confidence: jax.Array,
    anchor: jax.Array,
    law: jax.Array | None = None,
    laws: jax.Array | None = None,
) -> TokenTree:
    """Appends a chain under ``anchor``; its tags count from 0.

    Args:
      tree: where to append.
      token: i32[B, M].
      count: i32[B], 0 to M.
      confidence: f32[B, M].
      anchor: i32[B], slot of ``tree``.
      law: as for ``append``.
      laws: as for ``append``.
    """
    link = jnp.arange(token.shape[1], dtype=jnp.int32)
    return append(
        tree,
        token=token,
        parent=link - 1,
        count=count,
        tag=link,
        confidence=confidence,
        anchor=anchor,
        law=law,
        laws=laws,
    )


def node_mask(tree: TokenTree) -> jax.Array:
    """bool[B, N]: slots in use."""
    return jnp.arange(tree.slots, dtype=jnp.int32)[None, :] < tree.num_nodes[:, None]


def draft_mask(tree: TokenTree) -> jax.Array:
    """bool[B, N]: slots that hold drafts, not trunk."""
    slot = jnp.arange(tree.slots, dtype=jnp.int32)[None, :]
    return node_mask(tree) & (slot >= tree.num_trunk[:, None])


def ancestor_mask(tree: TokenTree) -> jax.Array:
    """bool[B, N, N]: [n, m] is True where m is n or an ancestor of n.

    Unused slots attend to themselves alone, so no row of attention is empty.
    Reachability by squaring: ceil(log2 N) boolean products.
    """
    slots = tree.slots
    slot = jnp.arange(slots, dtype=jnp.int32)
    used = node_mask(tree)[:, :, None]
    is_parent = (tree.parent[:, :, None] == slot[None, None, :]) & used  # bool[B, N, N]
    reach = jnp.eye(slots, dtype=jnp.bool_)[None] | is_parent
    for _ in range(max(slots - 1, 1).bit_length()):
        reach = _compose(reach, reach)
    return reach


def _compose(first: jax.Array, second: jax.Array) -> jax.Array:
    """Boolean matrix product of bool[B, N, N]."""
    product = jnp.einsum(
        "bnm,bmk->bnk", first.astype(jnp.float32), second.astype(jnp.float32)
    )
    return product > 0.5


def cut(tree: TokenTree, width: int) -> TokenTree:
    """The first ``width`` slots (static): what one rung of the ladder scores."""
    return dataclasses.replace(
        tree,
        token=tree.token[:, :width],
        parent=tree.parent[:, :width],
        depth=tree.depth[:, :width],
        tag=tree.tag[:, :width],
        confidence=tree.confidence[:, :width],
        num_trunk=jnp.minimum(tree.num_trunk, width),
        num_nodes=jnp.minimum(tree.num_nodes, width),
        law=None if tree.law is None else tree.law[:, :width],
    )


def widen(tree: TokenTree, slots: int) -> TokenTree:
    """The same tree with room for ``slots`` (static) nodes, no fewer than now."""
    spare = slots - tree.slots

    def pad(field: jax.Array, filler: int) -> jax.Array:
        return jnp.pad(field, ((0, 0), (0, spare)), constant_values=filler)

    return dataclasses.replace(
        tree,
        token=pad(tree.token, 0),
        parent=pad(tree.parent, NO_PARENT),
        depth=pad(tree.depth, 0),
        tag=pad(tree.tag, NO_TAG),
        confidence=pad(tree.confidence, 1),
        law=None if tree.law is None else pad(tree.law, NO_LAW),
    )


def graft(tree: TokenTree, other: TokenTree, base: jax.Array) -> TokenTree:
    """Adds the nodes of another tree that grew from the same beginning.

    Args:
      tree: where to add.
      other: equal to ``tree`` in the slots before ``base``.
      base: i32[B], slots that both have in common.
    """
    new = other.slots - 1
    index = jnp.arange(new, dtype=jnp.int32)[None]
    at = jnp.minimum(base[:, None] + index, other.slots - 1)

    def take(field: jax.Array) -> jax.Array:
        return jnp.take_along_axis(field, at, axis=1)

    old_parent = take(other.parent)
    shift = (tree.num_nodes - base)[:, None]
    moved = jnp.where(old_parent >= base[:, None], old_parent + shift, old_parent)
    slot = tree.num_nodes[:, None] + index
    count = jnp.minimum(other.num_nodes - base, tree.slots - tree.num_nodes)
    slot = jnp.where(index < count[:, None], slot, tree.slots)

    def put(field: jax.Array, value: jax.Array) -> jax.Array:
        return jax.vmap(lambda row, at, x: row.at[at].set(x, mode="drop"))(
            field, slot, value
        )

    grown = dataclasses.replace(
        tree,
        token=put(tree.token, take(other.token)),
        parent=put(tree.parent, moved),
        depth=put(tree.depth, take(other.depth)),
        tag=put(tree.tag, take(other.tag)),
        confidence=put(tree.confidence, take(other.confidence)),
        num_nodes=tree.num_nodes + count,
    )
    law = None if other.law is None else take(other.law)
    return _put_laws(grown, put, law, other.laws)


def pack(tree: TokenTree, keep: jax.Array) -> TokenTree:
    """Keeps the chosen nodes and closes the gaps, in slot order.

    Args:
      tree: the tree.
      keep: bool[B, N], ancestor-closed; the trunk is kept in any case.
    """
    slot = jnp.arange(tree.slots, dtype=jnp.int32)[None, :]
    keep = node_mask(tree) & (keep | (slot < tree.num_trunk[:, None]))
    new_slot = jnp.cumsum(keep, axis=1, dtype=jnp.int32) - 1  # i32[B, N]
    order = jnp.argsort(~keep, axis=1, stable=True)  # i32[B, N], kept ones first
    count = jnp.sum(keep, axis=1, dtype=jnp.int32)
    used = slot < count[:, None]

    def move(field: jax.Array, filler: int) -> jax.Array:
        moved = jnp.take_along_axis(field, order, axis=1)
        return jnp.where(used, moved, jnp.asarray(filler, field.dtype))

    old_parent = jnp.maximum(move(tree.parent, 0), 0)
    parent = jnp.take_along_axis(new_slot, old_parent, axis=1)
    rooted = used & (move(tree.parent, NO_PARENT) >= 0)
    return dataclasses.replace(
        tree,
        token=move(tree.token, 0),
        parent=jnp.where(rooted, parent, NO_PARENT),
        depth=move(tree.depth, 0),
        tag=move(tree.tag, NO_TAG),
        confidence=move(tree.confidence, 1),
        num_nodes=count,
        law=None if tree.law is None else move(tree.law, NO_LAW),
    )


def room_below(tree: TokenTree, anchor: jax.Array, room: jax.Array) -> jax.Array:
    """Levels i32[B] that drafts under a node may have, negative where it is too deep.

    Args:
      tree: the tree.
      anchor: i32[B], slot of the node.
      room: i32[B], tokens that may still be emitted; a draft as deep can't be.
    """
    depth = jnp.take_along_axis(tree.depth, anchor[:, None], axis=1)[:, 0]
    return room - 1 - (depth - jnp.maximum(tree.num_trunk - 1, 0))


def spine_end(tree: TokenTree) -> jax.Array:
    """Slot i32[B] where a drafter that continues the tree hangs its nodes.

    The spine runs from the end of the trunk through first children. Without
    drafts it ends at the trunk's last slot (0 where the trunk is empty).
    """

    def step(at: jax.Array) -> jax.Array:
        child = _first_child(tree, at)
        return jnp.where(child < tree.slots, child, at)

    start = jnp.maximum(tree.num_trunk - 1, 0)
    return jax.lax.while_loop(lambda at: jnp.any(step(at) != at), step, start)


def spine(tree: TokenTree, count: int) -> jax.Array:
    """The first ``count`` slots i32[B, count] of the spine, then -1.

    It begins with the trunk's last slot, as in `spine_end`.
    """
    slots = [jnp.maximum(tree.num_trunk - 1, 0)]
    for _ in range(count - 1):
        slots.append(_first_child(tree, slots[-1]))
    found = jnp.stack(slots, axis=1)
    return jnp.where(found < tree.slots, found, -1)


def _first_child(tree: TokenTree, at: jax.Array) -> jax.Array:
    """The lowest drafted child i32[B] of slot ``at`` i32[B]; N where there is none."""
    slot = jnp.arange(tree.slots, dtype=jnp.int32)[None, :]
    is_child = draft_mask(tree) & (tree.parent == at[:, None])
    return jnp.min(jnp.where(is_child, slot, tree.slots), axis=1)


def spine_tokens(tree: TokenTree) -> tuple[jax.Array, jax.Array]:
    """Draft tokens along the spine: (i32[B, N] in order, count i32[B])."""
    end = spine_end(tree)
    on_path = jnp.take_along_axis(ancestor_mask(tree), end[:, None, None], axis=1)[:, 0]
    on_path = on_path & draft_mask(tree)
    order = jnp.argsort(~on_path, axis=1, stable=True)
    count = jnp.sum(on_path, axis=1, dtype=jnp.int32)
    return jnp.take_along_axis(tree.token, order, axis=1), count
