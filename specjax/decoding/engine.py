"""Prompts in, results out: the host side around the two compiled programs."""

import dataclasses
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np

from specjax import checkpoints
from specjax.core import contracts
from specjax.core import round as round_lib
from specjax.core import sampling as sampling_lib
from specjax.decoding import build, compiled, programs
from specjax.decoding import result as result_lib
from specjax.decoding import text as text_lib
from specjax.drafters import equipped as equipped_lib
from specjax.drafters.none import none
from specjax.verify.exact import exact

Prompt = str | Sequence[int] | Sequence[Mapping[str, str]]
_REASONS = {
    round_lib.RUNNING: "interrupted",
    round_lib.STOPPED: "stop",
    round_lib.OUT_OF_LENGTH: "length",
}
_USELESS_CALLS = 64
_USELESS_TAU = 1.02


class UselessDrafterWarning(UserWarning):
    """A drafter whose drafts are hardly ever accepted."""


class Piece(NamedTuple):
    """One step of a stream: text that is safe to show, and the tokens behind it."""

    text: str
    tokens: list[int]


class _Job(NamedTuple):
    """A batch ready to run: one row a (prompt, sample)."""

    ids: list[list[int]]
    options: sampling_lib.SamplingOptions
    samples: list[int]
    stop: tuple[str, ...]


