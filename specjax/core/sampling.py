"""How tokens are chosen: one struct of arrays, so that no value recompiles."""

import dataclasses
from collections.abc import Collection, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from specjax import checks
from specjax.core import noise

NO_ID = -1
MAX_STOP_IDS = 16
MAX_BIASES = 64
_INTEGERS = {  # the smallest and largest of each
    "max_new_tokens": (1, checks.MAX_INT32),
    "min_new_tokens": (0, checks.MAX_INT32),
    "top_k": (0, checks.MAX_INT32),
    "seed": (0, 2**32 - 1),
}
_LARGEST_BIAS = 1e30
_LARGEST = 1e6  # keeps logits and scaled noise finite in float32
_FLOATS = (
    "temperature",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Grammar:
    """A finite automaton over token ids.

    Attributes:
      shared: dict with ``next`` i32[Q, V], the state after a token, -1 where the
        token is not allowed. Every reachable state must allow some token; one that
        allows none is stayed in. A stop id ends a row only where it is allowed.
      start: i32[B], state of each row before its first new token.
    """

    shared: dict[str, jax.Array]
    start: jax.Array  # i32[B]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Sampling:
    """Sampling parameters of each row, all traced.

    Attributes:
      key: u32[B, 2], noise key, see ``noise.row_keys``.
      max_new_tokens: i32[B], budget of this turn.
      min_new_tokens: i32[B], stop ids are banned before that many.
      temperature: f32[B], 0 is greedy.
      top_k: i32[B], 0 is off.
      top_p: f32[B], 1 is off.
      min_p: f32[B], 0 is off.
      repetition_penalty: f32[B], 1 is off; over prompt and output.
      presence_penalty: f32[B], 0 is off; over the output.
      frequency_penalty: f32[B], 0 is off; over the output.
      bias_ids: i32[B, MAX_BIASES], NO_ID where unused.
      bias: f32[B, MAX_BIASES], added to the logits; -inf bans an id.
      stop_ids: i32[B, MAX_STOP_IDS], NO_ID where unused.
      grammar: automaton that restricts the output, or None.
    """

    key: jax.Array  # u32[B, 2]
    max_new_tokens: jax.Array  # i32[B]
    min_new_tokens: jax.Array  # i32[B]
    temperature: jax.Array  # f32[B]
    top_k: jax.Array  # i32[B]
    top_p: jax.Array  # f32[B]
    min_p: jax.Array  # f32[B]
    repetition_penalty: jax.Array  # f32[B]
    presence_penalty: jax.Array  # f32[B]
    frequency_penalty: jax.Array  # f32[B]
    bias_ids: jax.Array  # i32[B, MAX_BIASES]
    bias: jax.Array  # f32[B, MAX_BIASES]
    stop_ids: jax.Array  # i32[B, MAX_STOP_IDS]
    grammar: Grammar | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class SamplingOptions:
    """What a user asks for, for one request: plain Python values.

    The names and neutral values are those of ``Sampling``; ``logit_bias`` maps
    ids to biases, ``banned_ids`` are ids never emitted.
    """

    max_new_tokens: int = 128
    min_new_tokens: int = 0
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = dataclasses.field(default_factory=dict)
    banned_ids: Sequence[int] = ()
    stop_token_ids: Sequence[int] = ()
    seed: int = 0

    def validate(self, vocab_size: int) -> None:
        """Checks all values, by name of the argument.

        Args:
          vocab_size: V, what ids must be below.

        Raises:
          ValueError: a value is out of range.
          TypeError: a number is of the wrong kind.
        """
        self._check_numbers()
        self._check_ids(vocab_size)

    def _check_numbers(self) -> None:
        for name, (least, most) in _INTEGERS.items():
            checks.integer("", name, getattr(self, name), least, most)
        for name in _FLOATS:
            got = getattr(self, name)
            checks.number("", name, got)
            if not abs(got) <= _LARGEST:
                raise ValueError(
                    f"{name} must be finite and at most {_LARGEST:g}, got {got}"
                )
        rules = (
            ("temperature", self.temperature >= 0, "0 (greedy) or more"),
            ("top_p", 0 < self.top_p <= 1, "in (0, 1], 1 is off"),
            ("min_p", 0 <= self.min_p <= 1, "in [0, 1], 0 is off"),
            (
                "repetition_penalty",
                self.repetition_penalty >= 1 / _LARGEST,
                f"{1 / _LARGEST:g} or more, 1 is off",
            ),
        )
        for name, ok, expected in rules:
            if not ok:
                raise ValueError(
                    f"{name} must be {expected}, got {getattr(self, name)}"
                )
        if self.min_new_tokens > self.max_new_tokens:
            raise ValueError(
                f"min_new_tokens must be at most max_new_tokens="
                f"{self.max_new_tokens}, got {self.min_new_tokens}"
            )

    def _check_ids(self, vocab_size: int) -> None:
        for name, ids in (
            ("logit_bias", self.logit_bias),
            ("banned_ids", self.banned_ids),
            ("stop_token_ids", self.stop_token_ids),
        ):
            kind = Mapping if name == "logit_bias" else Collection
            if not isinstance(ids, kind):
                wanted = "ids and biases" if kind is Mapping else "token ids"
                raise TypeError(f"{name} must be {wanted}, got {ids!r}")
            for token in ids:
                checks.token_id(name, token, vocab_size)
        for token, bias in self.logit_bias.items():
            checks.number("", f"logit_bias of id {token}", bias)
            if not bias <= _LARGEST_BIAS:  # NaN is not
                raise ValueError(
                    f"logit_bias of id {token} is {bias}, expected a number or -inf"
                )
        biases = len(self.logit_bias) + len(self.banned_ids)
        if biases > MAX_BIASES:
            raise ValueError(
                f"logit_bias and banned_ids together hold {biases} ids, at most "
                f"{MAX_BIASES} are supported; use a grammar for more"
            )
        if len(self.stop_token_ids) > MAX_STOP_IDS:
            raise ValueError(
                f"stop_token_ids holds {len(self.stop_token_ids)} ids, at most "
                f"{MAX_STOP_IDS} are supported"
            )


def pack(options: Sequence[SamplingOptions], samples: Sequence[int]) -> Sampling:
    """Packs one request a row into arrays.

    Args:
      options: B requests, validated.
      samples: B indices within the samples of one request.
    """
    rows = len(options)
    bias_ids = np.full((rows, MAX_BIASES), NO_ID, np.int32)
    bias = np.zeros((rows, MAX_BIASES), np.float32)
    stop_ids = np.full((rows, MAX_STOP_IDS), NO_ID, np.int32)
    for row, option in enumerate(options):
        biases = {**option.logit_bias, **dict.fromkeys(option.banned_ids, -np.inf)}
        bias_ids[row, : len(biases)] = list(biases)
        bias[row, : len(biases)] = list(biases.values())
        stop_ids[row, : len(option.stop_token_ids)] = list(option.stop_token_ids)

    def column(name: str, dtype: type) -> jax.Array:
        return jnp.asarray([getattr(o, name) for o in options], dtype)

    seeds = column("seed", jnp.uint32)
    return Sampling(
        key=noise.row_keys(seeds, jnp.asarray(samples, jnp.uint32)),
        max_new_tokens=column("max_new_tokens", jnp.int32),
        min_new_tokens=column("min_new_tokens", jnp.int32),
        temperature=column("temperature", jnp.float32),
        top_k=column("top_k", jnp.int32),
        top_p=column("top_p", jnp.float32),
        min_p=column("min_p", jnp.float32),
        repetition_penalty=column("repetition_penalty", jnp.float32),
        presence_penalty=column("presence_penalty", jnp.float32),
        frequency_penalty=column("frequency_penalty", jnp.float32),
        bias_ids=jnp.asarray(bias_ids),
        bias=jnp.asarray(bias),
        stop_ids=jnp.asarray(stop_ids),
    )


def is_stop(sampling: Sampling, token: jax.Array) -> jax.Array:
    """bool[B]: whether token i32[B] is a stop id of its row."""
    return jnp.any(sampling.stop_ids == token[:, None], axis=1)
