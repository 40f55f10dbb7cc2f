"""How fast is decoding against another library, plain and with drafts?

    python -m benchmarks.decoding.peers transformers --peer-python PYTHON
    python -m benchmarks.decoding.peers llama_cpp --peer-python PYTHON

PYTHON has torch and transformers (the extra ``parity``) or llama-cpp-python; by default
it is the one that runs this. transformers holds the model in float32, llama.cpp as it
is stored, and so does ours unless --weights says otherwise. Both sides run in a process
of their own and take turns prompt by prompt, so that each works while the other waits.
"""

import argparse
import itertools
import os
import pathlib
import statistics
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax

import specjax
from benchmarks import measure
from benchmarks.decoding import workers
from specjax import checkpoints
from specjax.evaluation import prompts

PLAIN = "none"
OURS = "specjax"
_HERE = pathlib.Path(__file__)
_DATASET = _HERE.resolve().parents[1] / "data" / "mt_bench.jsonl"


class _Peer(NamedTuple):
    """The script that serves a peer, and weights of ours of the same precision."""

    script: pathlib.Path
    weights: str


_PEERS = {
    "transformers": _Peer(_HERE.with_name("transformers_worker.py"), "decoded"),
    "llama_cpp": _Peer(_HERE.with_name("llama_cpp_worker.py"), "stored"),
}
_THEIR_DRAFTERS = (PLAIN, "prompt_lookup")


def compare(
    sides: Mapping[str, workers.Worker],
    drafters: Mapping[str, Sequence[str]],
    asked: Sequence[Sequence[int]],
    *,
    stop_ids: Sequence[int],
    max_new_tokens: int,
    repeats: int,
) -> dict[str, Any]:
    """Asks both sides the same, in turns.

    Args:
      sides: workers by name, ours first.
      drafters: of each side; "none" is among them.
      asked: prompt ids.
      stop_ids: ids that end an answer.
      max_new_tokens: most new tokens.
      repeats: alternating runs; times are medians.

    Returns:
      Numbers of each side and drafter, the ratio of each to the other side's plain
      decoding, and in how many prompts its tokens are those of that.
    """
    ways = [(side, drafter) for side in sides for drafter in drafters[side]]
    options = {"stop_ids": list(stop_ids), "max_new_tokens": max_new_tokens}
    runs: dict[Any, list[list[dict]]] = {way: [[] for _ in asked] for way in ways}
    for index, repeat in itertools.product(range(len(asked)), range(repeats)):
        ids = list(asked[index])
        for side, drafter in ways if (index + repeat) % 2 else ways[::-1]:
            answer = sides[side].ask(ids=ids, drafter=drafter, **options)
            runs[side, drafter][index].append(answer)
    last = {side: worker.ask(quit=True) for side, worker in sides.items()}
    numbers = {way: _sum(asked, runs[way]) for way in ways}
    ours, theirs = sides
    plain = theirs, PLAIN
    return {
        "numbers": {" ".join(way): numbers[way] for way in ways},
        f"over_{theirs}_plain": {
            " ".join(way): {
                name: _ratio(numbers[way][name], numbers[plain][name])
                for name in ("decode_tokens_per_second", "prefill_tokens_per_second")
            }
            for way in ways
            if way != plain
        },
        "same_tokens": {
            f"{ours} {drafter}": sum(
                a[0]["tokens"] == b[0]["tokens"]
                for a, b in zip(runs[ours, drafter], runs[plain], strict=True)
            )
            for drafter in drafters[ours]
        },
        "prompts": len(asked),
        "peak_mib": {s: round(a["peak_bytes"] / 2**20) for s, a in last.items()},
        "versions": {side: answer["versions"] for side, answer in last.items()},
    }


def _ratio(one: float, other: float) -> float | None:
    return round(one / other, 3) if other else None


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


def _settings() -> dict[str, Any]:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("peer", choices=tuple(_PEERS))
    parser.add_argument("--peer-python", default=sys.executable)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--weights", choices=checkpoints.WEIGHTS)
    parser.add_argument("--drafters", default="none,prompt_lookup,auto")
    parser.add_argument("--dataset", default=str(_DATASET))
    parser.add_argument("--limit", type=int, default=6)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    return vars(parser.parse_args())


def main() -> None:
    """Starts both sides, measures, prints."""
    settings = _settings()
    jax.config.update("jax_platforms", "cpu")
    os.environ.setdefault("TQDM_DISABLE", "1")  # no bars between the lines
    asked, stop_ids = _prompts(settings)
    positions = max(map(len, asked)) + settings["max_new_tokens"]
    path = checkpoints.fetch(settings["model"])
    common = [str(path), str(settings["threads"]), str(positions)]
    drafters = settings["drafters"].split(",")
    name = settings["peer"]
    peer = _PEERS[name]
    settings["weights"] = settings["weights"] or peer.weights
    own = [sys.executable, "-m", "benchmarks.decoding.own_worker"]
    own += [*common, settings["weights"], *drafters]
    other = [settings["peer_python"], str(peer.script), *common]
    with workers.Worker(own) as ours, workers.Worker(other) as theirs:
        results = compare(
            {OURS: ours, name: theirs},
            {OURS: drafters, name: _THEIR_DRAFTERS},
            asked,
            stop_ids=stop_ids,
            max_new_tokens=settings["max_new_tokens"],
            repeats=settings["repeats"],
        )
    shown = {k: v for k, v in settings.items() if k not in ("peer_python", "dataset")}
    shown["dataset"] = pathlib.Path(settings["dataset"]).name
    measure.emit("peers", shown, results)


def _prompts(settings: dict[str, Any]) -> tuple[list[list[int]], tuple[int, ...]]:
    """Ids of the prompts through the chat template, and the stop ids."""
    lm = specjax.load(settings["model"])
    engine = specjax.Engine(lm)
    questions = prompts.read(settings["dataset"], settings["limit"])
    return [engine.encode(question.turns[0]) for question in questions], lm.stop_ids


if __name__ == "__main__":
    main()