class Engine:
    """A language model with a drafter, and the programs compiled for them.

    Programs are kept by bucket: the number of rows is rounded up to a power of two,
    the capacity to a power of two of at least 256 (or fixed by ``max_context``).
    """

    def __init__(
        self,
        lm: checkpoints.LanguageModel,
        drafter: contracts.Drafter | equipped_lib.Equipped | None = None,
        *,
        verifier: contracts.Verifier | None = None,
        widths: tuple[int, ...] = programs.WIDTHS,
        prompt_widths: tuple[int, ...] = programs.PROMPT_WIDTHS,
        max_context: int | None = None,
    ) -> None:
        """Checks that the parts fit; compiles nothing.

        Args:
          lm: the target, loaded.
          drafter: what drafts, ``none()`` by default.
          verifier: ``exact()`` by default.
          widths: ladder of decode rounds.
          prompt_widths: chunks that prompts go in by.
          max_context: positions to hold, prompt and output together; by default just
            what a request needs.

        Raises:
          ValueError: parts do not fit, or ``max_context`` exceeds the model's.
        """
        chosen = equipped_lib.equip(none() if drafter is None else drafter)
        if chosen.fingerprint not in (None, lm.fingerprint):
            raise ValueError(
                f"drafter {chosen.label!r} was made for another tokenizer than "
                f"{lm.name!r}: drafts would be other tokens; use a draft model with "
                "the same vocabulary"
            )
        limit = lm.model.config.max_context
        if max_context is not None and not 2 <= max_context <= limit:
            raise ValueError(
                f"max_context must be 2 to the model's {limit}, got {max_context}"
            )
        self.lm = lm
        self.label = chosen.label
        self._context = max_context
        self._recipe = programs.recipe(
            lm.model.target,
            chosen.drafter,
            exact() if verifier is None else verifier,
            widths=widths,
            prompt_widths=prompt_widths,
        )
        params = {"target": lm.params, "drafter": chosen.params, "verifier": {}}
        self.programs = compiled.Programs(self._recipe, params)
        self._warned = False

    def generate(
        self,
        prompt: Prompt | Sequence[Prompt],
        *,
        stop: str | Sequence[str] = (),
        num_samples: int = 1,
        ignore_eos: bool = False,
        chat: bool | None = None,
        **options: Any,
    ) -> result_lib.Result | list[result_lib.Result]:
        """Generates for one prompt or a batch.

        Args:
          prompt: text, token ids, chat messages ``{"role", "content"}``, or a list of
            such.
          stop: strings that end the text and are left out of it.
          num_samples: independent samples of each prompt.
          ignore_eos: do not stop at the model's own stop ids.
          chat: whether text goes through the chat template as a user's message; by
            default if the model has one.
          **options: fields of ``SamplingOptions``.

        Returns:
          A Result, or a list of them for a batch or for several samples (the samples
          of a prompt lie together).

        Raises:
          ValueError: bad options, an empty prompt, or one that does not fit.
        """
        batch = _is_batch(prompt)
        prompts = list(prompt) if batch else [prompt]
        job = self._job(prompts, stop, num_samples, ignore_eos, chat, options)
        run = _Run(self, job)
        if job.stop:
            while run.running:
                run.advance(1)
        else:
            run.advance(run.capacity)
        results = run.results()
        return results if batch or num_samples > 1 else results[0]

    def stream(
        self,
        prompt: Prompt,
        *,
        stop: str | Sequence[str] = (),
        ignore_eos: bool = False,
        chat: bool | None = None,
        rounds: int = 1,
        **options: Any,
    ) -> "Stream":
        """Generates for one prompt, a few rounds at a time.

        Args:
          rounds: rounds between two looks at the output.
          prompt, stop, ignore_eos, chat, **options: see ``generate``.

        Returns:
          An iterator of ``Piece``, whose ``result()`` gives the Result so far.
        """
        job = self._job([prompt], stop, 1, ignore_eos, chat, options)
        return Stream(_Run(self, job), rounds)

    def conversation(self, system: str | None = None) -> "Conversation":
        """Starts a chat whose turns reuse the cache."""
        return Conversation(self, system)

    def warmup(self, rows: int = 1, prompt_tokens: int = 1, **options: Any) -> float:
        """Compiles and runs both programs of a bucket once.

        Args:
          rows: batch rows.
          prompt_tokens: length of the longest prompt to come.
          **options: ``max_new_tokens`` of the requests to come.

        Returns:
          Seconds that it took.
        """
        began = time.perf_counter()
        most = sampling_lib.SamplingOptions(**options).max_new_tokens
        job = _Job(
            ids=[[0] * prompt_tokens] * rows,
            options=sampling_lib.SamplingOptions(max_new_tokens=most),
            samples=[0] * rows,
            stop=(),
        )
        run = _Run(self, job)
        run.advance(2)
        jax.block_until_ready(run.state)
        return time.perf_counter() - began

    def encode(self, prompt: Prompt, chat: bool | None = None) -> list[int]:
        """Token ids of a prompt, the chat template applied where it is due.

        Raises:
          ValueError: the prompt is empty, holds ids outside the vocabulary, or asks
            for a chat template that the model lacks.
        """
        lm = self.lm
        if isinstance(prompt, str):
            if not prompt.strip():
                raise ValueError("prompt is empty; give at least one word")
            use_chat = lm.chat_template is not None if chat is None else chat
            if use_chat:
                return self._encode_chat([{"role": "user", "content": prompt}])
            return lm.tokenizer.encode(prompt, add_special_tokens=True)
        if len(prompt) == 0:
            raise ValueError("prompt is empty; give at least one token or message")
        messages = [entry for entry in prompt if isinstance(entry, Mapping)]
        if len(messages) == len(prompt):
            return self._encode_chat(messages)
        if messages:
            raise ValueError("prompt mixes chat messages with token ids")
        ids = [int(cast(int, token)) for token in prompt]
        vocab = lm.model.config.vocab_size
        for token in ids:
            if not 0 <= token < vocab:
                raise ValueError(f"prompt holds id {token}; ids are 0 to {vocab - 1}")
        return ids

    def _encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        lm = self.lm
        if lm.chat_template is None:
            raise ValueError(
                f"prompt: model {lm.name!r} has no chat template; give text and "
                "chat=False"
            )
        text = lm.chat_template.render(messages, add_generation_prompt=True)
        return lm.tokenizer.encode(text, add_special_tokens=False)

    def capacity(self, prompt_tokens: int, max_new_tokens: int) -> int:
        """The capacity bucket that a request runs in.

        Raises:
          ValueError: the request does not fit the context.
        """
        needed = prompt_tokens + max_new_tokens
        limit = self._context or self.lm.model.config.max_context
        if needed > limit:
            raise ValueError(
                f"prompt of {prompt_tokens} tokens and max_new_tokens={max_new_tokens} "
                f"exceed the context of {limit}; shorten the prompt or ask for less"
            )
        if self._context is not None:
            return build.round_capacity(self._context)
        bucket = build.round_capacity(1 << (needed - 1).bit_length())
        return min(bucket, build.round_capacity(limit))

    def _job(self, prompts, stop, num_samples, ignore_eos, chat, options) -> _Job:
        stop = (stop,) if isinstance(stop, str) else tuple(stop)
        if any(not text for text in stop):
            raise ValueError("stop holds an empty string")
        if num_samples < 1:
            raise ValueError(f"num_samples must be at least 1, got {num_samples}")
        if not prompts:
            raise ValueError("prompt is an empty list; give at least one prompt")
        known = {f.name for f in dataclasses.fields(sampling_lib.SamplingOptions)}
        for name in options:
            if name not in known:
                raise ValueError(
                    f"{name!r} is not a sampling option; known are "
                    f"{', '.join(sorted(known))}"
                )
        stops = dict.fromkeys(options.pop("stop_token_ids", ()))
        if not ignore_eos:
            stops.update(dict.fromkeys(self.lm.stop_ids))
        chosen = sampling_lib.SamplingOptions(**options, stop_token_ids=tuple(stops))
        chosen.validate(self.lm.model.config.vocab_size)
        ids = [self.encode(prompt, chat) for prompt in prompts]
        return _Job(
            ids=[row for row in ids for _ in range(num_samples)],
            options=chosen,
            samples=list(range(num_samples)) * len(ids),
            stop=stop,
        )

    def warn_if_useless(self, result: result_lib.Result) -> None:
        """Says once if drafting does not pay at all."""
        tau, calls = result.tokens_per_target_call, result.target_calls
        drafts = self._recipe.parts.drafter.bounds.nodes > 0
        if (
            drafts
            and not self._warned
            and calls >= _USELESS_CALLS
            and tau < _USELESS_TAU
        ):
            self._warned = True
            warnings.warn(
                f"drafter {self.label!r}: {tau:.2f} tokens per target call over "
                f"{calls} calls; its drafts are hardly ever accepted",
                UselessDrafterWarning,
                stacklevel=3,
            )


