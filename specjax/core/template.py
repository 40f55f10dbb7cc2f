"""Static tree shapes, built once on the host.

A template is a set of *choices*, as Medusa and EAGLE write them: (0,) is the best
child of the anchor, (0, 1) the second best child of that one::

    choices (0,) (1,) (0, 0) (0, 1) (1, 0) (0, 0, 0)
    node     0    1    2      3      4      5
    parent  -1   -1    0      0      1      2
    depth    1    1    2      2      2      3
    rank     0    1    0      1      0      0
"""

import collections
import dataclasses
from collections.abc import Iterable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from specjax.core import contracts
from specjax.core import tree as tree_lib


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Template:
    """A tree shape under an anchor: nodes by depth, then by choice.

    Every prefix of the nodes is a tree too. Build it by ``from_choices``.

    Attributes:
      parent: NumPy i32[M], index of the parent node, NO_PARENT under the anchor.
      depth: NumPy i32[M], edges from the anchor, 1 for its children.
      rank: NumPy i32[M], which of its parent's best continuations a node is.
      choices: the sorted choices.
    """

    parent: np.ndarray  # i32[M]
    depth: np.ndarray  # i32[M]
    rank: np.ndarray  # i32[M]
    choices: tuple[tuple[int, ...], ...]

    @property
    def bounds(self) -> contracts.Bounds:
        """Most nodes, depth and branching."""
        _, children = np.unique(self.parent, return_counts=True)
        return contracts.Bounds(
            nodes=len(self.choices),
            depth=int(self.depth.max()),
            branching=int(children.max()),
        )

    def count_within(self, depth: jax.Array) -> jax.Array:
        """Nodes i32[B] no deeper than ``depth`` i32[B]: a prefix of the template."""
        levels = np.arange(self.bounds.depth + 1)
        counts = (self.depth[None, :] <= levels[:, None]).sum(axis=1)
        at = jnp.clip(depth, 0, self.bounds.depth)
        return jnp.asarray(counts, jnp.int32)[at]


def from_choices(choices: Iterable[Sequence[int]]) -> Template:
    """The template of some choices, in any order.

    Raises:
      ValueError: no choice, an empty, negative or repeated one, or one whose parent
        is missing.
    """
    given = [tuple(int(rank) for rank in choice) for choice in choices]
    ordered = sorted(given, key=lambda choice: (len(choice), choice))
    if not ordered:
        raise ValueError("choices must hold at least one path, got none")
    index = {choice: at for at, choice in enumerate(ordered)}
    for choice in ordered:
        if not choice or min(choice) < 0:
            raise ValueError(f"a choice is one or more ranks from 0 up, got {choice}")
        if len(choice) > 1 and choice[:-1] not in index:
            raise ValueError(f"choice {choice} needs its parent {choice[:-1]} as well")
    if len(index) < len(ordered):
        twice = next(choice for choice in ordered if ordered.count(choice) > 1)
        raise ValueError(f"choice {twice} stands more than once")
    parents = [index.get(choice[:-1], tree_lib.NO_PARENT) for choice in ordered]
    return Template(
        parent=np.asarray(parents, np.int32),
        depth=np.asarray([len(choice) for choice in ordered], np.int32),
        rank=np.asarray([choice[-1] for choice in ordered], np.int32),
        choices=tuple(ordered),
    )


def from_ranks(ranks: np.ndarray, nodes: int) -> Template:
    """The tree of some size that catches most of what was seen.

    A path is worth the samples that begin with it. No path is worth more than its
    parent, so the most worthy ones are a tree, and no other of that size catches more
    tokens of these samples.

    Args:
      ranks: i[M, D], of the true token at each depth along M true continuations; a
        negative one ends its row.
      nodes: of the tree, at least 1; fewer where fewer paths were seen.

    Raises:
      ValueError: no path was seen, or ``nodes`` is below 1.

    Source: Medusa (Cai et al. 2024), section 2.3.3, which takes the accuracies of heads
    for independent and multiplies them.
    """
    if nodes < 1:
        raise ValueError(f"nodes must be at least 1, got {nodes}")
    ranks = np.asarray(ranks)
    seen = collections.Counter()
    for depth in range(1, ranks.shape[1] + 1):
        paths = ranks[np.all(ranks[:, :depth] >= 0, axis=1), :depth]
        seen.update(map(tuple, paths.tolist()))
    best = sorted(seen, key=lambda path: (-seen[path], len(path), path))
    return from_choices(best[:nodes])


def append_template(
    tree: tree_lib.TokenTree,
    template: Template,
    token: jax.Array,
    *,
    count: jax.Array,
    confidence: jax.Array,
    anchor: jax.Array,
    law: jax.Array | None = None,
    laws: jax.Array | None = None,
) -> tree_lib.TokenTree:
    """Appends the first nodes of a template; a node's tag is its number there.

    Args:
      tree: where to append.
      template: the shape, static.
      token: i32[B, M], in the order of the template's nodes.
      count: i32[B], nodes in use, 0 to M.
      confidence: f32[B, M].
      anchor: i32[B], slot of ``tree``.
      law: as for ``tree.append``.
      laws: as for ``tree.append``.
    """
    return tree_lib.append(
        tree,
        token=token,
        parent=jnp.asarray(template.parent),
        count=count,
        tag=jnp.arange(len(template.choices), dtype=jnp.int32),
        confidence=confidence,
        anchor=anchor,
        law=law,
        laws=laws,
    )
