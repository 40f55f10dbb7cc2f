"""The side of specjax.

    python -m benchmarks.decoding.own_worker MODEL THREADS POSITIONS WEIGHTS DRAFTER...

It keeps to the first THREADS of the CPUs that it may use, and to CPU. WEIGHTS is a form
that `specjax.load` takes; drafters are named as on the command line.
"""

import os
import sys
from typing import Any

import jax

import specjax
from benchmarks.decoding import workers


def main() -> None:
    """Loads the model, compiles every way of decoding, serves."""
    model, threads, positions, weights, *drafters = sys.argv[1:]
    if hasattr(os, "sched_setaffinity"):  # of Linux
        cpus = sorted(os.sched_getaffinity(0))[: int(threads)]
        os.sched_setaffinity(0, cpus)
    jax.config.update("jax_platforms", "cpu")
    specjax.enable_compilation_cache()
    lm = specjax.load(model, dtype="float32", weights=weights)
    engines = {
        drafter: specjax.Engine(lm, drafter, max_context=int(positions))
        for drafter in drafters
    }
    for engine in engines.values():
        engine.warmup(max_new_tokens=2)

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        result = engines[request["drafter"]].generate(
            request["ids"],
            max_new_tokens=request["max_new_tokens"],
            stop_token_ids=request["stop_ids"],
            ignore_eos=True,
        )
        assert isinstance(result, specjax.Result)  # one prompt, one sample
        return {
            "tokens": result.tokens,
            "first_seconds": result.prefill_seconds,
            "first_tokens": 1,
            "decode_seconds": result.decode_seconds,
        }

    versions = {"jax": jax.__version__}
    workers.serve(sys.stdin, answer, versions)


if __name__ == "__main__":
    main()
