"""The contract of what can be trained: a drafter as the trainer sees it.

Positions of a batch are packed documents. With t a position, ``hidden[t]`` is the
target's state after token t, from which its head draws token t + 1: the root of a draft
tree. A draft of depth d, from 1 up, is a guess at token t + 1 + d; it may look at what
the target said up to t and at tokens up to t + d.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

Params = Any  # pytree of arrays that are trained
Frozen = Any  # pytree of arrays of the target that it reads

OUTSIDE = 2**30  # rank of a token that a drafter has no logit for


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """Documents packed into rows; what is past them is padding.

    Attributes:
      tokens: i32[B, T].
      segment: i32[B, T], documents of a row numbered from 1, 0 for padding.
      position: i32[B, T], of a token in its document.
      answer: bool[B, T], tokens that the target wrote: those are learnt.
    """

    tokens: jax.Array  # i32[B, T]
    segment: jax.Array  # i32[B, T]
    position: jax.Array  # i32[B, T]
    answer: jax.Array  # bool[B, T]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Taught:
    """What the target says of a batch.

    Attributes:
      hidden: f[B, T, E] after the last norm, what the target's head consumes.
      features: f[B, T, F], outputs of the layers that were asked for, side by side.
    """

    hidden: jax.Array  # f[B, T, E]
    features: jax.Array  # f[B, T, F]


class Objective(NamedTuple):
    """What the trainer knows of a drafter.

    Attributes:
      features: layers of the target whose outputs it reads, see ``Needs.features``.
      depth: D, drafts in a row that ``ranks`` looks at; static.
      freeze: (target params) -> Frozen, dense arrays of the target that it reads.
      init: (key, frozen) -> Params.
      loss: (params, frozen, batch, taught, key) -> (f32[], {name: f32[]}), a mean over
        what is learnt, and numbers to report.
      ranks: (params, frozen, batch, taught) -> i32[B, T, D]. At [:, t, d - 1] how many
        tokens the drafter likes better than the true token t + 1 + d, after it has
        followed the true tokens up to t + d; OUTSIDE if it has no logit for it.
        Entries whose tokens are not all of one answer are the caller's to mask.
    """

    features: tuple[int, ...]
    depth: int
    freeze: Callable[[Any], Frozen]
    init: Callable[[jax.Array, Frozen], Params]
    loss: Callable[..., tuple[jax.Array, dict[str, jax.Array]]]
    ranks: Callable[..., jax.Array]
