"""What a generation returns to people: plain Python values."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from specjax.core import contracts
from specjax.core import round as round_lib


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
    """One generated text; the attributes are the fields of ``--json``.

    Attributes:
      text: without the stop id or stop string.
      tokens: new token ids, the stop id included.
      log_probs: of the new tokens under the target's own logits.
      finish_reason: "stop", "length" or "interrupted".
      prompt_tokens, new_tokens: counts.
      target_calls: rounds after the one that emitted the first token.
      drafted, accepted: nodes scored, nodes emitted. What a stop string cuts off is
        not counted as emitted.
      tokens_per_target_call: (new_tokens - 1) / target_calls, 1 without calls.
      accepted_per_depth: rounds with at least d + 1 accepted, for each d.
      accepted_per_source, drafted_per_source: nodes by drafter.
      rounds_per_width: rounds at each width of the ladder.
      prefill_seconds: until the first token; rows of a batch share it.
      decode_seconds: from the first token on; rows of a batch share it.
      tokens_per_second: (new_tokens - 1) / decode_seconds, 0 without decoding.
      compile_seconds: spent compiling in this call.
      programs: programs compiled by the engine so far.
      model, drafter, device: names.
      choice: why the drafter is made as it is, such as what ``auto`` measured; "" for
        one that is as its options say.
      seed, sample: of the noise.
    """

    text: str
    tokens: list[int]
    log_probs: list[float]
    finish_reason: str
    prompt_tokens: int
    new_tokens: int
    target_calls: int
    drafted: int
    accepted: int
    tokens_per_target_call: float
    accepted_per_depth: list[int]
    accepted_per_source: dict[str, int]
    drafted_per_source: dict[str, int]
    rounds_per_width: dict[str, int]
    prefill_seconds: float
    decode_seconds: float
    tokens_per_second: float
    compile_seconds: float
    programs: int
    model: str
    drafter: str
    device: str
    choice: str
    seed: int
    sample: int = 0

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready dict of the fields."""
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Timing:
    """What one call took; the rows of a batch share it.

    Attributes:
      prefill, decode, compile: seconds.
      programs: compiled by the engine so far.
    """

    prefill: float
    decode: float
    compile: float
    programs: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rows:
    """A state brought to the host.

    Attributes:
      tokens: new token ids of each row.
      log_probs: beside them.
      finish: codes of ``round``.
      prompt_tokens: lengths.
      stats: the counters as NumPy arrays.
    """

    tokens: list[list[int]]
    log_probs: list[list[float]]
    finish: np.ndarray
    prompt_tokens: np.ndarray
    stats: Any


def fetch(state: round_lib.State, rows: int) -> Rows:
    """Copies what results need from the device, for the first ``rows`` rows."""
    history, log_prob, finish, stats = jax.device_get(
        (state.history, state.log_prob, state.finish, state.stats)
    )
    spans = [
        slice(int(history.prompt_length[i]), int(history.length[i]))
        for i in range(rows)
    ]
    return Rows(
        tokens=[history.tokens[i, span].tolist() for i, span in enumerate(spans)],
        log_probs=[log_prob[i, span].tolist() for i, span in enumerate(spans)],
        finish=np.array(finish),  # a copy: stop strings end rows on the host
        prompt_tokens=history.prompt_length,
        stats=stats,
    )


def make(
    fetched: Rows,
    row: int,
    *,
    text: str,
    num_tokens: int,
    before: Any,
    finish_reason: str,
    timing: Timing,
    recipe_widths: Sequence[int],
    sources: Sequence[contracts.Source],
    names: dict[str, str],
    seed: int,
    sample: int,
) -> Result:
    """The result of one row, cut to its first ``num_tokens`` new tokens.

    Args:
      fetched: the batch.
      row: which of its rows.
      text: of the new tokens, without stop id or stop string.
      num_tokens: new tokens up to the earliest stop.
      before: the row's counters before the round in which a stop string ended, None
        where none did.
      finish_reason: why the row ended.
      timing: of the call.
      recipe_widths: the ladder, for ``rounds_per_width``.
      sources: of the drafter, for the counts by source.
      names: {"model", "drafter", "device", "choice"}.
      seed, sample: of the noise.
    """
    stats = of_row(fetched.stats, row)
    if before is not None:
        stats = _cut(stats, before, lost=len(fetched.tokens[row]) - num_tokens)
    calls = int(stats.target_calls)
    later = max(num_tokens - 1, 0)
    labels = [source.name for source in sources]
    return Result(
        text=text,
        tokens=fetched.tokens[row][:num_tokens],
        log_probs=fetched.log_probs[row][:num_tokens],
        finish_reason=finish_reason,
        prompt_tokens=int(fetched.prompt_tokens[row]),
        new_tokens=num_tokens,
        target_calls=calls,
        drafted=int(stats.drafted),
        accepted=int(stats.accepted),
        tokens_per_target_call=later / calls if calls else 1.0,
        accepted_per_depth=stats.accepted_at.tolist(),
        accepted_per_source=_by_name(labels, stats.accepted_by),
        drafted_per_source=_by_name(labels, stats.drafted_by),
        rounds_per_width=_by_name([str(w) for w in recipe_widths], stats.rung),
        prefill_seconds=timing.prefill,
        decode_seconds=timing.decode,
        tokens_per_second=later / timing.decode if timing.decode and later else 0.0,
        compile_seconds=timing.compile,
        programs=timing.programs,
        seed=seed,
        sample=sample,
        **names,
    )


def of_row(stats: Any, row: int) -> Any:
    """The counters of one row of a batch."""
    return jax.tree.map(lambda leaf: leaf[row], stats)


def _cut(stats: Any, before: Any, lost: int) -> Any:
    """Counters of a row whose last round lost its last tokens to a stop string.

    The token behind the drafts goes first. Which sources the lost drafts came from is
    not known: those of the later ones are taken off first.

    Args:
      stats, before: the row's counters with that round and without.
      lost: tokens.
    """
    taken = int(stats.accepted - before.accepted)
    kept = min(taken, taken + 1 - lost)
    depth = np.arange(len(stats.accepted_at))
    fell = (depth >= kept) & (depth < taken)
    by = stats.accepted_by - before.accepted_by
    by = np.clip(kept - (np.cumsum(by) - by), 0, by)
    return dataclasses.replace(
        stats,
        accepted=before.accepted + kept,
        accepted_at=stats.accepted_at - fell,
        accepted_by=before.accepted_by + by,
    )


def _by_name(names: Sequence[str], counts: np.ndarray) -> dict[str, int]:
    totals: dict[str, int] = {}
    for name, count in zip(names, counts.tolist(), strict=True):
        totals[name] = totals.get(name, 0) + count
    return totals
