"""What is asked for, checked: prompts as token ids, options as numbers."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from specjax import checkpoints, checks
from specjax.core import sampling as sampling_lib

Prompt = str | Sequence[int] | Sequence[Mapping[str, str]]


class Job(NamedTuple):
    """A batch ready to run: one row a (prompt, sample).

    Attributes:
      ids: token ids of each row's prompt.
      options: of each row.
      samples: index of each row within the samples of its prompt.
      stop: strings that end a text.
    """

    ids: list[list[int]]
    options: list[sampling_lib.SamplingOptions]
    samples: list[int]
    stop: tuple[str, ...]

    @property
    def max_new_tokens(self) -> int:
        """Most new tokens of any row."""
        return max(options.max_new_tokens for options in self.options)


def job(
    lm: checkpoints.LanguageModel,
    prompts: Sequence[Prompt],
    options: Mapping[str, Any] | Sequence[Mapping[str, Any]],
    *,
    stop: str | Sequence[str] = (),
    num_samples: int = 1,
    ignore_eos: bool = False,
    chat: bool | None = None,
) -> Job:
    """Checks a request for some prompts.

    Args:
      lm: the target.
      prompts: one or more.
      options: fields of ``SamplingOptions``, of all prompts or of each its own.
      stop, num_samples, ignore_eos, chat: see ``Engine.generate``.

    Raises:
      ValueError: bad options, or a prompt that is empty or not of this model.
      TypeError: an option is of the wrong kind.
    """
    checks.integer("", "num_samples", num_samples, 1)
    if chat is not None:
        checks.flag("", "chat", chat)
    if not prompts:
        raise ValueError("prompt is an empty list; give at least one prompt")
    if isinstance(options, Mapping):
        chosen = [sampling_options(lm, options, ignore_eos=ignore_eos)] * len(prompts)
    elif len(options) == len(prompts):
        chosen = [sampling_options(lm, o, ignore_eos=ignore_eos) for o in options]
    else:
        raise ValueError(
            f"options must be one for each of {len(prompts)} prompts, got "
            f"{len(options)}"
        )
    ids = [encode(lm, prompt, chat) for prompt in prompts]
    return Job(
        ids=[row for row in ids for _ in range(num_samples)],
        options=[row for row in chosen for _ in range(num_samples)],
        samples=list(range(num_samples)) * len(ids),
        stop=_stop_strings(stop),
    )


def sampling_options(
    lm: checkpoints.LanguageModel,
    options: Mapping[str, Any],
    *,
    ignore_eos: bool = False,
) -> sampling_lib.SamplingOptions:
    """Options for a model, its own stop ids among them unless they are ignored.

    Args:
      lm: the target.
      options: fields of ``SamplingOptions``.
      ignore_eos: leaves the model's own stop ids out.

    Raises:
      ValueError: an option is not known, or its value out of range.
      TypeError: a value is of the wrong kind.
    """
    known = {field.name for field in dataclasses.fields(sampling_lib.SamplingOptions)}
    for name in options:
        if name not in known:
            raise ValueError(
                f"{name!r} is not a sampling option; known are "
                f"{', '.join(sorted(known))}"
            )
    checks.flag("", "ignore_eos", ignore_eos)
    asked = sampling_lib.SamplingOptions(**options)
    asked.validate(lm.model.config.vocab_size)
    own = () if ignore_eos else lm.stop_ids
    stops = tuple(dict.fromkeys((*asked.stop_token_ids, *own)))
    chosen = dataclasses.replace(asked, stop_token_ids=stops)
    chosen.validate(lm.model.config.vocab_size)  # its own may be too many with them
    return chosen


def encode(
    lm: checkpoints.LanguageModel, prompt: Prompt, chat: bool | None = None
) -> list[int]:
    """Token ids of a prompt, at least one; see ``Engine.encode``."""
    known = isinstance(prompt, str | Sequence | np.ndarray)
    if not known or isinstance(prompt, bytes | bytearray):
        raise TypeError(
            "prompt must be text, token ids or chat messages, got "
            f"{type(prompt).__name__}"
        )
    if isinstance(prompt, str):
        if not prompt.strip():
            raise ValueError("prompt is empty; give at least one word")
        use_chat = lm.chat_template is not None if chat is None else chat
        if use_chat:
            return _encode_chat(lm, [{"role": "user", "content": prompt}])
        return _some(lm.tokenizer.encode(prompt, add_special_tokens=True))
    if len(prompt) == 0:
        raise ValueError("prompt is empty; give at least one token or message")
    messages = [entry for entry in prompt if isinstance(entry, Mapping)]
    if len(messages) == len(prompt):
        return _encode_chat(lm, messages)
    if messages:
        raise ValueError(
            f"prompt mixes {len(messages)} chat messages with other entries; give "
            "messages only or token ids only"
        )
    vocab_size = lm.model.config.vocab_size
    return [checks.token_id("prompt", token, vocab_size) for token in prompt]


def _stop_strings(stop: str | Sequence[str]) -> tuple[str, ...]:
    if not isinstance(stop, Sequence) or isinstance(stop, bytes):
        raise TypeError(f"stop must be text or a list of texts, got {stop!r}")
    stop = (stop,) if isinstance(stop, str) else tuple(stop)
    for text in stop:
        if not isinstance(text, str):
            raise TypeError(f"stop must be text or a list of texts, holds {text!r}")
        if not text:
            raise ValueError(
                "stop holds an empty string, which every text has; leave it out"
            )
    return stop


def is_batch(prompt: Any) -> bool:
    """Whether a prompt is a list of prompts.

    Raises:
      TypeError: it is no prompt at all.
    """
    if isinstance(prompt, str):
        return False
    if not isinstance(prompt, Sequence) or isinstance(prompt, bytes | bytearray):
        raise TypeError(
            "prompt must be text, token ids, chat messages or a list of such, got "
            f"{type(prompt).__name__}"
        )
    return len(prompt) > 0 and not isinstance(prompt[0], (int, np.integer, Mapping))


def _encode_chat(
    lm: checkpoints.LanguageModel, messages: Sequence[Mapping[str, str]]
) -> list[int]:
    if lm.chat_template is None:
        raise ValueError(
            f"prompt: model {lm.name!r} has no chat template; give text and chat=False"
        )
    text = lm.chat_template.render(messages, add_generation_prompt=True)
    return _some(lm.tokenizer.encode(text, add_special_tokens=False))


def _some(ids: list[int]) -> list[int]:
    """The ids of a text, refused if there are none: nothing could follow them."""
    if not ids:
        raise ValueError("prompt: its text has no tokens; give at least one word")
    return ids