class _Run:
    """One batch on its way: state on the device, texts on the host."""

    def __init__(
        self, engine: Engine, job: _Job, state: round_lib.State | None = None
    ) -> None:
        self.engine, self.job = engine, job
        rows = 1 << (len(job.ids) - 1).bit_length()
        longest = max(len(ids) for ids in job.ids)
        fitting = engine.capacity(longest, job.options.max_new_tokens)
        held = engine.programs
        before = held.compile_seconds
        if state is None:
            self.capacity = fitting
            state = programs.blank(held.recipe, held.params, rows, self.capacity)
        else:
            self.capacity = state.history.tokens.shape[1]
        tokens = np.zeros((rows, self.capacity), np.int32)
        lengths = np.zeros((rows,), np.int32)
        for row, ids in enumerate(job.ids):
            tokens[row, : len(ids)] = ids
            lengths[row] = len(ids)
        spare = rows - len(job.ids)
        self.sampling = sampling_lib.pack(
            [job.options] * rows, job.samples + [0] * spare
        )
        arguments = (jnp.asarray(tokens), jnp.asarray(lengths), self.sampling)
        began = time.perf_counter()
        state = held.prompt(state, *arguments)
        self.state = jax.block_until_ready(state)
        self._compile = held.compile_seconds - before
        self._prefill = time.perf_counter() - began - self._compile
        self._decode = 0.0
        tokenizer = engine.lm.tokenizer
        self.texts = [text_lib.GrowingText(tokenizer, job.stop) for _ in job.ids]
        self._read()

    @property
    def running(self) -> bool:
        """Whether some row goes on."""
        return bool(np.any(self.rows.finish[: len(self.job.ids)] == round_lib.RUNNING))

    def advance(self, rounds: int) -> list[Piece]:
        """Runs up to ``rounds`` rounds; returns what each row may show anew."""
        held = self.engine.programs
        before, began = held.compile_seconds, time.perf_counter()
        state = held.decode(self.state, self.sampling, jnp.int32(rounds))
        self.state = jax.block_until_ready(state)
        spent = time.perf_counter() - began
        compiling = held.compile_seconds - before
        self._compile += compiling
        self._decode += spent - compiling
        return self._read()

    def _read(self) -> list[Piece]:
        """Fetches new tokens, grows the texts, ends rows at their stop strings."""
        self.rows = result_lib.fetch(self.state, len(self.job.ids))
        pieces, ended = [], []
        for row, stream in enumerate(self.texts):
            tokens = self.rows.tokens[row]
            text, first = "", stream.num_tokens
            for token in tokens[first:]:
                if stream.stopped:
                    break
                text += self._push(stream, token)
            if self.rows.finish[row] != round_lib.RUNNING and not stream.stopped:
                text += stream.finish()
            if stream.stopped and self.rows.finish[row] == round_lib.RUNNING:
                ended.append(row)
            pieces.append(Piece(text, tokens[first : stream.num_tokens]))
        if ended:
            self.rows.finish[ended] = round_lib.STOPPED
            finish = np.array(jax.device_get(self.state.finish))
            finish[ended] = round_lib.STOPPED
            self.state = dataclasses.replace(self.state, finish=jnp.asarray(finish))
        return pieces

    def _push(self, stream: text_lib.GrowingText, token: int) -> str:
        """A stop id counts as a token but is no text."""
        if token in self.job.options.stop_token_ids:
            return stream.skip()
        return stream.push(token)

    def results(self) -> list[result_lib.Result]:
        """The results as they stand."""
        engine, recipe = self.engine, self.engine.programs.recipe
        timing = result_lib.Timing(
            prefill=self._prefill,
            decode=self._decode,
            compile=self._compile,
            programs=engine.programs.count,
        )
        names = {
            "model": engine.lm.name,
            "drafter": engine.label,
            "device": jax.devices()[0].device_kind,
        }
        results = []
        for row, stream in enumerate(self.texts):
            reason = "stop" if stream.stopped else _REASONS[int(self.rows.finish[row])]
            results.append(
                result_lib.make(
                    self.rows,
                    row,
                    text=stream.text,
                    num_tokens=stream.num_tokens,
                    finish_reason=reason,
                    timing=timing,
                    recipe_widths=recipe.decode_plan.widths,
                    sources=recipe.parts.drafter.sources,
                    names=names,
                    seed=self.job.options.seed,
                    sample=self.job.samples[row],
                )
            )
            engine.warn_if_useless(results[-1])
        return results


