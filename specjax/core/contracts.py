"""The contracts: what a target, a drafter and a verifier are.

Each is a NamedTuple of pure functions plus static facts. The round knows only
these; it imports no model, drafter or rule.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from specjax.core import history as history_lib
from specjax.core import outcome as outcome_lib
from specjax.core import processors as processors_lib
from specjax.core import sampling as sampling_lib
from specjax.core import tree as tree_lib

Params = Any  # pytree of arrays
Cache = Any  # pytree that only its Target looks into
Rows = Any  # pytree of what a forward would write for each tree slot
DrafterState = Any  # pytree with leaves [B, ...], others under a field `shared`


class Scored(NamedTuple):
    """What one forward pass over a tree returns; the cache is only read.

    hidden is what ``head`` consumes, features are those that were asked for,
    concatenated over layers, or None; rows are opaque.
    """

    hidden: jax.Array  # f[B, N, E]
    features: jax.Array | None  # f[B, N, F]
    rows: Rows


class Target(NamedTuple):
    """A model as the round sees it.

    Attributes:
      init: (rows, capacity) -> cache for that many batch rows and positions.
      forward: (params, tree, cache, start, features) -> Scored. ``start`` i32[B] is
        the number of positions that the cache holds, the position of slot 0;
        ``features`` the static tuple of layers whose outputs are wanted.
      head: (params, hidden f[B, E]) -> logits f32[B, V].
      head_rows: params -> static int, rows that ``head`` computes at once for hardly
        more than one costs; above 1 only where a row's logits are the same, bit for
        bit, alone and among others.
      pad: (rows, slots) -> rows with room for that many slots, static.
      commit: (cache, rows, path_slot, start, count i32[B]) -> cache with the first
        ``count`` rows of the path i32[B, L] written at ``start``; None is the path
        0, 1, 2, ... What does not fit is dropped.
      rewind: (cache, length i32[B]) -> cache cut back to ``length`` positions.
      vocab_size, max_context: static sizes.
    """

    init: Callable[[int, int], Cache]
    forward: Callable[..., Scored]
    head: Callable[[Params, jax.Array], jax.Array]
    pad: Callable[[Rows, int], Rows]
    commit: Callable[[Cache, Rows, jax.Array | None, jax.Array, jax.Array], Cache]
    rewind: Callable[[Cache, jax.Array], Cache]
    vocab_size: int
    max_context: int
    head_rows: Callable[[Params], int] = lambda params: 1


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class View:
    """What a drafter may read.

    Attributes:
      history: committed tokens (the new ones included when observing).
      sampling: parameters of the rows, the noise key among them.
      processors: processor state at the end of the history.
      start: i32[B], history position of the tree's slot 0: tokens that the target's
        cache held when the round began.
      room: i32[B], tokens that may still be emitted; drafts at depth ``room`` or
        deeper can't be. 0 where a row is idle or not ready to draft.
      rounds: i32[B], rounds that the row went through; keys the lanes of noise of a
        drafter that draws from laws.
      decoding: static; False while prompts go in, when nothing is drafted and trees
        are as wide as a chunk.
    """

    history: history_lib.History
    sampling: sampling_lib.Sampling
    processors: processors_lib.ProcessorState
    start: jax.Array  # i32[B]
    room: jax.Array  # i32[B]
    rounds: jax.Array  # i32[B]
    decoding: bool = dataclasses.field(default=True, metadata={"static": True})


class Bounds(NamedTuple):
    """Static limits of what a drafter appends.

    Attributes:
      nodes: most nodes.
      depth: most of them on one path.
      branching: most children of one node. 1 promises a chain that goes on from the
        spine's end: its rows are committed in slot order, without a gather.
    """

    nodes: int
    depth: int
    branching: int


class Needs(NamedTuple):
    """Static wishes of a drafter.

    Attributes:
      features: layers of the target whose outputs it reads on the path; -1 is the
        final hidden state that the head consumes.
      top_k: how many of the target's best ids it reads after every node, 0 none.
      prompt_top_k: whether it reads them in prompts too, which costs a row of the
        head for every token there.
      laws: True if its nodes are drawn from laws that it hands on, which the rules
        `rejection` and `without_replacement` need and `exact` ignores.
    """

    features: tuple[int, ...] = ()
    top_k: int = 0
    prompt_top_k: bool = False
    laws: bool = False


class Source(NamedTuple):
    """A name for a range of tags, for the statistics.

    Attributes:
      name: of the drafter, as results spell it.
      num_tags: length of the range.
    """

    name: str
    num_tags: int


class Drafter(NamedTuple):
    """A way to draft.

    Attributes:
      init: (params, rows, capacity) -> state. Sizes only: prompts come by `observe`.
      propose: (params, state, view, tree) -> (tree, state); appends nodes.
      observe: (params, state, view, tree, outcome) -> state; sees accepted and
        rejected nodes, and prompt chunks as trees without drafts.
      bounds: what `propose` appends at most.
      needs: what it wants of the target.
      sources: names of tag ranges, in order; tags count through them.

    ``params`` is {"target", "drafter", "verifier"}; only the second is the drafter's
    own. A state leaf is [B, ...] unless it lies under a field named ``shared``.
    """

    init: Callable[[Params, int, int], DrafterState]
    propose: Callable[..., tuple[tree_lib.TokenTree, DrafterState]]
    observe: Callable[..., DrafterState]
    bounds: Bounds
    needs: Needs
    sources: tuple[Source, ...]


class Verdict(NamedTuple):
    """A verifier's answer: the outcome, and the processors moved on."""

    outcome: outcome_lib.Outcome
    processors: processors_lib.ProcessorState


class Verifier(NamedTuple):
    """A rule that decides which drafts are kept.

    Attributes:
      verify: (logits_at, tree, view, ready, depth) -> Verdict. ``logits_at`` maps
        slots i32[B] to the logits f32[B, V] after them; ``ready`` bool[B] marks rows
        whose trunk reaches the end of the history; ``depth`` is the static most
        drafts on a path.
      lossless: False for a rule that changes the law of the output.
      same_tokens: True if the tokens are those of plain decoding, not only their
        law.
      needs_laws: True if it needs the laws that drafts were drawn from.
      branching: most children of a node that it can test, None for any number.
    """

    verify: Callable[..., Verdict]
    lossless: bool
    same_tokens: bool
    needs_laws: bool
    branching: int | None = None
