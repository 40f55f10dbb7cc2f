"""Medusa: several heads on the target's last hidden state guess several tokens ahead.

Head k guesses the k-th token after the one that the hidden state gave, without looking
at those between. Their best guesses are put together in a fixed tree::

    state   f of "the"; the target said "cat"    cat -- sat -- on
    head 1  sat, is       (after cat)               \\     `-- down
    head 2  on, down      (after that)               `- is -- on
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

from specjax import cached
from specjax.core import contracts, noise, processors
from specjax.core import template as template_lib
from specjax.core import tree as tree_lib
from specjax.drafters.neural import medusa_heads, medusa_trees
from specjax.models import config as config_lib

_NOWHERE = -1
DEFAULT_TREE = medusa_trees.likeliest(15)  # with the trunk a width of 16


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class MedusaState:
    """The last hidden state that the target was sure of.

    Attributes:
      feature: f[B, E], after the target's last norm.
      position: i32[B], history position of the token that it belongs to, _NOWHERE
        before the first.
    """

    feature: jax.Array  # f[B, E]
    position: jax.Array  # i32[B]


class _Guesses(NamedTuple):
    """The best tokens of each head, best first."""

    token: jax.Array  # i32[B, K, R]
    chance: jax.Array  # f32[B, K, R]


@cached.cached
def medusa(
    config: config_lib.ModelConfig, *, choices: medusa_trees.Choices | None = None
) -> contracts.Drafter:
    """Drafts a fixed tree of what heads on the last hidden state think likely.

    A head belongs to a position: behind other drafts, or where the text has grown
    unseen, a node takes the head of its place, and where there is none it is left out.
    At a temperature tokens are ranked with the target's own noise, so that a head
    whose law is the target's puts the token first that will be drawn. The tag of a node
    is its number in the template.

    Args:
      config: of the target.
      choices: the tree, no deeper than there are heads; None for ``DEFAULT_TREE``.

    Params: see ``medusa_heads``.

    Raises:
      ValueError: the choices are no tree.
      TypeError: an argument is of the wrong kind.

    Source: Medusa (Cai et al. 2024), sections 2.1 and 2.3. There trees are built of
    probabilities alone and reviewed by typical acceptance, which changes the text.
    """
    shape = template_lib.from_choices(DEFAULT_TREE if choices is None else choices)
    ranks = int(shape.rank.max()) + 1

    def init(params, rows, capacity):
        del capacity
        dtype = params["drafter"]["blocks"]["b"].dtype
        return MedusaState(
            feature=jnp.zeros((rows, config.embed_size), dtype),
            position=jnp.full((rows,), _NOWHERE, jnp.int32),
        )

    def propose(params, state, view, tree):
        own, anchor = params["drafter"], tree_lib.spine_end(tree)
        heads = own["blocks"]["b"].shape[0]
        z = medusa_heads.hidden(own, state.feature)  # f[B, K, E]
        scores = medusa_heads.logits(config, own, params["target"], z)
        guesses = _best(scores, own.get("ids"), state.position, view.sampling, ranks)
        skipped = _skipped(state, view, tree, anchor)
        levels = tree_lib.room_below(tree, anchor, view.room)
        levels = jnp.minimum(levels, heads - skipped)
        levels = jnp.where((skipped < 0) | (state.position < 0), 0, levels)
        head = skipped[:, None] + jnp.asarray(shape.depth - 1)[None]  # i32[B, M]
        at = jnp.clip(head, 0, heads - 1) * ranks + jnp.asarray(shape.rank)[None]
        rows = at.shape[0]
        tree = template_lib.append_template(
            tree,
            shape,
            jnp.take_along_axis(guesses.token.reshape(rows, -1), at, axis=1),
            count=shape.count_within(levels),
            confidence=jnp.take_along_axis(
                guesses.chance.reshape(rows, -1), at, axis=1
            ),
            anchor=anchor,
        )
        return tree, state

    def observe(params, state, view, tree, outcome):
        del params, tree
        last = jnp.maximum(outcome.num_path - 1, 0)
        feature = jnp.take_along_axis(outcome.features, last[:, None, None], axis=1)[
            :, 0
        ]
        seen = outcome.num_path > 0
        return MedusaState(
            feature=jnp.where(
                seen[:, None], feature.astype(state.feature.dtype), state.feature
            ),
            position=jnp.where(seen, view.start + last, state.position),
        )

    return contracts.Drafter(
        init=init,
        propose=propose,
        observe=observe,
        bounds=shape.bounds,
        needs=contracts.Needs(features=(-1,)),
        sources=(contracts.Source("medusa", len(shape.choices)),),
    )


def _skipped(
    state: MedusaState,
    view: contracts.View,
    tree: tree_lib.TokenTree,
    anchor: jax.Array,
) -> jax.Array:
    """How many heads' places i32[B] the text up to ``anchor`` i32[B] fills already.

    0 at the end of a text that the state knows; negative where it is ahead of it.
    """
    trunk_end = jnp.maximum(tree.num_trunk - 1, 0)
    depth = jnp.take_along_axis(tree.depth, anchor[:, None], axis=1)[:, 0]
    end = view.history.length - 1 + depth - trunk_end  # position of the anchor's token
    return end - (state.position + 1)


def _best(scores, ids, position, sampling, count: int) -> _Guesses:
    """The best tokens of each head and how likely it thinks them.

    Args:
      scores: f32[B, K, Vd].
      ids: i32[Vd] or None.
      position: i32[B], of the token that the hidden state belongs to.
      sampling: of the rows.
      count: R, static.
    """
    rows, heads, width = scores.shape
    flat = scores.reshape(rows * heads, width)
    temperature = jnp.repeat(sampling.temperature, heads)
    law = processors.tempered(flat, temperature)
    ahead = jnp.arange(2, heads + 2, dtype=jnp.int32)  # the target gives the next one
    place = (position[:, None] + ahead[None]).reshape(-1)
    key = jnp.repeat(sampling.key, heads, axis=0)
    known = jnp.arange(width, dtype=jnp.int32) if ids is None else ids

    def perturb(law):
        drawn = noise.gumbel(key, place, known)
        return law + jnp.where(temperature > 0, 1.0, 0.0)[:, None] * drawn

    ranked = jax.lax.cond(jnp.any(temperature > 0), perturb, lambda law: law, law)
    _, best = jax.lax.top_k(ranked, count)
    total = jax.nn.logsumexp(law, axis=1, keepdims=True)
    chance = jnp.exp(jnp.take_along_axis(law, best, axis=1) - total)
    return _Guesses(
        token=known[best].reshape(rows, heads, count),
        chance=chance.reshape(rows, heads, count),
    )