class Stream:
    """An iterator of ``Piece``; ``result()`` gives what there is at any time.

    After a KeyboardInterrupt, inside or outside, ``result()`` still works and says
    "interrupted".
    """

    def __init__(self, run: _Run, rounds: int) -> None:
        if rounds < 1:
            raise ValueError(f"rounds must be at least 1, got {rounds}")
        self._run, self._rounds = run, rounds

    def __iter__(self) -> Iterator[Piece]:
        yield Piece(self._run.texts[0].shown, list(self._run.rows.tokens[0]))
        while self._run.running:
            yield self._run.advance(self._rounds)[0]

    def result(self) -> result_lib.Result:
        """The result so far."""
        return self._run.results()[0]


class Conversation:
    """A chat of several turns over one cache.

    Each turn renders the whole conversation; what the cache holds of it is found by
    the longest common prefix, and only the rest is computed.

    Attributes:
      messages: the conversation so far.
    """

    def __init__(self, engine: Engine, system: str | None = None) -> None:
        self._engine = engine
        self._state: round_lib.State | None = None
        self.messages: list[dict[str, str]] = []
        if system is not None:
            self.messages.append({"role": "system", "content": system})

    def send(self, content: str, **options: Any) -> result_lib.Result:
        """Adds a user's message and generates the answer.

        Args:
          content: the message.
          **options: ``stop``, ``ignore_eos`` and fields of ``SamplingOptions``.

        Raises:
          ValueError: the conversation no longer fits; it is left as it was.
        """
        engine = self._engine
        messages = [*self.messages, {"role": "user", "content": content}]
        stop = options.pop("stop", ())
        ignore_eos = options.pop("ignore_eos", False)
        job = engine._job([messages], stop, 1, ignore_eos, None, options)
        needed = engine.capacity(len(job.ids[0]), job.options.max_new_tokens)
        state, self._state = self._state, None
        if state is not None and state.history.tokens.shape[1] < needed:
            state = None  # Outgrown: the next bucket starts afresh.
        run = _Run(engine, job, state)
        while run.running:
            run.advance(1 if job.stop else run.capacity)
        self._state = run.state
        result = run.results()[0]
        self.messages = [*messages, {"role": "assistant", "content": result.text}]
        return result


def _is_batch(prompt: Any) -> bool:
    """Whether a prompt is a list of prompts."""
    if isinstance(prompt, str):
        return False
    if not isinstance(prompt, Sequence):
        raise TypeError(
            "prompt must be text, token ids, chat messages or a list of such, got "
            f"{type(prompt).__name__}"
        )
    return len(prompt) > 0 and not isinstance(prompt[0], (int, np.integer, Mapping))
