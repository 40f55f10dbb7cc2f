"""What the headers of a checkpoint tell: shapes, memory, and what would be refused."""

import functools
import math
from collections.abc import Sequence

import jax

from specjax import checkpoints
from specjax.decoding import build, programs
from specjax.drafters.neural import published, published_host
from specjax.drafters.none import none
from specjax.evaluation import held
from specjax.models import config as config_lib
from specjax.models import model as model_lib
from specjax.verify.exact import exact

_USUAL_CAPACITY = 4096


def describe(
    inspection: checkpoints.Inspection,
    *,
    dtype: str | None = None,
    weights: str | None = None,
    rows: int = 1,
    capacity: int | None = None,
) -> list[tuple[str, str]]:
    """Facts for a table, as (name, value); memory if the checkpoint would load.

    Args:
      inspection: of a checkpoint.
      dtype, weights: as for ``checkpoints.load``, None for what it would take here.
      rows: batch rows.
      capacity: positions to hold, None for a usual number.

    Raises:
      ValueError: the type or form is not known, or the capacity not within the context.
    """
    dtype, form = checkpoints.settle(dtype, weights)
    config = inspection.config
    facts = [("tensors", str(len(inspection.shapes)))]
    if config is not None:
        facts += _shapes(config)
        capacity = _capacity(config, capacity)
        if not inspection.problems:
            loaded = held.weights(inspection, config, dtype, form)
            facts.append((f"memory: weights, {form}", _weights(loaded)))
            facts += _memory(config, loaded.bytes, dtype, rows, capacity)
    facts += [
        ("tokenizer ids", str(inspection.vocab_size)),
        ("tokenizer fingerprint", inspection.fingerprint or "can't be read"),
        ("stop token ids", ", ".join(map(str, inspection.stop_ids)) or "none"),
        ("chat template", "yes" if inspection.has_chat_template else "no"),
    ]
    return facts


def refusals(
    names: Sequence[str], inspected: Sequence[checkpoints.Inspection]
) -> list[str]:
    """Every reason why a model, or a target with its draft model, would be refused."""
    reasons = [
        f"{name}: {problem}"
        for name, inspection in zip(names, inspected, strict=True)
        for problem in inspection.problems
    ]
    if len(inspected) == 2:
        target, draft = inspected
        known = target.fingerprint is not None and draft.fingerprint is not None
        if known and target.fingerprint != draft.fingerprint:
            reasons.append(
                f"{names[1]}: its tokenizer is another one than that of {names[0]} "
                f"({draft.vocab_size} ids against {target.vocab_size}), so its drafts "
                "would be other tokens; use a draft model with the same vocabulary"
            )
        elif target.config and draft.config:
            ours, theirs = target.config.vocab_size, draft.config.vocab_size
            if ours != theirs:
                reasons.append(
                    f"{names[1]}: it has {theirs} logits, {names[0]} has {ours} "
                    "(padded embeddings count); use a draft model with an embedding "
                    "of the same size"
                )
    return reasons


def is_draft(name: str) -> bool:
    """Whether a name is that of trained heads or layers for another model.

    Raises:
      ValueError: there is nothing of that name.
    """
    return published.is_draft(checkpoints.fetch(name))


def of_draft(
    name: str, target: str, inspection: checkpoints.Inspection, dtype: str | None
) -> tuple[list[tuple[str, str]], list[str]]:
    """Facts of a draft checkpoint, and every reason why it would be refused.

    Args:
      name: of the draft; ``is_draft`` of it.
      target: name of its target.
      inspection: of the target.
      dtype: that the weights will be held in, None for what it would be here.

    Raises:
      ValueError: it can't be opened.
    """
    chosen, _ = checkpoints.settle(dtype)
    host = published_host.of_inspection(target, inspection)
    report = published.report(checkpoints.fetch(name), host, chosen)
    return report.facts, [f"{name}: {problem}" for problem in report.problems]


def num_params(config: config_lib.ModelConfig) -> int:
    """How many numbers the weights are."""
    shapes = held.param_shapes(config, "float32")
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes))


def cache_bytes(
    config: config_lib.ModelConfig, dtype: str, rows: int, capacity: int
) -> int:
    """Bytes of keys and values."""
    target = model_lib.Model(config=config, dtype=dtype).target
    shapes = jax.eval_shape(functools.partial(target.init, rows, capacity))
    return held.num_bytes(shapes)


def state_bytes(
    config: config_lib.ModelConfig, dtype: str, rows: int, capacity: int
) -> int:
    """Bytes of all that plain decoding carries, keys and values included."""
    target = model_lib.Model(config=config, dtype=dtype).target
    recipe = programs.recipe(target, none(), exact())
    params = {"target": {}, "drafter": {}, "verifier": {}}
    blank = functools.partial(programs.blank, recipe, params, rows, capacity)
    return held.num_bytes(jax.eval_shape(blank))


def _shapes(config: config_lib.ModelConfig) -> list[tuple[str, str]]:
    heads = f"{config.num_heads} heads, {config.num_kv_heads} kv heads"
    windows = sorted({window for window in config.windows if window})
    return [
        ("family", config.family),
        ("parameters", f"{num_params(config):,}"),
        ("layers", str(config.num_layers)),
        ("embedding", f"{config.embed_size}, MLP {config.mlp_size}"),
        ("attention", f"{heads} of {config.head_size}"),
        ("vocabulary", f"{config.vocab_size}"),
        ("head", "tied to the embedding" if config.tied_head else "its own"),
        ("context", str(config.max_context)),
        ("sliding windows", ", ".join(map(str, windows)) or "none"),
    ]


def _capacity(config: config_lib.ModelConfig, capacity: int | None) -> int:
    """The capacity that is meant.

    Raises:
      ValueError: the context has not so many positions.
    """
    if capacity is None:
        return min(_USUAL_CAPACITY, config.max_context)
    if not 2 <= capacity <= config.max_context:
        raise ValueError(
            f"capacity must be 2 to the model's context of {config.max_context}, got "
            f"{capacity}"
        )
    return capacity


def _memory(config, weights: int, dtype, rows, capacity) -> list[tuple[str, str]]:
    slots = build.round_capacity(capacity)
    cache = cache_bytes(config, dtype, rows, slots)
    rest = state_bytes(config, dtype, rows, slots) - cache
    where = f"{rows} x {capacity} positions, {dtype}"
    return [
        (f"memory: cache, {where}", _megabytes(cache)),
        ("memory: rest of the state", _megabytes(rest)),
        ("memory: together", _megabytes(weights + cache + rest)),
    ]


def _weights(loaded: held.Held) -> str:
    return f"{_megabytes(loaded.bytes)} ({', '.join(loaded.formats)})"


def _megabytes(count: int) -> str:
    return f"{count / 2**20:,.1f} MiB"
