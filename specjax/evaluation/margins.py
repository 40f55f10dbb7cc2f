"""How near a tie two outputs parted at.

Float sums depend on how many tokens a forward pass scores, so two runs of the same
model can differ where two tokens have almost equal scores. The margin says how far
from a tie the first difference was: under 1e-4 it is rounding, above it is an error.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specjax import checkpoints
from specjax.core import history as history_lib
from specjax.core import noise, processors
from specjax.core import sampling as sampling_lib
from specjax.core import tree as tree_lib
from specjax.decoding import request
from specjax.models import model as model_lib

_SMALLEST = 64  # texts are padded to powers of two from here
_EMPTY_CACHE = 256  # slots of the cache that the pass does not read


def first_difference(one: Sequence[int], other: Sequence[int]) -> int | None:
    """Index of the first token that differs; None if the sequences are equal.

    >>> first_difference([1, 2, 3], [1, 4])
    1
    >>> first_difference([1, 2], [1, 2, 3])
    2
    """
    for index, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return index
    return None if len(one) == len(other) else min(len(one), len(other))


def margin(
    lm: checkpoints.LanguageModel,
    prompt: Sequence[int],
    common: Sequence[int],
    tokens: tuple[int, int],
    sampling: Mapping[str, Any],
    sample: int = 0,
) -> float | None:
    """Distance of two tokens' scores after a prompt and common tokens.

    A score is what plain decoding takes the largest of: the processed logit, plus
    temperature times the noise of the position.

    Args:
      lm: the target.
      prompt: ids.
      common: new tokens that both outputs share.
      tokens: the two that differ.
      sampling: as in ``plan.Plan``; ``stop`` has no say.
      sample: index of the sample.

    Returns:
      The distance; None where a mask (of top-p, say) rules one of the two out.
    """
    found = scores(lm, prompt, common, sampling, sample)
    pair = found[list(tokens)]
    if not np.all(np.isfinite(pair)):
        return None
    return float(abs(pair[0] - pair[1]))


def scores(
    lm: checkpoints.LanguageModel,
    prompt: Sequence[int],
    common: Sequence[int],
    sampling: Mapping[str, Any],
    sample: int = 0,
) -> np.ndarray:
    """Scores f32[V] of the token after a prompt and new tokens, as in ``margin``."""
    apart = ("stop", "ignore_eos")
    given = {name: value for name, value in sampling.items() if name not in apart}
    ignore_eos = sampling.get("ignore_eos", False)
    chosen = request.sampling_options(lm, given, ignore_eos=ignore_eos)
    text = [*prompt, *common]
    size = max(_SMALLEST, 1 << (len(text) - 1).bit_length())
    padded = np.zeros((1, size), np.int32)
    padded[0, : len(text)] = text
    counts = np.bincount(
        np.asarray(common, np.int64), minlength=lm.model.config.vocab_size
    )
    found = _program(lm.model)(
        lm.params,
        jnp.asarray(padded),
        jnp.asarray([len(prompt)], jnp.int32),
        jnp.asarray([len(text)], jnp.int32),
        jnp.asarray(counts[None], jnp.int32),
        sampling_lib.pack([chosen], [sample]),
    )
    return np.asarray(found)[0]


@functools.lru_cache(maxsize=8)
def _program(model: model_lib.Model):
    """The scores after a text, by one forward pass over all of it."""
    target = model.target

    @jax.jit
    def run(params, tokens, prompt_length, length, counts, sampling):
        size = tokens.shape[1]
        history = history_lib.create(tokens, prompt_length, size)
        nothing = jnp.zeros((1,), jnp.int32)
        tree = tree_lib.trunk(history, nothing, length, size)
        cache = target.init(1, _EMPTY_CACHE)
        scored = target.forward(params, tree, cache, nothing, ())
        logits = target.head(params, scored.hidden[:, length[0] - 1])
        state = dataclasses.replace(
            processors.start(history, sampling, target.vocab_size),
            output_count=counts,
            num_emitted=length - prompt_length,
        )
        processed = processors.apply(state, sampling, logits)
        ids = jnp.arange(target.vocab_size, dtype=jnp.int32)
        drawn = noise.gumbel(sampling.key, length, ids)
        return processed + sampling.temperature[:, None] * drawn

    return run
