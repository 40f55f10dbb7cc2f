"""What a benchmark is asked to do, and the context that it needs."""

import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

import jax

import specjax
from specjax import checkpoints
from specjax.decoding import engine as engine_lib
from specjax.evaluation import prompts

FIRST, ALL = "first", "all"
_TEMPLATE_TOKENS = 16  # more than a chat template puts around a message


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """Settings of a benchmark.

    Attributes:
      sampling: keyword arguments of ``Engine.generate``: fields of
        ``SamplingOptions``, ``stop`` and ``ignore_eos``.
      turns: "first", or "all" for whole conversations.
      repeats: R, alternating runs; times are the medians.
      batch_size: prompts that run together.
      chat: whether text goes through the chat template, None if there is one.
      max_context: positions to hold, None for what the prompts need.
      dataset: name of the prompts, for the record.
      keep: whether each drafter's state goes on from prompt to prompt, in the order
        of the file; else every prompt starts with an empty one.
    """

    sampling: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    turns: str = FIRST
    repeats: int = 1
    batch_size: int = 1
    chat: bool | None = None
    max_context: int | None = None
    dataset: str = ""
    keep: bool = False

    def validate(self, lm: checkpoints.LanguageModel) -> None:
        """Raises ValueError naming the setting that does not fit."""
        if self.turns not in (FIRST, ALL):
            raise ValueError(f"turns must be 'first' or 'all', got {self.turns!r}")
        for name in ("repeats", "batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(
                    f"{name} must be at least 1, got {getattr(self, name)}"
                )
        if self.max_context is not None and self.max_context < 2:
            raise ValueError(f"max_context must be at least 2, got {self.max_context}")
        if self.turns == ALL and self.batch_size > 1:
            raise ValueError(
                f"batch_size must be 1 with turns='all', got {self.batch_size}: a "
                "conversation runs alone"
            )
        if self.turns == ALL and self.keep:
            raise ValueError(
                "keep must be off with turns='all': a conversation keeps its own state"
            )
        if self.turns == ALL and (self.chat is False or lm.chat_template is None):
            raise ValueError(
                f"turns must be 'first' for {lm.name!r} here: conversations need a "
                "chat template"
            )


def context(
    probe: engine_lib.Engine, plan: Plan, questions: Sequence[prompts.Question]
) -> int:
    """Positions that every prompt of the benchmark fits into.

    One capacity for all, so that nothing compiles between two measured runs.

    Args:
      probe: any engine of the target.
      plan: the settings.
      questions: the prompts.

    Raises:
      ValueError: a prompt does not fit; the message names its question_id.
    """
    limit = plan.max_context or probe.lm.model.config.max_context
    most = plan.sampling.get("max_new_tokens", 128)
    needed = 2
    for question in questions:
        if plan.turns == FIRST:
            tokens = len(probe.encode(question.turns[0], plan.chat)) + most
        else:
            messages = [{"role": "user", "content": turn} for turn in question.turns]
            answers = len(messages) * (most + _TEMPLATE_TOKENS)
            tokens = len(probe.encode(messages)) + answers
        if tokens > limit:
            raise ValueError(
                f"dataset: question {question.question_id!r} needs {tokens} positions "
                f"with max_new_tokens={most}, the context is {limit}; ask for fewer "
                "tokens or leave it out"
            )
        needed = max(needed, tokens)
    return plan.max_context or needed


def settings(
    lm: checkpoints.LanguageModel,
    plan: Plan,
    questions: Sequence[prompts.Question],
    drafters: Sequence[str],
    verifier: str,
) -> dict[str, Any]:
    """What must be equal for two runs to be one: written into every row."""
    text = json.dumps([dataclasses.astuple(question) for question in questions])
    neutral = dataclasses.asdict(plan)
    neutral["sampling"] = {
        key: value for key, value in plan.sampling.items() if value not in ((), {})
    }
    made = {
        **neutral,
        "model": lm.name,
        "dtype": lm.model.dtype,
        "weights": lm.weights,
        "verifier": verifier,
        "drafters": list(drafters),
        "questions": len(questions),
        "questions_sha256": hashlib.sha256(text.encode()).hexdigest()[:16],
        "device": jax.devices()[0].device_kind,
        "cpus": os.cpu_count(),
        "jax": jax.__version__,
        "specjax": specjax.__version__,
    }
    return json.loads(json.dumps(made))  # as it will be read back
