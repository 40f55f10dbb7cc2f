"""One proposal of a drafter, as plain lists."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specjax.core import contracts
from specjax.core import history as history_lib
from specjax.core import tree as tree_lib

CAPACITY = 24
_PROPOSE = {}


class Node(NamedTuple):
    """A draft; its parent is an index of the drafts, -1 under the text's end."""

    token: int
    parent: int
    confidence: float


def propose(equipped, texts, room=20, spine=(), state=()):
    """Drafts of each text: lists of Node.

    Args:
      equipped: the drafter.
      texts: token ids, all of them at least one token long.
      room: tokens that may be emitted, one number or one a text.
      spine: tokens that another has drafted already, the same for all texts.
      state: of the drafter, () for one without.
    """
    drafter = equipped.drafter
    rows, base = len(texts), 1 + len(spine)
    tokens = np.zeros((rows, CAPACITY), np.int32)
    for row, text in enumerate(texts):
        tokens[row, : len(text)] = text
    lengths = jnp.asarray([len(text) for text in texts], jnp.int32)
    history = history_lib.create(jnp.asarray(tokens), lengths, CAPACITY)
    tree = tree_lib.trunk(
        history, lengths - 1, jnp.ones_like(lengths), base + drafter.bounds.nodes
    )
    if spine:
        tree = tree_lib.append_chain(
            tree,
            token=jnp.tile(jnp.asarray(spine, jnp.int32)[None], (rows, 1)),
            count=jnp.full((rows,), len(spine), jnp.int32),
            confidence=jnp.ones((rows, len(spine)), jnp.float32),
            anchor=jnp.zeros((rows,), jnp.int32),
        )
    view = contracts.View(
        history=history,
        sampling=None,
        processors=None,
        start=lengths - 1,
        room=jnp.broadcast_to(jnp.asarray(room, jnp.int32), (rows,)),
        rounds=jnp.zeros((rows,), jnp.int32),
    )
    run = _PROPOSE.setdefault(drafter, jax.jit(drafter.propose))
    tree, _ = run({"drafter": equipped.params}, state, view, tree)
    tree = jax.tree.map(np.asarray, tree)
    return [
        [
            Node(
                int(tree.token[row, slot]),
                # -1 under the spine's end, whether that is a draft or the text.
                max(int(tree.parent[row, slot]) - base, -1),
                float(tree.confidence[row, slot]),
            )
            for slot in range(base, int(tree.num_nodes[row]))
        ]
        for row in range(rows)
    ]
