"""The side of specjax: ``python -m benchmarks.decoding.own_worker MODEL POSITIONS``."""

import sys
from typing import Any

import jax

import specjax
from benchmarks.decoding import workers


def main() -> None:
    """Loads the model, compiles both ways of decoding, serves."""
    model, positions = sys.argv[1], int(sys.argv[2])
    specjax.enable_compilation_cache()
    lm = specjax.load(model, dtype="float32")
    drafters = {False: specjax.drafters.none(), True: specjax.drafters.prompt_lookup()}
    engines = {
        lookup: specjax.Engine(lm, drafter, max_context=positions)
        for lookup, drafter in drafters.items()
    }
    for engine in engines.values():
        engine.warmup(max_new_tokens=2)

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        result = engines[request["lookup"]].generate(
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
