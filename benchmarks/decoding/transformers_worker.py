"""The side of transformers; needs torch and transformers, not specjax or jax.

    python benchmarks/decoding/transformers_worker.py MODEL_PATH THREADS POSITIONS

MODEL_PATH is a directory of Hugging Face or a .gguf file. POSITIONS, which other sides
need, is not used.
"""

import pathlib
import sys
import time
from typing import Any

import torch
import transformers

# Run as a file, so that no package of this repository need be importable.
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from benchmarks.decoding import workers

_DRAFTERS = {
    "none": {},
    # As many as in the reference implementation of prompt lookup.
    "prompt_lookup": {"prompt_lookup_num_tokens": 10},
}


class _Clock(transformers.StoppingCriteria):
    """Never stops; notes when the first new tokens were there, and how many."""

    def __init__(self, prompt_tokens: int) -> None:
        self._prompt_tokens = prompt_tokens
        self.first: tuple[float, int] | None = None

    def __call__(self, input_ids, scores, **kwargs):
        if self.first is None:
            new = input_ids.shape[1] - self._prompt_tokens
            self.first = (time.perf_counter(), new)
        return torch.zeros(input_ids.shape[0], dtype=torch.bool)


def main() -> None:
    """Loads the model in float32 and serves."""
    path, threads = pathlib.Path(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(threads)
    transformers.logging.set_verbosity_error()
    folder, more = (
        (path, {}) if path.is_dir() else (path.parent, {"gguf_file": path.name})
    )
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, **more
    ).eval()
    model.generation_config = transformers.GenerationConfig(pad_token_id=0)

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        ids = torch.tensor([request["ids"]])
        clock = _Clock(ids.shape[1])
        more = _DRAFTERS[request["drafter"]]
        began = time.perf_counter()
        with torch.inference_mode():
            text = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                max_new_tokens=request["max_new_tokens"],
                eos_token_id=request["stop_ids"] or None,
                stopping_criteria=transformers.StoppingCriteriaList([clock]),
                **more,
            )
        ended = time.perf_counter()
        first, first_tokens = clock.first or (ended, 0)
        return {
            "tokens": text[0, ids.shape[1] :].tolist(),
            "first_seconds": first - began,
            "first_tokens": first_tokens,
            "decode_seconds": ended - first,
        }

    answer({"ids": [1, 2, 3], "max_new_tokens": 4, "stop_ids": [], "drafter": "none"})
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    workers.serve(sys.stdin, answer, versions)


if __name__ == "__main__":
    main()
