"""What does a round cost over the bare forward pass and head of its width?

    python -m benchmarks.decoding.overhead

Scripted drafts, all rejected, hold every round at its width: a round of width 16
scores 16 tokens, walks one step and commits one row.
"""

import argparse
import itertools
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import specjax
from benchmarks import measure
from benchmarks.decoding import bare, scripted
from specjax import checkpoints
from specjax.core import sampling as sampling_lib
from specjax.decoding import programs

SAMPLINGS: Mapping[str, Mapping[str, Any]] = {
    "greedy": {},
    "sampled": {"temperature": 0.8},
    "top_p": {"temperature": 0.8, "top_p": 0.9},
}


def run(
    lm: specjax.LanguageModel,
    *,
    widths: Sequence[int] = (1, 16),
    prompt_tokens: int = 128,
    capacities: Sequence[int] = (1024,),
    steps: int = 32,
    repeats: int = 7,
) -> list[dict[str, Any]]:
    """Times rounds and bare steps of each width and capacity, taking turns.

    Returns:
      One dict a width, capacity and way of sampling: spread, tokens accepted (0 if the
      script worked), ``over_bare``, the ratio of its median to the bare step's, and
      for all but the first capacity ``over_first``, to the first's.
    """
    sizes = list(itertools.product(widths, capacities))
    rounds = {size: _compile_rounds(lm, *size) for size in sizes}
    plain = {size: bare.compile_step(lm, *size, steps) for size in sizes}
    seconds: dict[Any, list[float]] = {}
    accepted: dict[Any, int] = {}
    middle = prompt_tokens + steps // 2
    for _ in range(repeats):
        for size in sizes:
            seconds.setdefault((*size, "bare"), []).append(plain[size](middle))
            for name, options in SAMPLINGS.items():
                spent, kept = rounds[size](prompt_tokens, steps, options)
                seconds.setdefault((*size, name), []).append(spent)
                accepted[*size, name] = accepted.get((*size, name), 0) + kept
    medians = {case: statistics.median(spent) for case, spent in seconds.items()}
    results = []
    for (width, capacity, name), spent in seconds.items():
        median, first = medians[width, capacity, name], capacities[0]
        result = {
            "width": width,
            "capacity": capacity,
            "case": name,
            **measure.spread(spent),
            "over_bare": round(median / medians[width, capacity, "bare"], 4),
            "accepted": accepted.get((width, capacity, name), 0),
        }
        if capacity != first:
            result["over_first"] = round(median / medians[width, first, name], 4)
        results.append(result)
    return results


def _compile_rounds(
    lm: specjax.LanguageModel, width: int, capacity: int
) -> Callable[[int, int, Mapping[str, Any]], tuple[float, int]]:
    """A function (prompt tokens, rounds, sampling) -> seconds a round, accepted."""
    if width == 1:
        drafter = specjax.drafters.none()
    else:
        drafter = scripted.scripted(count=width - 1)
    engine = specjax.Engine(lm, drafter, widths=(width,), max_context=capacity)
    held = engine.programs
    vocab = lm.model.config.vocab_size

    def rounds(prompt_tokens, steps, options):
        ids = np.random.default_rng(0).integers(1, vocab, prompt_tokens)
        tokens = np.zeros((1, capacity), np.int32)
        tokens[0, :prompt_tokens] = ids
        lengths = jnp.asarray([prompt_tokens], jnp.int32)
        chosen = sampling_lib.SamplingOptions(max_new_tokens=4 * steps, **options)
        packed = sampling_lib.pack([chosen], [0])
        state = programs.blank(held.recipe, held.params, 1, capacity)
        state = held.prompt(state, jnp.asarray(tokens), lengths, packed)
        jax.block_until_ready(state)
        began = time.perf_counter()
        state = held.decode(state, packed, jnp.int32(steps))
        jax.block_until_ready(state)
        spent = (time.perf_counter() - began) / steps
        if int(state.stats.target_calls[0]) != steps:
            raise RuntimeError(f"{steps} rounds were asked for, but the row finished")
        return spent, int(state.stats.accepted[0])

    rounds(8, 2, {})  # compiles and warms up
    return rounds


def main() -> None:
    """Parses options, measures, prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--weights", choices=checkpoints.WEIGHTS)
    parser.add_argument("--widths", type=measure.numbers, default=(1, 16))
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--capacities", type=measure.numbers, default=(1024,))
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=7)
    settings = vars(parser.parse_args())
    specjax.enable_compilation_cache()
    lm = specjax.load(settings["model"], weights=settings["weights"])
    options = {
        key: value for key, value in settings.items() if key not in ("model", "weights")
    }
    measure.emit("overhead", {**settings, "dtype": lm.model.dtype}, run(lm, **options))


if __name__ == "__main__":
    main()
