"""What does a bare forward pass cost, by width, tokens present and capacity?

python -m benchmarks.decoding.forward
"""

import argparse
import itertools
from collections.abc import Sequence
from typing import Any

import specjax
from benchmarks import measure
from benchmarks.decoding import bare


def run(
    lm: specjax.LanguageModel,
    *,
    widths: Sequence[int] = (1, 2, 4, 8, 16, 32, 64),
    present: Sequence[int] = (0, 128, 500, 900),
    capacities: Sequence[int] = (1024, 4096),
    steps: int = 8,
    repeats: int = 7,
) -> list[dict[str, Any]]:
    """Times every case, cases taking turns.

    Returns:
      One dict a case: width, present, capacity and its spread; and for all but the
      first capacity ``over_first``, its median over that of the first.
    """
    programs = {
        (width, capacity): bare.compile_step(lm, width, capacity, steps)
        for width in widths
        for capacity in capacities
    }
    cases = [
        case
        for case in itertools.product(widths, present, capacities)
        if case[0] + case[1] <= case[2]
    ]
    seconds: dict[Any, list[float]] = {case: [] for case in cases}
    for _ in range(repeats):
        for width, tokens, capacity in cases:
            spent = programs[width, capacity](tokens)
            seconds[width, tokens, capacity].append(spent)
    results = []
    for width, tokens, capacity in cases:
        found = measure.spread(seconds[width, tokens, capacity])
        result = {"width": width, "present": tokens, "capacity": capacity, **found}
        first = seconds.get((width, tokens, capacities[0]))
        if first and capacity != capacities[0]:
            ratio = found["median_ms"] / measure.spread(first)["median_ms"]
            result["over_first"] = round(ratio, 4)
        results.append(result)
    return results


def main() -> None:
    """Parses options, measures, prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument(
        "--widths", type=measure.numbers, default=(1, 2, 4, 8, 16, 32, 64)
    )
    parser.add_argument("--present", type=measure.numbers, default=(0, 128, 500, 900))
    parser.add_argument("--capacities", type=measure.numbers, default=(1024, 4096))
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=7)
    settings = vars(parser.parse_args())
    specjax.enable_compilation_cache()
    lm = specjax.load(settings["model"])
    options = {key: value for key, value in settings.items() if key != "model"}
    measure.emit("forward", {**settings, "dtype": lm.model.dtype}, run(lm, **options))


if __name__ == "__main__":
    main()
