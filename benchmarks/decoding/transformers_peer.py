"""How fast is decoding against transformers, plain and with prompt lookup?

    python -m benchmarks.decoding.transformers_peer --peer-python PYTHON

PYTHON has torch and transformers (the extra ``parity``); by default it is the one
that runs this. Both sides hold SmolLM2 in float32 in a process of their own, and take
turns prompt by prompt, so that each works while the other waits.
"""

import argparse
import os
import pathlib
import statistics
import sys
from collections.abc import Sequence
from typing import Any

import jax

import specjax
from benchmarks import measure
from benchmarks.decoding import workers
from specjax import checkpoints
from specjax.evaluation import prompts

MODES = ("plain", "prompt_lookup")
_DATASET = pathlib.Path(__file__).resolve().parents[1] / "data" / "mt_bench.jsonl"
_PEER = pathlib.Path(__file__).with_name("peer_worker.py")


def compare(
    sides: dict[str, workers.Worker],
    asked: Sequence[Sequence[int]],
    *,
    stop_ids: Sequence[int],
    max_new_tokens: int,
    repeats: int,
) -> dict[str, Any]:
    """Asks both sides the same, in turns.

    Args:
      sides: workers by name, ours first.
      asked: prompt ids.
      stop_ids: ids that end an answer.
      max_new_tokens: most new tokens.
      repeats: alternating runs; times are medians.

    Returns:
      Numbers of each side and mode, ratios of ours over theirs, and in how many
      prompts both sides gave the same tokens.
    """
    runs: dict[Any, list[list[dict]]] = {(s, m): [] for s in sides for m in MODES}
    for index, ids in enumerate(asked):
        for key in runs:
            runs[key].append([])
        for repeat in range(repeats):
            for mode in MODES:
                order = list(sides) if (index + repeat) % 2 else list(sides)[::-1]
                for side in order:
                    answer = sides[side].ask(
                        ids=list(ids),
                        max_new_tokens=max_new_tokens,
                        stop_ids=list(stop_ids),
                        lookup=mode == "prompt_lookup",
                    )
                    runs[side, mode][-1].append(answer)
    last = {side: worker.ask(quit=True) for side, worker in sides.items()}
    numbers = {f"{side} {mode}": _sum(asked, runs[side, mode]) for side, mode in runs}
    ours, theirs = sides
    results: dict[str, Any] = {"numbers": numbers}
    for mode in MODES:
        mine, other = numbers[f"{ours} {mode}"], numbers[f"{theirs} {mode}"]
        results[f"{mode}_ratio"] = {
            name: round(mine[name] / other[name], 3)
            for name in ("decode_tokens_per_second", "prefill_tokens_per_second")
        }
        results[f"{mode}_same_tokens"] = sum(
            a[0]["tokens"] == b[0]["tokens"]
            for a, b in zip(runs[ours, mode], runs[theirs, mode], strict=True)
        )
    results["peak_mib"] = {s: round(a["peak_bytes"] / 2**20) for s, a in last.items()}
    results["versions"] = {side: answer["versions"] for side, answer in last.items()}
    return results


def _sum(asked: Sequence[Sequence[int]], runs: list[list[dict]]) -> dict[str, float]:
    """Totals over prompts of the medians over runs."""

    def median(answers: list[dict], name: str) -> float:
        return statistics.median(answer[name] for answer in answers)

    decode = sum(median(answers, "decode_seconds") for answers in runs)
    firsts = [median(answers, "first_seconds") for answers in runs]
    later = sum(len(a[0]["tokens"]) - a[0]["first_tokens"] for a in runs)
    return {
        "decode_tokens": later,
        "decode_tokens_per_second": round(later / decode, 3) if decode else 0.0,
        "prefill_tokens_per_second": round(sum(map(len, asked)) / sum(firsts), 2),
        "first_token_seconds_median": round(statistics.median(firsts), 4),
    }


def main() -> None:
    """Parses options, starts both sides, measures, prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--peer-python", default=sys.executable)
    parser.add_argument("--dataset", default=str(_DATASET))
    parser.add_argument("--limit", type=int, default=6)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    settings = vars(parser.parse_args())
    jax.config.update("jax_platforms", "cpu")
    os.environ.setdefault("TQDM_DISABLE", "1")  # no bars between the lines
    path = checkpoints.fetch(settings["model"])
    asked, stop_ids = _prompts(settings)
    positions = max(map(len, asked)) + settings["max_new_tokens"]
    own = [sys.executable, "-m", "benchmarks.decoding.own_worker"]
    own += [str(path), str(positions)]
    peer = [settings["peer_python"], str(_PEER), str(path), str(settings["threads"])]
    with workers.Worker(own) as ours, workers.Worker(peer) as theirs:
        results = compare(
            {"specjax": ours, "transformers": theirs},
            asked,
            stop_ids=stop_ids,
            max_new_tokens=settings["max_new_tokens"],
            repeats=settings["repeats"],
        )
    shown = {k: v for k, v in settings.items() if k not in ("peer_python", "dataset")}
    shown["dataset"] = pathlib.Path(settings["dataset"]).name
    measure.emit("transformers_peer", shown, results)


def _prompts(settings: dict[str, Any]) -> tuple[list[list[int]], tuple[int, ...]]:
    """Ids of the prompts through the chat template, and the stop ids."""
    lm = specjax.load(settings["model"])
    engine = specjax.Engine(lm)
    questions = prompts.read(settings["dataset"], settings["limit"])
    return [engine.encode(question.turns[0]) for question in questions], lm.stop_ids


if __name__ == "__main__":
    main()
