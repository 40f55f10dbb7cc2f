"""As many drafts as pay: tokens expected against the cost of scoring them."""

import dataclasses
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from specjax import cached, checks
from specjax.core import contracts
from specjax.core import outcome as outcome_lib
from specjax.core import tree as tree_lib
from specjax.core import union as union_lib
from specjax.drafters import equipped

_BINS = 8  # bins of confidence for each source
_PATIENCE = 6.0  # trials that the stated confidence of a bin weighs as much as


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class AdaptiveState:
    """What was seen of the child's drafts.

    Attributes:
      child: its state.
      tried: f32[B, Z, bins], drafts whose parent was accepted, by source and stated
        confidence.
      taken: f32[B, Z, bins], those of them that were accepted.
    """

    child: contracts.DrafterState
    tried: jax.Array  # f32[B, Z, bins]
    taken: jax.Array  # f32[B, Z, bins]


def adaptive_length(
    child: equipped.AnyDrafter,
    *,
    widths: Sequence[int],
    costs: Sequence[float],
    kept_cost: float = 0.0,
    kept_free: int = 0,
) -> equipped.Equipped:
    """Trims what a drafter proposes to what is worth scoring.

    A round of width w is worth ``(rows + kept) / (cost(w) + kept_cost * dear / rows)``
    tokens per millisecond, ``kept`` being the sum of the chances of the w - 1 likeliest
    drafts of each row and ``dear`` that of those of them that are deeper than
    ``kept_free``; the best width is taken, down to no drafts at all. The chance of a
    draft is the product of confidences along its path, each corrected by how often
    drafts of that source and confidence were accepted in the row so far:
    ``(taken + 6 stated) / (tried + 6)``.

    Args:
      child: what drafts; its confidences should be estimates of acceptance.
      widths: ladder that the costs belong to, ascending from 1. Decode with the same
        ladder, or costs are not those of the widths that run.
      costs: of a round of each width with one row, in any one unit; several rows
        are taken to cost what as many tokens in one row do. Params, so that other
        costs compile nothing anew.
      kept_cost: more for each deep draft that a row keeps, in the unit of ``costs``:
        the walk takes a row of the head for it, as for the first token.
      kept_free: depth, below where the child began, of the drafts whose rows of the
        head ``costs`` hold already.

    Params: {"child": params of the child, "cost": f32[W], "kept_cost": f32[]}.

    Raises:
      ValueError: the ladder does not ascend from 1, the costs don't fit it or are not
        finite, or ``kept_cost`` or ``kept_free`` is negative.
      TypeError: a number is of the wrong kind.

    Source: our own. SuffixDecoding lengthens drafts with the match and EAGLE-2 ranks
    nodes by the product of confidences; that the choice is made by the measured cost
    of each width follows from the latter being far from flat on small devices.
    """
    inner = equipped.equip(child)
    for name, values in (("widths", widths), ("costs", costs)):
        if not isinstance(values, Sequence) or isinstance(values, str):
            raise TypeError(f"adaptive_length: {name} must be a list, got {values!r}")
    for width in widths:
        checks.whole("adaptive_length", "a width", width)
    for cost in costs:
        checks.number("adaptive_length", "a cost", cost)
    checks.number("adaptive_length", "kept_cost", kept_cost)
    checks.whole("adaptive_length", "kept_free", kept_free)
    ladder = _check(tuple(widths), costs)
    if not kept_cost >= 0:
        raise ValueError(
            f"adaptive_length: kept_cost must be 0 or more, got {kept_cost}"
        )
    if kept_free < 0:
        raise ValueError(
            f"adaptive_length: kept_free must be 0 or more, got {kept_free}"
        )
    return inner._replace(
        drafter=_drafter(inner.drafter, ladder, kept_free),
        params={
            "child": inner.params,
            "cost": jnp.asarray(costs, jnp.float32),
            "kept_cost": jnp.float32(kept_cost),
        },
        label=f"adaptive_length({inner.label})",
        widths=ladder,
    )


def _check(ladder: tuple[int, ...], costs: Sequence[float]) -> tuple[int, ...]:
    if not ladder or ladder[0] != 1 or list(ladder) != sorted(set(ladder)):
        raise ValueError(
            f"adaptive_length: widths must ascend from 1, got {list(ladder)}"
        )
    if len(costs) != len(ladder) or not all(0 < c < math.inf for c in costs):
        raise ValueError(
            f"adaptive_length: costs must be {len(ladder)} positive numbers, one a "
            f"width, got {list(costs)}"
        )
    return ladder


