"""How near is a bare forward to the time that reading its weights takes?

python -m benchmarks.decoding.floor

Every form of the weights in turns, "dense" being what XLA does without native code. The
floor is their bytes over the bandwidth that the same number of threads reads a large
array with; no cache or activation counts.
"""

import argparse
import concurrent.futures
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

import specjax
from benchmarks import measure
from benchmarks.decoding import bare

FORMS = ("dense", "decoded", "stored")
_READ = 1 << 28  # bytes a thread reads
_CAPACITY = 1024


def bandwidth(threads: int, *, size: int = _READ, repeats: int = 7) -> float:
    """Bytes a second that threads read, each an array of ``size`` bytes; the best."""
    arrays = [np.ones(size // 4, np.float32) for _ in range(threads)]
    best = 0.0
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        for _ in range(repeats):
            began = time.perf_counter()
            list(pool.map(np.max, arrays))
            best = max(best, threads * size / (time.perf_counter() - began))
    return best


def run(
    models: Mapping[str, specjax.LanguageModel],
    bytes_a_second: float,
    *,
    widths: Sequence[int] = (1, 4, 8, 16),
    present: int = 300,
    steps: int = 8,
    repeats: int = 7,
) -> list[dict[str, Any]]:
    """Times every form and width, in turns.

    Args:
      models: the same one by the form of its weights.
      bytes_a_second: of reading memory.
      widths: tokens a forward scores.
      present: tokens in the cache.
      steps: forwards a call.
      repeats: calls; times are their medians.

    Returns:
      One dict a form and width: weights in MB, spread, floor and median over floor.
    """
    programs = {
        (form, width): bare.compile_step(lm, width, _CAPACITY, steps)
        for form, lm in models.items()
        for width in widths
    }
    seconds: dict[Any, list[float]] = {case: [] for case in programs}
    for _ in range(repeats):
        for case, program in programs.items():
            seconds[case].append(program(present))
    results = []
    for form, width in programs:
        size = sum(leaf.nbytes for leaf in jax.tree.leaves(models[form].params))
        found = measure.spread(seconds[form, width])
        floor = 1e3 * size / bytes_a_second
        results.append(
            {
                "weights": form,
                "megabytes": round(size / 1e6, 1),
                "width": width,
                **found,
                "floor_ms": round(floor, 4),
                "over_floor": round(found["median_ms"] / floor, 3),
            }
        )
    return results


def main() -> None:
    """Parses options, measures, prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--widths", type=measure.numbers, default=(1, 4, 8, 16))
    parser.add_argument("--present", type=int, default=300)
    parser.add_argument("--repeats", type=int, default=7)
    settings = vars(parser.parse_args())
    specjax.enable_compilation_cache()
    options = dict(settings)
    name = options.pop("model")
    models = {form: specjax.load(name, weights=form) for form in FORMS}
    speed = bandwidth(os.cpu_count() or 1)
    shown = {**settings, "gigabytes_a_second": round(speed / 1e9, 2)}
    measure.emit("floor", shown, run(models, speed, **options))


if __name__ == "__main__":
    main()
