"""One batch on its way through the two compiled programs, seen from the host."""

import dataclasses
import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specjax import checkpoints
from specjax.core import round as round_lib
from specjax.core import sampling as sampling_lib
from specjax.core import stats as stats_lib
from specjax.decoding import compiled, request
from specjax.decoding import memory as memory_lib
from specjax.decoding import result as result_lib
from specjax.decoding import text as text_lib

_REASONS = {
    round_lib.RUNNING: "interrupted",
    round_lib.STOPPED: "stop",
    round_lib.OUT_OF_LENGTH: "length",
}


class Piece(NamedTuple):
    """One step of a stream: text that is safe to show, and the tokens behind it."""

    text: str
    tokens: list[int]


class Run:
    """One batch on its way: state on the device, texts on the host.

    Attributes:
      state: on the device; rows past those of the job are idle.
      rows: what was fetched of it last.
      texts: of each row.
      sampling: parameters of all rows.
      capacity: slots of the state.
    """

    def __init__(
        self,
        held: compiled.Programs,
        job: request.Job,
        capacity: int,
        *,
        tokenizer: checkpoints.Tokenizer,
        names: dict[str, str],
        state: round_lib.State | None = None,
        memory: memory_lib.Memory | None = None,
    ) -> None:
        """Takes the prompts in, up to the first new token of each row.

        Args:
          held: the programs.
          job: the batch.
          capacity: slots of a new state; it fits the job.
          tokenizer: for the texts.
          names: {"model", "drafter", "device", "choice"}, for the results.
          state: to go on from, donated; None for a new one.
          memory: what the drafter of a new state starts with; what it has learnt
            is put there at the end, and not where the run is broken off.
        """
        self._held, self._job, self._names = held, job, names
        self._memory = memory
        rows = held.rows(len(job.ids))
        before = held.compile_seconds
        if state is None:
            state = held.blank(rows, capacity)
            if memory is not None:
                learnt = memory.fitting(state.drafter)
                state = dataclasses.replace(state, drafter=learnt)
        self.capacity = state.history.tokens.shape[1]
        tokens = np.zeros((rows, self.capacity), np.int32)
        lengths = np.zeros((rows,), np.int32)
        for row, ids in enumerate(job.ids):
            tokens[row, : len(ids)] = ids
            lengths[row] = len(ids)
        spare = rows - len(job.ids)
        self.sampling = sampling_lib.pack(
            job.options + job.options[:1] * spare, job.samples + [0] * spare
        )
        arguments = (jnp.asarray(tokens), jnp.asarray(lengths), self.sampling)
        began = time.perf_counter()
        state = held.prompt(state, *arguments)
        self.state = jax.block_until_ready(state)
        self._compile = held.compile_seconds - before
        self._prefill = time.perf_counter() - began - self._compile
        self._decode = 0.0
        self.texts = [text_lib.GrowingText(tokenizer, job.stop) for _ in job.ids]
        self.rows = result_lib.fetch(self.state, len(job.ids))
        self._before: dict[
            int, stats_lib.Stats
        ] = {}  # before the round of a stop string
        self._grow(self.rows.stats)

    @property
    def running(self) -> bool:
        """Whether some row goes on."""
        return bool(np.any(self.rows.finish[: len(self._job.ids)] == round_lib.RUNNING))

    def advance(self, rounds: int) -> list[Piece]:
        """Runs up to ``rounds`` rounds; returns what each row may show anew."""
        held = self._held
        before, began = held.compile_seconds, time.perf_counter()
        state = held.decode(self.state, self.sampling, jnp.int32(rounds))
        self.state = jax.block_until_ready(state)
        spent = time.perf_counter() - began
        compiling = held.compile_seconds - before
        self._compile += compiling
        self._decode += spent - compiling
        earlier = self.rows.stats
        self.rows = result_lib.fetch(self.state, len(self._job.ids))
        return self._grow(earlier)

    def _grow(self, earlier: Any) -> list[Piece]:
        """Grows the texts by new tokens, ends rows at their stop strings.

        Args:
          earlier: counters before the rounds that made the tokens.
        """
        pieces, ended = [], []
        for row, stream in enumerate(self.texts):
            tokens = self.rows.tokens[row]
            text, first, went_on = "", stream.num_tokens, not stream.stopped
            for token in tokens[first:]:
                if stream.stopped:
                    break
                text += self._push(row, token)
            if self.rows.finish[row] != round_lib.RUNNING and not stream.stopped:
                text += stream.finish()
            if stream.stopped and went_on:
                self._before[row] = result_lib.of_row(earlier, row)
            if stream.stopped and self.rows.finish[row] == round_lib.RUNNING:
                ended.append(row)
            pieces.append(Piece(text, tokens[first : stream.num_tokens]))
        if ended:
            self.rows.finish[ended] = round_lib.STOPPED
            finish = np.array(jax.device_get(self.state.finish))
            finish[ended] = round_lib.STOPPED
            self.state = dataclasses.replace(self.state, finish=jnp.asarray(finish))
        if self._memory is not None and not self.running:
            self._memory.state = self.state.drafter
        return pieces

    def _push(self, row: int, token: int) -> str:
        """A stop id counts as a token but is no text."""
        stream = self.texts[row]
        if token in self._job.options[row].stop_token_ids:
            return stream.skip()
        return stream.push(token)

    def results(self) -> list[result_lib.Result]:
        """The results as they stand."""
        recipe = self._held.recipe
        timing = result_lib.Timing(
            prefill=self._prefill,
            decode=self._decode,
            compile=self._compile,
            programs=self._held.count,
        )
        results = []
        for row, stream in enumerate(self.texts):
            reason = "stop" if stream.stopped else _REASONS[int(self.rows.finish[row])]
            results.append(
                result_lib.make(
                    self.rows,
                    row,
                    text=stream.text,
                    num_tokens=stream.num_tokens,
                    before=self._before.get(row),
                    finish_reason=reason,
                    timing=timing,
                    recipe_widths=recipe.decode_plan.widths,
                    sources=recipe.parts.drafter.sources,
                    names=self._names,
                    seed=self._job.options[row].seed,
                    sample=self._job.samples[row],
                )
            )
        return results