@cached.cached
def _drafter(
    child: contracts.Drafter, ladder: tuple[int, ...], kept_free: int
) -> contracts.Drafter:
    firsts = np.cumsum([0] + [source.num_tags for source in child.sources])
    num_sources = len(child.sources)

    def own(params):
        return {**params, "drafter": params["drafter"]["child"]}

    def init(params, rows, capacity):
        blank = jnp.zeros((rows, num_sources, _BINS), jnp.float32)
        inner = child.init(own(params), rows, capacity)
        # Two buffers: a state may be donated, and then no two leaves may be one.
        return AdaptiveState(child=inner, tried=blank, taken=jnp.zeros_like(blank))

    def propose(params, state, view, tree):
        base = tree.num_nodes
        wide = tree_lib.widen(tree, tree.slots + child.bounds.nodes)
        grown, inner = child.propose(own(params), state.child, view, wide)

        def trim(grown):
            stated = _corrected(state, grown, firsts)
            sure = dataclasses.replace(grown, confidence=stated)
            budget = _best_budget(ladder, kept_free, params["drafter"], sure, base)
            kept = union_lib.keep_likeliest(
                grown, budget, base, chance=union_lib.path_confidence(sure)
            )
            return tree_lib.cut(kept, tree.slots)

        kept = jax.lax.cond(
            jnp.any(grown.num_nodes > base),
            trim,
            lambda grown: tree_lib.cut(grown, tree.slots),
            grown,
        )
        return kept, dataclasses.replace(state, child=inner)

    def observe(params, state, view, tree, outcome):
        inner = child.observe(own(params), state.child, view, tree, outcome)
        state = dataclasses.replace(state, child=inner)
        if not view.decoding:
            return state
        return jax.lax.cond(
            jnp.any(tree_lib.draft_mask(tree)),
            lambda state: _count(state, tree, outcome, firsts),
            lambda state: state,
            state,
        )

    nodes = min(child.bounds.nodes, ladder[-1] - 1)
    return child._replace(
        init=init,
        propose=propose,
        observe=observe,
        needs=child.needs._replace(laws=False),  # values decide what is kept
        bounds=contracts.Bounds(
            nodes=nodes,
            depth=min(child.bounds.depth, nodes),
            branching=min(child.bounds.branching, nodes),
        ),
    )


def _best_budget(ladder, kept_free, params, tree, base) -> jax.Array:
    """New drafts i32[B] that each row may keep at the width that pays best."""
    slot = jnp.arange(tree.slots, dtype=jnp.int32)[None]
    new = tree_lib.draft_mask(tree) & (slot >= base[:, None])
    chance = jnp.where(new, union_lib.path_confidence(tree), 0.0)
    end = jnp.maximum(base - 1, 0)[:, None]
    below = tree.depth - jnp.take_along_axis(tree.depth, end, axis=1)
    order = jnp.argsort(-chance, axis=1)
    dear = jnp.where(below > kept_free, chance, 0.0)

    def of_widths(value: jax.Array) -> jax.Array:
        """Sums f32[W] over rows and over the likeliest drafts that each width holds."""
        summed = jnp.cumsum(jnp.take_along_axis(value, order, axis=1), axis=1)
        sums = []
        for width in ladder:
            room = jnp.clip(width - base, 0, tree.slots)  # i32[B]
            at = jnp.maximum(room - 1, 0)[:, None]
            most = jnp.take_along_axis(summed, at, axis=1)[:, 0]
            sums.append(jnp.sum(jnp.where(room > 0, most, 0.0)))
        return jnp.stack(sums)

    busy = (base > 0).astype(jnp.float32)
    rows = jnp.maximum(jnp.sum(busy), 1.0)
    more = params["kept_cost"] * of_widths(dear) / rows
    cost = _for_rows(ladder, params["cost"], rows) + more
    rate = (rows + of_widths(chance)) / cost
    width = jnp.asarray(ladder, jnp.int32)[jnp.argmax(rate)]
    return jnp.maximum(width - base, 0)


def _for_rows(ladder, cost, rows) -> jax.Array:
    """Costs f32[W] of that many rows f32[]: those of as many tokens in one row."""
    points = jnp.asarray(ladder, jnp.float32)
    wide = points * rows
    slope = (cost[-1] - cost[0]) / max(ladder[-1] - 1, 1)
    beyond = jnp.maximum(wide - points[-1], 0.0)
    return jnp.interp(wide, points, cost) + slope * beyond


def _place(tree: tree_lib.TokenTree, firsts: np.ndarray) -> tuple[jax.Array, jax.Array]:
    """Source and bin i32[B, N] of each slot; those without a tag are in the first."""
    source = jnp.sum(
        tree.tag[:, :, None] >= jnp.asarray(firsts[1:-1], jnp.int32)[None, None],
        axis=2,
        dtype=jnp.int32,
    )
    bins = jnp.floor(tree.confidence * _BINS).astype(jnp.int32)
    return source, jnp.clip(bins, 0, _BINS - 1)


def _corrected(state, tree, firsts) -> jax.Array:
    """Confidence f32[B, N] after what was seen of its like."""
    if state.tried.shape[1] == 0:
        return tree.confidence
    source, bins = _place(tree, firsts)
    tried = jax.vmap(lambda table, z, b: table[z, b])(state.tried, source, bins)
    taken = jax.vmap(lambda table, z, b: table[z, b])(state.taken, source, bins)
    stated = tree.confidence
    return (taken + _PATIENCE * stated) / (tried + _PATIENCE)


def _count(state, tree, outcome, firsts) -> AdaptiveState:
    """Adds the drafts that were put to the test: their parents were accepted."""
    if state.tried.shape[1] == 0:
        return state
    on_path = outcome_lib.on_path(outcome, tree.slots)
    spoke = (outcome.num_new > 0)[:, None]
    parent_on_path = jnp.take_along_axis(on_path, jnp.maximum(tree.parent, 0), axis=1)
    tested = tree_lib.draft_mask(tree) & parent_on_path & spoke & (tree.tag >= 0)
    source, bins = _place(tree, firsts)

    def add(table, keep):
        return jax.vmap(lambda t, z, b, x: t.at[z, b].add(x))(
            table, source, bins, keep.astype(jnp.float32)
        )

    return dataclasses.replace(
        state,
        tried=add(state.tried, tested),
        taken=add(state.taken, tested & on_path),
    )
