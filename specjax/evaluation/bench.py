"""Every drafter on the same prompts, in one process, taking turns.

Drafters alternate prompt by prompt (and run by run), so that what else the machine
does falls on all of them alike. Compilation and warm-up come before the first run.
"""

import dataclasses
import pathlib
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from specjax import checkpoints
from specjax.core import contracts
from specjax.decoding import engine as engine_lib
from specjax.decoding import memory as memory_lib
from specjax.decoding import result as result_lib
from specjax.drafters import equipped as equipped_lib
from specjax.evaluation import margins, parts, prompts
from specjax.evaluation import plan as plan_lib
from specjax.evaluation import rows as rows_lib
from specjax.verify.exact import exact

BASELINE = "none"
Row = rows_lib.Row


@dataclasses.dataclass(frozen=True, kw_only=True)
class Progress:
    """What is done so far.

    Attributes:
      stage: "kept" (prompts of an earlier run), "warm-up" or "prompt".
      done, total: counts of that stage.
      rows: those that were just measured.
    """

    stage: str
    done: int
    total: int
    rows: Sequence[Row] = ()


Notify = Callable[[Progress], None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Answer:
    """One turn's result and the ids that it was made from."""

    prompt: list[int]
    result: result_lib.Result


def run(
    lm: checkpoints.LanguageModel,
    drafters: Mapping[str, contracts.Drafter | equipped_lib.Equipped],
    questions: Sequence[prompts.Question],
    plan: plan_lib.Plan | None = None,
    *,
    verifier: contracts.Verifier | None = None,
    verifier_name: str = "exact",
    out: pathlib.Path | None = None,
    reference: Sequence[Row] = (),
    notify: Notify = lambda progress: None,
) -> list[Row]:
    """Measures drafters.

    Args:
      lm: the target.
      drafters: by label; "none" must be among them, ratios and identity refer to it.
      questions: the prompts.
      plan: settings.
      verifier: the rule, ``exact()`` by default. Under one that keeps the law only,
        outputs differ by right: margins are not taken.
      verifier_name: for the rows.
      out: file that rows are added to as prompts are done; one that a run with the
        same settings left is continued.
      reference: rows whose "none" is what outputs are compared with, from a run with
        another batch size, say; by default the run's own.
      notify: called after each step.

    Returns:
      All rows, those found in ``out`` included: one a prompt, turn and drafter.

    Raises:
      ValueError: settings do not fit, or a prompt is too long.
    """
    plan = plan_lib.Plan() if plan is None else plan
    plan.validate(lm)
    verifier = exact() if verifier is None else verifier
    if BASELINE not in drafters:
        raise ValueError(f"drafters must hold {BASELINE!r}, got {list(drafters)}")
    settings = plan_lib.settings(lm, plan, questions, list(drafters), verifier_name)
    done = [] if out is None else rows_lib.resume(out, settings, len(drafters))
    finished = {row["question_id"] for row in done}
    waiting = [q for q in questions if q.question_id not in finished]
    if done:
        notify(Progress(stage="kept", done=len(finished), total=len(questions)))
    if plan.keep and done and waiting:
        raise ValueError(
            "keep: what drafters had learnt when the run broke off is not in the file; "
            "begin anew (--overwrite)"
        )
    groups = [
        waiting[at : at + plan.batch_size]
        for at in range(0, len(waiting), plan.batch_size)
    ]
    if plan.keep and len({(len(group) - 1).bit_length() for group in groups}) > 1:
        raise ValueError(
            f"keep: batch_size={plan.batch_size} leaves a last batch of "
            f"{len(groups[-1])} prompts, and a drafter's state is of one size; choose "
            "a batch_size that divides the number of prompts"
        )
    capacity = plan_lib.context(engine_lib.Engine(lm), plan, questions)
    engines = {
        label: engine_lib.Engine(lm, drafter, verifier=verifier, max_context=capacity)
        for label, drafter in drafters.items()
    }
    own: dict[str, dict[str, Any]] = {}
    if groups:
        _warm_up(engines, plan, {len(group) for group in groups}, notify)
        own = {k: parts.measure(engine, capacity) for k, engine in engines.items()}
    expected = _expected(reference)
    memories = {label: memory_lib.Memory() if plan.keep else None for label in engines}
    for index, group in enumerate(groups):
        answers = _measure(engines, plan, group, index, memories)
        new = _rows(lm, plan, group, answers, expected, verifier.same_tokens)
        new = [{**row, **own[row["drafter"]], "settings": settings} for row in new]
        if out is not None:
            rows_lib.append(out, new)
        done += new
        count = len(questions) - len(waiting) + sum(map(len, groups[: index + 1]))
        notify(Progress(stage="prompt", done=count, total=len(questions), rows=new))
    return done


def _warm_up(engines, plan, sizes, notify) -> None:
    """Compiles both programs of every engine and forbids compiling from then on."""
    most = plan.sampling.get("max_new_tokens", 128)
    for number, engine in enumerate(engines.values(), start=1):
        for size in sorted(sizes):
            engine.warmup(rows=size, prompt_tokens=1, max_new_tokens=min(most, 2))
        engine.programs.strict = True
        notify(Progress(stage="warm-up", done=number, total=len(engines)))


def _measure(
    engines, plan, group, index, memories
) -> dict[str, list[list[list[_Answer]]]]:
    """Answers [repeat][question][turn] of each drafter, in an order that rotates.

    Every repeat starts with the memory that the prompt before left.
    """
    labels = list(engines)
    answers: dict[str, list[list[list[_Answer]]]] = {label: [] for label in labels}
    for repeat in range(plan.repeats):
        first = (index + repeat) % len(labels)
        for label in labels[first:] + labels[:first]:
            memory = memories[label]
            before = None if memory is None else memory.state
            answers[label].append(_answer(engines[label], plan, group, memory))
            if memory is not None and repeat < plan.repeats - 1:
                memory.state = before
    return answers


def _answer(engine, plan, group, memory) -> list[list[_Answer]]:
    """Answers [question][turn] of one run."""
    sampling = dict(plan.sampling)
    if plan.turns == plan_lib.FIRST:
        asked = [engine.encode(question.turns[0], plan.chat) for question in group]
        results = engine.generate(asked, memory=memory, **sampling)
        return [
            [_Answer(prompt=ids, result=result)]
            for ids, result in zip(asked, results, strict=True)
        ]
    (question,) = group
    chat = engine.conversation()
    answers = []
    for turn in question.turns:
        ids = engine.encode([*chat.messages, {"role": "user", "content": turn}])
        answers.append(_Answer(prompt=ids, result=chat.send(turn, **sampling)))
    return [answers]


def _rows(lm, plan, group, answers, expected, same_tokens) -> list[Row]:
    rows = []
    for at, question in enumerate(group):
        turns = len(question.turns) if plan.turns == plan_lib.ALL else 1
        for turn in range(turns):
            plain = answers[BASELINE][0][at][turn]
            wanted = expected.get((question.question_id, turn), plain.result.tokens)
            for label, repeats in answers.items():
                runs = [repeat[at][turn] for repeat in repeats]
                row = {
                    "question_id": question.question_id,
                    "category": question.category,
                    "turn": turn,
                    **_medians([run.result for run in runs], len(group)),
                    "drafter": label,
                    **_difference(lm, plan, plain.prompt, runs[0], wanted, same_tokens),
                }
                rows.append(row)
    return rows


def _medians(results: Sequence[result_lib.Result], batch: int) -> dict[str, Any]:
    """Fields of the first run, its times replaced by medians over the runs."""
    first = results[0]
    decode = statistics.median(result.decode_seconds for result in results)
    later = max(first.new_tokens - 1, 0)
    return {
        **first.to_json(),
        "prefill_seconds": statistics.median(r.prefill_seconds for r in results),
        "decode_seconds": decode,
        "tokens_per_second": later / decode if decode and later else 0.0,
        "decode_seconds_of_runs": [result.decode_seconds for result in results],
        "batch": batch,
        "runs_agree": all(result.tokens == first.tokens for result in results),
    }


def _difference(
    lm, plan, prompt, answer: _Answer, wanted, same_tokens
) -> dict[str, Any]:
    """Whether an output is the wanted one, and where and how narrowly it is not."""
    tokens = answer.result.tokens
    at = margins.first_difference(tokens, wanted)
    margin = None
    # In a later turn the prompts themselves may differ already.
    if (
        same_tokens
        and at is not None
        and at < min(len(tokens), len(wanted))
        and answer.prompt == prompt
    ):
        pair = (tokens[at], wanted[at])
        margin = margins.margin(lm, prompt, tokens[:at], pair, plan.sampling)
    return {
        "identical": at is None,
        "first_difference": at,
        "margin_at_difference": margin,
    }


def _expected(reference: Sequence[Row]) -> dict[Any, list[int]]:
    return {
        rows_lib.key(row): row["tokens"]
        for row in reference
        if row["drafter"] == BASELINE
    }
