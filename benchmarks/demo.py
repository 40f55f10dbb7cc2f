"""What ``make demo`` shows: a streamed generation, then the measured speedup.

python -m benchmarks.demo
"""

import argparse
import pathlib
import sys
from typing import Any

import jax
import rich.console

import specjax
from specjax.evaluation import bench, plan, prompts, table

_DATA = pathlib.Path(__file__).with_name("data") / "demo.jsonl"
_DRAFTER = "auto"


def run(
    lm: specjax.LanguageModel,
    questions: list[prompts.Question],
    *,
    max_new_tokens: int = 96,
    console: rich.console.Console | None = None,
) -> list[table.Line]:
    """Streams the first prompt with drafts, then measures all of them.

    Args:
      lm: the target.
      questions: prompts.
      max_new_tokens: most new tokens a prompt.
      console: where to print, standard output by default.

    Returns:
      The lines of the table.

    Raises:
      RuntimeError: an output differs from that of plain decoding by more than a
        near tie.
    """
    console = rich.console.Console(highlight=False) if console is None else console
    made = {
        label: specjax.drafters.make(label, lm) for label in (bench.BASELINE, _DRAFTER)
    }
    asked = plan.Plan(sampling={"max_new_tokens": max_new_tokens})
    capacity = plan.context(specjax.Engine(lm), asked, questions)
    engine = specjax.Engine(lm, made[_DRAFTER], max_context=capacity)
    _stream(engine, questions[0], max_new_tokens, console)
    console.rule("plain decoding and drafts, the same prompts in turns")
    rows = bench.run(
        lm,
        made,
        questions,
        asked,
        notify=lambda progress: console.print(
            f"{progress.stage} {progress.done} of {progress.total}"
        ),
    )
    lines = table.summarise(rows)
    console.print(table.to_rich(lines))
    _check(lines)
    best = next(x for x in lines if (x.category, x.drafter) == (table.IN_ALL, _DRAFTER))
    console.print(
        f"{_DRAFTER}: {best.tau:.2f} tokens a call of the target; decoding took "
        f"1/{best.speedup:.2f} of the plain time; the tokens were the same in "
        f"{best.identical} of {best.rows} prompts. Most of these prompts hand over a "
        "text to work on, where drafts gain most; `specjax bench` measures other files."
    )
    return lines


def _stream(engine, question, max_new_tokens, console) -> None:
    """Prints one answer as it comes, and its numbers."""
    console.rule(f"{engine.lm.name} with {_DRAFTER}")
    console.print(question.turns[0], style="dim", markup=False)
    console.print("\npreparing programs; the first run compiles them ...", style="dim")
    stream = engine.stream(question.turns[0], max_new_tokens=max_new_tokens)
    for piece in stream:
        console.print(piece.text, end="", markup=False, soft_wrap=True)
        console.file.flush()
    result = stream.result()
    console.print(
        f"\n\n{result.new_tokens} tokens in {result.target_calls} calls of the target, "
        f"{result.tokens_per_second:.1f} tokens a second"
    )


def _check(lines: list[table.Line]) -> None:
    for line in lines:
        if line.identical + line.near_ties != line.rows:
            raise RuntimeError(
                f"{line.drafter} changed the output in category {line.category!r}: "
                "please report this"
            )


def main() -> None:
    """Loads the model and runs the demo; Ctrl-C ends it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--max-new-tokens", type=int, default=96)
    settings: dict[str, Any] = vars(parser.parse_args())
    specjax.enable_compilation_cache()
    try:
        lm = specjax.load(settings["model"])
        print(f"jax {jax.__version__} on {jax.devices()[0].device_kind}")
        run(lm, prompts.read(_DATA), max_new_tokens=settings["max_new_tokens"])
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        sys.exit(130)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
