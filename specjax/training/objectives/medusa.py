"""What the heads of Medusa learn: the k-th token after the one that the target said.

The head with index k looks at ``hidden[t]``, from which the target draws token t + 1,
and guesses token t + 2 + k::

    t          0    1    2    3    4
    token      a    b    c    d    e
    head 0 at 0 learns c (its label is 2 on), head 1 learns d, head 2 learns e
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specjax import checks
from specjax.drafters.neural import medusa_heads
from specjax.models import config as config_lib
from specjax.training import objective

DECAY = 0.8


class Labels(NamedTuple):
    """What a head is to say at each position.

    Attributes:
      index: i32[B, T], of the true token in the draft vocabulary.
      known: bool[B, T], whether it is there.
      learnt: bool[B, T], whether the positions up to it are one answer.
    """

    index: jax.Array
    known: jax.Array
    learnt: jax.Array


def medusa_objective(
    config: config_lib.ModelConfig,
    *,
    heads: int = 4,
    layers: int = 1,
    ids: Sequence[int] | np.ndarray | None = None,
    soft: bool = True,
    own_head: bool = False,
    decay: float = DECAY,
) -> objective.Objective:
    """Trains blocks of heads over the target's head, which stays as it is.

    The loss of a head is the mean cross-entropy over positions whose label, and all
    that lies between, is of one answer and whose label is in the draft vocabulary; the
    loss is the sum over heads, each weighed by ``decay`` to its index.

    Args:
      config: of the target.
      heads: K.
      layers: L, blocks of a head.
      ids: the draft vocabulary, ascending token ids; None for the whole one.
      soft: learns the target's law at that position, within the draft vocabulary;
        else the true token alone.
      own_head: trains a matrix of its own for every head, which begins as the
        target's.
      decay: weight of each head over that of the one before.

    Params: {"blocks"} and with ``own_head`` {"head"}; with {"ids"} beside them they
    are the drafter's, see ``medusa_heads``.

    Raises:
      ValueError: a number is out of range, or ids are no ascending token ids.
      TypeError: an argument is of the wrong kind.

    Source: Medusa (Cai et al. 2024), sections 2.2.1 (heads alone) and 2.3.2 (the
    target's law as the label). Its trainer weighs all heads alike and keeps nearly all
    tokens of a prompt by mistake; here answers alone are learnt.
    """
    checks.at_least("medusa_objective", 1, heads=heads, layers=layers)
    checks.flag("medusa_objective", "soft", soft)
    checks.flag("medusa_objective", "own_head", own_head)
    checks.number("medusa_objective", "decay", decay)
    if not 0 < decay <= 1:
        raise ValueError(f"medusa_objective: decay must be in (0, 1], got {decay}")
    chosen = None if ids is None else draft_ids(config, ids)

    def freeze(target):
        known = np.arange(config.vocab_size, dtype=np.int32)
        known = jnp.asarray(known if chosen is None else chosen)
        rows = medusa_heads.target_rows(config, target, known)
        return {"rows": rows, "ids": known}

    def init(key, frozen):
        rows = frozen["rows"]
        blocks = medusa_heads.init_blocks(
            key, heads, layers, config.embed_size, rows.dtype
        )
        if not own_head:
            return {"blocks": blocks}
        return {"blocks": blocks, "head": jnp.repeat(rows.T[None], heads, axis=0)}

    def loss(params, frozen, batch, taught, key):
        del key
        total, report = jnp.float32(0), {}
        for head in range(heads):
            one = functools.partial(_head_loss, config, head=head, soft=soft)
            # What a head computes over the vocabulary is computed again for gradients.
            value, hits = jax.checkpoint(one)(params, frozen, batch, taught)
            total = total + decay**head * value
            report |= {f"loss_{head + 1}": value, f"accuracy_{head + 1}": hits}
        return total, report

    def ranks(params, frozen, batch, taught):
        return jnp.stack(
            [_ranks(config, params, frozen, batch, taught, k) for k in range(heads)],
            axis=2,
        )

    return objective.Objective(
        features=(), depth=heads, freeze=freeze, init=init, loss=loss, ranks=ranks
    )


def draft_ids(
    config: config_lib.ModelConfig, ids: Sequence[int] | np.ndarray
) -> np.ndarray:
    """Draft vocabulary as i32[Vd].

    Raises:
      ValueError: it is empty, or not ascending ids of the target.
    """
    chosen = np.asarray(ids)
    sound = chosen.ndim == 1 and chosen.size and np.issubdtype(chosen.dtype, np.integer)
    if sound:
        sound = chosen[0] >= 0 and chosen[-1] < config.vocab_size
        sound = sound and bool(np.all(np.diff(chosen) > 0))
    if not sound:
        raise ValueError(
            f"ids: expected one or more ascending token ids below {config.vocab_size}, "
            f"got {ids!r:.80}"
        )
    return chosen.astype(np.int32)


def labels(batch: objective.Batch, ids: jax.Array, head: int) -> Labels:
    """What the head with this index is to say.

    Args:
      batch: of documents.
      ids: i32[Vd], ascending.
      head: k, static; its label at t is token t + 2 + k.
    """
    shift = 2 + head
    token = _later(batch.tokens, shift, -1)
    index = jnp.searchsorted(ids, token).astype(jnp.int32)
    index = jnp.minimum(index, ids.shape[0] - 1)
    learnt = jnp.ones_like(batch.answer)
    for step in range(1, shift + 1):
        learnt &= _later(batch.answer, step, False)
        learnt &= _later(batch.segment, step, 0) == batch.segment
    return Labels(index, ids[index] == token, learnt & (batch.segment > 0))


def _later(values: jax.Array, shift: int, filler) -> jax.Array:
    """Values [B, T, ...] of the position ``shift`` on, ``filler`` past the end."""
    kept = values[:, shift:]
    short = [(0, 0)] * values.ndim
    short[1] = (0, values.shape[1] - kept.shape[1])
    return jnp.pad(kept, short, constant_values=filler)


def _head_logits(config, params, frozen, taught, head: int) -> jax.Array:
    """Logits f32[B, T, Vd] of one head at every position."""
    one = {"blocks": jax.tree.map(lambda x: x[head : head + 1], params["blocks"])}
    dtype = one["blocks"]["b"].dtype
    z = medusa_heads.hidden(one, taught.hidden.astype(dtype))[..., 0, :]
    own = params.get("head")
    rows = frozen["rows"] if own is None else own[head].T
    return medusa_heads.row_logits(config, z, rows)


def _head_loss(config, params, frozen, batch, taught, *, head: int, soft: bool):
    """Mean cross-entropy of one head, and how often its best token is the true one."""
    made = _head_logits(config, params, frozen, taught, head)
    label = labels(batch, frozen["ids"], head)
    counted = (label.learnt & label.known).astype(jnp.float32)
    law = jax.nn.log_softmax(made, axis=-1)
    if soft:
        # hidden[t + 1 + k] is what the target draws token t + 2 + k from.
        after = _later(taught.hidden, 1 + head, 0)
        said = medusa_heads.row_logits(config, after, frozen["rows"])
        wanted = jax.lax.stop_gradient(jax.nn.softmax(said, axis=-1))
        each = -jnp.sum(wanted * law, axis=-1)
    else:
        each = -jnp.take_along_axis(law, label.index[..., None], axis=-1)[..., 0]
    hit = (jnp.argmax(made, axis=-1) == label.index).astype(jnp.float32)
    among = jnp.maximum(jnp.sum(counted), 1.0)
    learnt = jnp.maximum(jnp.sum(label.learnt.astype(jnp.float32)), 1.0)
    return jnp.sum(counted * each) / among, jnp.sum(counted * hit) / learnt


def _ranks(config, params, frozen, batch, taught, head: int) -> jax.Array:
    """How many tokens i32[B, T] one head likes better than the true one."""
    made = _head_logits(config, params, frozen, taught, head)
    label = labels(batch, frozen["ids"], head)
    at = label.index[..., None]
    true = jnp.take_along_axis(made, at, axis=-1)
    first = jnp.arange(made.shape[-1], dtype=jnp.int32)[None, None] < at
    better = (made > true) | ((made == true) & first)
    rank = jnp.sum(better, axis=-1, dtype=jnp.int32)
    return jnp.where(label.known, rank, objective.OUTSIDE)
