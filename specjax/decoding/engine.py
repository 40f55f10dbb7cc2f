"""Prompts in, results out: the host side around the two compiled programs."""

import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax

from specjax import checkpoints, checks
from specjax.core import contracts
from specjax.core import round as round_lib
from specjax.core import sampling as sampling_lib
from specjax.decoding import build, compiled, programs, request
from specjax.decoding import memory as memory_lib
from specjax.decoding import result as result_lib
from specjax.decoding import run as run_lib
from specjax.drafters import registry
from specjax.drafters.none import none
from specjax.models import placement
from specjax.verify import registry as rules

_USELESS_CALLS = 64
_USELESS_TAU = 1.02


class UselessDrafterWarning(UserWarning):
    """A drafter whose drafts are hardly ever accepted."""


class Engine:
    """A language model with a drafter, and the programs compiled for them.

    Programs are kept by bucket: the number of rows is rounded up to a power of two,
    the capacity to a power of two of at least 256 (or fixed by ``max_context``). They
    are split over the mesh that the model was loaded on.
    """

    def __init__(
        self,
        lm: checkpoints.LanguageModel,
        drafter: registry.Drafting | None = None,
        *,
        verifier: contracts.Verifier | str | None = None,
        widths: tuple[int, ...] | None = None,
        prompt_widths: tuple[int, ...] = programs.PROMPT_WIDTHS,
        max_context: int | None = None,
    ) -> None:
        """Checks that the parts fit; compiles nothing.

        Args:
          lm: the target, loaded.
          drafter: what drafts: a Drafter, an Equipped, a name with options such as
            "suffix:max_nodes=7", or a table {"name", "options"}. ``none()`` by default.
          verifier: a rule or its name, ``exact()`` by default.
          widths: ladder of decode rounds; by default the drafter's own, or the usual
            one.
          prompt_widths: chunks that prompts go in by.
          max_context: positions to hold, prompt and output together; by default just
            what a request needs.

        Raises:
          ValueError: parts do not fit, or ``max_context`` exceeds the model's.
          TypeError: an argument is of the wrong kind.
        """
        if not isinstance(lm, checkpoints.LanguageModel):
            raise TypeError(
                f"lm must be a loaded model, got {lm!r:.80}; load one by specjax.load"
            )
        chosen = registry.resolve(none() if drafter is None else drafter, lm)
        if chosen.fingerprint not in (None, lm.fingerprint):
            raise ValueError(
                f"drafter {chosen.label!r} was made for another tokenizer than "
                f"{lm.name!r}: drafts would be other tokens; use a draft model with "
                "the same vocabulary"
            )
        width = lm.model.config.vocab_size
        if chosen.vocab_size not in (None, width):
            raise ValueError(
                f"drafter {chosen.label!r} has {chosen.vocab_size} logits, "
                f"{lm.name!r} has {width} (padded embeddings count); use a draft model "
                "with an embedding of the same size"
            )
        limit = lm.model.config.max_context
        if max_context is not None:
            checks.whole("", "max_context", max_context)
            if not 2 <= max_context <= limit:
                raise ValueError(
                    f"max_context must be 2 to {limit}, the limit of {lm.name!r}, got "
                    f"{max_context}; leave it out to hold what a request needs"
                )
        ladder = chosen.widths if widths is None else widths
        self.lm = lm
        self.label, self.note = chosen.label, chosen.note
        self._context = max_context
        self._recipe = programs.recipe(
            lm.model.target,
            chosen.drafter,
            rules.resolve(verifier),
            widths=programs.WIDTHS if ladder is None else ladder,
            prompt_widths=prompt_widths,
            mesh=lm.mesh,
        )
        params = {"target": lm.params, "drafter": chosen.params, "verifier": {}}
        params = placement.place(lm.mesh, params)
        self.programs = compiled.Programs(self._recipe, params)
        self._warned = False

    def generate(
        self,
        prompt: request.Prompt | Sequence[request.Prompt],
        *,
        stop: str | Sequence[str] = (),
        num_samples: int = 1,
        ignore_eos: bool = False,
        chat: bool | None = None,
        memory: memory_lib.Memory | None = None,
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
          memory: what the drafter learnt in earlier requests; it learns on.
          **options: fields of ``SamplingOptions``.

        Returns:
          A Result, or a list of them for a batch or for several samples (the samples
          of a prompt lie together).

        Raises:
          ValueError: bad options, an empty prompt, or one that does not fit.
          TypeError: the prompt or an option is of the wrong kind.
        """
        batch = request.is_batch(prompt)
        prompts: Any = list(prompt) if batch else [prompt]
        job = self.prepare(
            prompts,
            options,
            stop=stop,
            num_samples=num_samples,
            ignore_eos=ignore_eos,
            chat=chat,
        )
        run = self.start(job, memory=memory)
        if job.stop:
            while run.running:
                run.advance(1)
        else:
            run.advance(run.capacity)
        results = self.results(run)
        return results if batch or num_samples > 1 else results[0]

    def stream(
        self,
        prompt: request.Prompt,
        *,
        stop: str | Sequence[str] = (),
        ignore_eos: bool = False,
        chat: bool | None = None,
        rounds: int = 1,
        memory: memory_lib.Memory | None = None,
        **options: Any,
    ) -> "Stream":
        """Generates for one prompt, a few rounds at a time.

        Args:
          rounds: rounds between two looks at the output; 1 with stop strings.
          prompt, stop, ignore_eos, chat, memory, **options: see ``generate``.

        Returns:
          An iterator of ``Piece``, whose ``result()`` gives the Result so far.
        """
        checks.integer("", "rounds", rounds, 1)
        job = self.prepare(
            [prompt], options, stop=stop, ignore_eos=ignore_eos, chat=chat
        )
        # Counts end with the text only if every round is looked at.
        run = self.start(job, memory=memory)
        return Stream(self, run, 1 if job.stop else rounds)

    def conversation(self, system: str | None = None) -> "Conversation":
        """Starts a chat whose turns reuse the cache.

        Args:
          system: a message that goes before all others.
        """
        return Conversation(self, system)

    def warmup(self, rows: int = 1, prompt_tokens: int = 1, **options: Any) -> float:
        """Compiles and runs both programs of a bucket once.

        Args:
          rows: batch rows.
          prompt_tokens: length of the longest prompt to come.
          **options: ``max_new_tokens`` of the requests to come.

        Returns:
          Seconds that it took.

        Raises:
          ValueError: a number is below 1, or they don't fit.
          TypeError: one is no integer.
        """
        for name, value in (("rows", rows), ("prompt_tokens", prompt_tokens)):
            checks.integer("warmup", name, value, 1)
        began = time.perf_counter()
        most = sampling_lib.SamplingOptions(**options).max_new_tokens
        checks.integer("warmup", "max_new_tokens", most, 1)
        job = request.Job(
            ids=[[0] * prompt_tokens] * rows,
            options=[sampling_lib.SamplingOptions(max_new_tokens=most)] * rows,
            samples=[0] * rows,
            stop=(),
        )
        run = self.start(job)
        run.advance(2)
        jax.block_until_ready(run.state)
        return time.perf_counter() - began

    def encode(self, prompt: request.Prompt, chat: bool | None = None) -> list[int]:
        """Token ids of a prompt, the chat template applied where it is due.

        Args:
          prompt: text, token ids or chat messages.
          chat: as for ``generate``.

        Raises:
          ValueError: the prompt is empty, holds ids outside the vocabulary, or asks
            for a chat template that the model lacks.
          TypeError: an entry is of the wrong kind.
        """
        return request.encode(self.lm, prompt, chat)

    def capacity(self, prompt_tokens: int, max_new_tokens: int) -> int:
        """The capacity bucket that a request runs in.

        Args:
          prompt_tokens: of its longest prompt.
          max_new_tokens: most new tokens.

        Raises:
          ValueError: the request does not fit the context.
        """
        needed = int(prompt_tokens + max_new_tokens)  # they may be NumPy's
        limit = self.lm.model.config.max_context
        asked = f"prompt of {prompt_tokens} tokens and max_new_tokens={max_new_tokens}"
        if needed > limit:
            raise ValueError(
                f"{asked} exceed the context of {limit}, the limit of "
                f"{self.lm.name!r}; shorten the prompt or ask for fewer tokens"
            )
        if self._context is not None and needed > self._context:
            raise ValueError(
                f"max_context must be {needed} to {limit}, the limit of "
                f"{self.lm.name!r}, for a {asked}, got {self._context}; raise "
                "it, shorten the prompt or ask for fewer tokens"
            )
        if self._context is not None:
            return build.round_capacity(self._context)
        bucket = build.round_capacity(1 << (needed - 1).bit_length())
        return min(bucket, build.round_capacity(limit))

    def prepare(
        self,
        prompts: Sequence[request.Prompt],
        options: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        **asked: Any,
    ) -> request.Job:
        """Checks a request; see ``request.job`` for the arguments."""
        return request.job(self.lm, prompts, options, **asked)

    def start(
        self,
        job: request.Job,
        state: round_lib.State | None = None,
        memory: memory_lib.Memory | None = None,
    ) -> run_lib.Run:
        """Takes prompts in, up to the first new token of each row.

        Args:
          job: the batch.
          state: left by an earlier turn of the same rows, with room for this one; it
            is donated. None starts afresh.
          memory: what the drafter starts with where there is no state.

        Raises:
          ValueError: a prompt does not fit, or the memory is of other sizes.
          TypeError: ``memory`` is none.
        """
        if memory is not None and not isinstance(memory, memory_lib.Memory):
            raise TypeError(f"memory must be a Memory, got {type(memory).__name__}")
        longest = max(len(ids) for ids in job.ids)
        capacity = self.capacity(longest, job.max_new_tokens)
        return run_lib.Run(
            self.programs,
            job,
            capacity,
            tokenizer=self.lm.tokenizer,
            names={
                "model": self.lm.name,
                "drafter": self.label,
                "device": self._device(),
                "choice": self.note,
            },
            state=state,
            memory=memory,
        )

    def _device(self) -> str:
        kind, mesh = jax.devices()[0].device_kind, self.lm.mesh
        return kind if mesh is None else f"{kind}, {placement.describe(mesh)}"

    def results(self, run: run_lib.Run) -> list[result_lib.Result]:
        """The results of a run as they stand, with a warning if drafting is in vain."""
        results = run.results()
        for result in results:
            self._warn_if_useless(result)
        return results

    def _warn_if_useless(self, result: result_lib.Result) -> None:
        """Says once if drafting does not pay at all."""
        tau, calls = result.tokens_per_target_call, result.target_calls
        drafts = 2 * result.drafted >= calls  # rare drafts cost little
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


class Stream:
    """An iterator of ``Piece``; ``result()`` gives what there is at any time.

    After a KeyboardInterrupt, inside or outside, ``result()`` still works and says
    "interrupted".
    """

    def __init__(self, engine: Engine, run: run_lib.Run, rounds: int) -> None:
        self._engine, self._run, self._rounds = engine, run, rounds

    def __iter__(self) -> Iterator[run_lib.Piece]:
        yield run_lib.Piece(self._run.texts[0].shown, list(self._run.rows.tokens[0]))
        while self._run.running:
            yield self._run.advance(self._rounds)[0]

    def result(self) -> result_lib.Result:
        """The result so far."""
        return self._engine.results(self._run)[0]


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

    def send(
        self,
        content: str,
        *,
        stop: str | Sequence[str] = (),
        ignore_eos: bool = False,
        **options: Any,
    ) -> result_lib.Result:
        """Adds a user's message and generates the answer.

        Args:
          content: the message.
          stop, ignore_eos, **options: see ``Engine.generate``.

        Raises:
          ValueError: a bad option, or the conversation no longer fits; it is left as
            it was.
        """
        engine = self._engine
        messages = [*self.messages, {"role": "user", "content": content}]
        job = engine.prepare([messages], options, stop=stop, ignore_eos=ignore_eos)
        needed = engine.capacity(len(job.ids[0]), job.max_new_tokens)
        state, self._state = self._state, None
        if state is not None and state.history.tokens.shape[1] < needed:
            state = None  # Outgrown: the next bucket starts afresh.
        run = engine.start(job, state)
        while run.running:
            run.advance(1 if job.stop else run.capacity)
        self._state = run.state
        (result,) = engine.results(run)
        self.messages = [*messages, {"role": "assistant", "content": result.text}]
        return result
