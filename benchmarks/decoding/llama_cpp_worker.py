"""The side of llama.cpp; needs llama-cpp-python, not specjax or jax.

    python benchmarks/decoding/llama_cpp_worker.py MODEL_PATH THREADS POSITIONS

MODEL_PATH is a .gguf file. Its peak memory is that of two loaded models, one for each
way of decoding.
"""

import pathlib
import sys
import time
from typing import Any

import llama_cpp
from llama_cpp import llama_speculative

# Run as a file, so that no package of this repository need be importable.
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from benchmarks.decoding import workers


def main() -> None:
    """Loads the model once for each way of decoding and serves."""
    path, threads, positions = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    # As many tokens as its documentation advises without a GPU.
    lookup = llama_speculative.LlamaPromptLookupDecoding(num_pred_tokens=2)
    models = {
        drafter: llama_cpp.Llama(
            path,
            n_ctx=positions + 16,  # drafts may pass the last token
            n_threads=threads,
            n_threads_batch=threads,
            draft_model=draft,
            logits_all=draft is not None,  # else its buffer holds one batch only
            verbose=False,
        )
        for drafter, draft in (("none", None), ("prompt_lookup", lookup))
    }

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        model = models[request["drafter"]]
        model.reset()  # else it would go on from a prefix that it has seen
        tokens: list[int] = []
        began = first = time.perf_counter()
        for token in model.generate(request["ids"], temp=0.0, repeat_penalty=1.0):
            if not tokens:
                first = time.perf_counter()
            tokens.append(int(token))
            if token in request["stop_ids"] or len(tokens) == request["max_new_tokens"]:
                break
        ended = time.perf_counter()
        return {
            "tokens": tokens,
            "first_seconds": first - began,
            "first_tokens": 1,
            "decode_seconds": ended - first,
        }

    for drafter in models:
        asked = {"ids": [1, 2, 3], "max_new_tokens": 4, "stop_ids": []}
        answer({**asked, "drafter": drafter})
    versions = {"llama-cpp-python": llama_cpp.__version__}
    workers.serve(sys.stdin, answer, versions)


if __name__ == "__main__":
    main()
