"""The drafter that a user gets without choosing: what pays on this device."""

import hashlib
import json
import os
import pathlib
import warnings

import jax

from pallas_kernels.native import build
from specjax import checkpoints
from specjax.drafters import equipped
from specjax.drafters import options as options_lib
from specjax.drafters.compose.adaptive_length import adaptive_length
from specjax.drafters.compose.merge import merge
from specjax.drafters.lookup import token_recycling as recycling_lib
from specjax.drafters.lookup.suffix import suffix
from specjax.models import costs as costs_lib
from specjax.models import placement

_NATIVE = ("linear", "tree_attention", "rms_norm", "rotary", "glu", "verify")
# Shortest match that is copied from. In SmolLM2's greedy answers to 24 prompts of
# MT-Bench, 2,977 tokens, the latest of the longest matches said the next token in 20 %
# of the cases after one matched token, in 45 % after two and in 61 % after three.
_MATCH = 2
# By how much recycling alone must beat plain decoding to be taken in, by the chances of
# `token_recycling.confidence_of`. Chosen, not measured: copies, which ask for nothing,
# have a part of that gain already, and those chances are of one model's answers.
_WORTH = 1.25

COSTS = options_lib.Option(
    "costs",
    options_lib.PATH,
    "file with what rounds cost; without it they are measured on this device, once.",
)


def auto(costs: costs_lib.Costs, *, vocab_size: int) -> equipped.Equipped:
    """The best drafter without trained weights, by what a round costs.

    Copies of earlier text (``suffix``) cost nothing to find, so they are always in.
    Token recycling drafts everywhere but wants the target's best ids after every
    node; it joins where its expected tokens still pay for them. How much is drafted in
    a round is weighed by ``adaptive_length``, down to nothing.

    Args:
      costs: of each width; all choices follow from them and from what is accepted.
      vocab_size: of the target.
    """
    ladder = costs.steps()
    budget = max(ladder.widths[-1] - 1, 1)
    # How much is drafted is for adaptive_length to say, not for the match.
    copies = suffix(
        max_nodes=budget, min_match=_MATCH, factor=float(budget), offset=0.0
    )
    gain, width = _recycling_gain(ladder)
    cost, child = ladder.forward, copies
    if gain >= _WORTH:
        most = min(budget, len(recycling_lib.CHOICES))
        recycling = recycling_lib.token_recycling(vocab_size=vocab_size, nodes=most)
        child = merge(copies, recycling, budget=budget)
        cost = tuple(map(sum, zip(ladder.forward, ladder.top_ids, strict=True)))
    made = adaptive_length(
        child,
        widths=ladder.widths,
        costs=cost,
        kept_cost=costs.draw,
        kept_free=costs.ahead - 1,
    )
    times = ", ".join(
        f"{width}: {ms:.1f}" for width, ms in zip(ladder.widths, cost, strict=True)
    )
    verdict = "taken in" if gain >= _WORTH else "left out"
    note = (
        f"ms by width {times}; token recycling {verdict}: alone it would decode "
        f"{gain:.2f} times as fast as without drafts (best at width {width})"
    )
    return made._replace(label="auto", note=note)


def _recycling_gain(costs: costs_lib.Costs) -> tuple[float, int]:
    """Speed of recycling alone over plain decoding, and the width that gives it."""
    chances = sorted(map(recycling_lib.chance_of, recycling_lib.CHOICES), reverse=True)
    plain = costs.forward[0]
    rows = zip(costs.widths, costs.forward, costs.top_ids, strict=True)
    gains = []
    for width, ms, top_ms in rows:
        kept = sum(chances[: width - 1])
        spent = ms + top_ms + costs.draw * max(kept - (costs.ahead - 1), 0.0)
        gains.append(((1 + kept) * plain / spent, width))
    return max(gains)


def build_auto(lm: checkpoints.LanguageModel, options) -> equipped.Equipped:
    """``auto`` by name: by costs from a file, or measured on this device.

    What was measured is kept in the cache folder for the next process.

    Raises:
      ValueError: the file holds no costs.
    """
    path = options.get("costs")
    table = measured(lm) if path is None else costs_lib.load(pathlib.Path(path))
    return auto(table, vocab_size=lm.model.config.vocab_size)


def measured(lm: checkpoints.LanguageModel) -> costs_lib.Costs:
    """Costs of this model on this device, from the cache folder where they are kept."""
    facts = {
        "model": repr(lm.model.config),
        "weights": str(jax.tree.map(lambda x: (x.shape, str(x.dtype)), lm.params)),
        "native": [build.version(op) for op in _NATIVE],
        "widths": costs_lib.WIDTHS,
        "device": jax.devices()[0].device_kind,
        "mesh": lm.mesh and placement.describe(lm.mesh),
        "cpus": os.cpu_count(),
        "jax": jax.__version__,
    }
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
    path = checkpoints.cache_folder() / "costs" / f"{digest[:16]}.json"
    if path.exists():
        try:
            return costs_lib.load(path)
        except ValueError:
            pass  # Damaged: measured anew and written over.
    table = costs_lib.measure(lm.model, lm.params, mesh=lm.mesh)
    try:
        costs_lib.save(path, table)
    except OSError as error:
        warnings.warn(
            f"costs: can't keep them in {path} ({error.strerror}), so every process "
            "measures anew; set SPECJAX_CACHE to a folder that you may write to",
            stacklevel=2,
        )
    return table
