"""Generation as one pure function, for a user's own jit."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

from pallas_kernels import tree_attention
from specjax import checks, shapes
from specjax.core import contracts, noise
from specjax.core import round as round_lib
from specjax.core import sampling as sampling_lib
from specjax.core import stats as stats_lib
from specjax.decoding import memory as memory_lib
from specjax.decoding import programs
from specjax.drafters import equipped as equipped_lib
from specjax.models import model as model_lib
from specjax.models import placement
from specjax.verify import registry as rules

_SMALLEST = 256  # slots of the smallest cache


class Generation(NamedTuple):
    """What ``decode`` returns.

    Attributes:
      tokens: i32[B, M], new tokens, stop id included; past ``num_new`` they are 0.
      num_new: i32[B].
      finish: i32[B], 1 stopped at a stop id (or idle), 2 out of length.
      log_prob: f32[B, M], of the new tokens under the target's own logits.
      stats: counters of each row.
      memory: the drafter's state, if one was given.
    """

    tokens: jax.Array
    num_new: jax.Array
    finish: jax.Array
    log_prob: jax.Array
    stats: stats_lib.Stats
    memory: contracts.DrafterState | None = None


@dataclasses.dataclass(frozen=True)
class Decode:
    """A pure function ``decode(params, tokens, lengths, sampling, seeds)``.

    jit it, shard it, call it inside another program. It takes prompts in, then runs
    rounds until every row has finished: one program altogether.

    Attributes:
      recipe: target, drafter, verifier and their static plans.
      max_new_tokens: M, capacity for new tokens; a row's own limit is in
        ``sampling.max_new_tokens``.
    """

    recipe: programs.Recipe
    max_new_tokens: int

    def __call__(
        self,
        params: contracts.Params,
        tokens: jax.Array,
        lengths: jax.Array,
        sampling: sampling_lib.Sampling,
        seeds: jax.Array,
        memory: contracts.DrafterState | None = None,
    ) -> Generation:
        """Generates.

        Args:
          params: {"target", "drafter", "verifier"}, see ``params``.
          tokens: i32[B, T], prompts padded on the right.
          lengths: i32[B], 1 to T; 0 leaves a row idle.
          sampling: see ``specjax.sampling``; its key is replaced by ``seeds``.
          seeds: u32[B].
          memory: the drafter's state to start with, ``memory`` of an earlier call
            with the same T; ``blank_memory`` makes the first.

        Raises:
          ValueError: a shape or the memory does not fit, T + M exceeds the model's
            context, or the mesh does not divide B.
        """
        sizes = shapes.check(
            "decode",
            tokens=(tokens, "i32[B, T]"),
            lengths=(lengths, "i32[B]"),
            seeds=(seeds, "u32[B]"),
            temperature=(sampling.temperature, "f32[B]"),
        )
        most = self.max_new_tokens
        context = self.recipe.parts.target.max_context
        if sizes["T"] + most > context:
            raise ValueError(
                f"decode: tokens have {sizes['T']} slots and max_new_tokens is {most}, "
                f"together more than the model's context of {context}"
            )
        if self.recipe.mesh is not None:
            placement.check_rows(self.recipe.mesh, sizes["B"])
        capacity = round_capacity(sizes["T"] + most)
        key = noise.row_keys(seeds, jnp.zeros_like(seeds))
        limit = jnp.minimum(sampling.max_new_tokens, most)
        sampling = dataclasses.replace(sampling, key=key, max_new_tokens=limit)
        padded = jnp.pad(tokens, ((0, 0), (0, capacity - sizes["T"])))
        state = programs.blank(self.recipe, params, sizes["B"], capacity)
        if memory is not None:
            memory_lib.check(memory, state.drafter)
            state = dataclasses.replace(state, drafter=memory)
        state = programs.prompt(self.recipe, params, state, padded, lengths, sampling)
        state = programs.decode(
            self.recipe, params, state, sampling, jnp.int32(capacity)
        )
        made = collect(state, most)
        return made if memory is None else made._replace(memory=state.drafter)

    def blank_memory(
        self, params: contracts.Params, rows: int, slots: int
    ) -> contracts.DrafterState:
        """A drafter's state that knows nothing yet.

        Args:
          params: as for a call.
          rows: B.
          slots: T, slots of ``tokens``.
        """
        capacity = round_capacity(slots + self.max_new_tokens)
        return self.recipe.parts.drafter.init(params, rows, capacity)

    def params(self, lm, drafter=None) -> contracts.Params:
        """The params that a call wants, the shared arrays referenced once.

        On a mesh they are placed there; arrays that lie there already stay.

        Args:
          lm: a loaded language model.
          drafter: the Drafter or Equipped that this function was built with.
        """
        own = {} if drafter is None else equipped_lib.equip(drafter).params
        made = {"target": lm.params, "drafter": own, "verifier": {}}
        return placement.place(self.recipe.mesh, made)


def round_capacity(slots: int) -> int:
    """The smallest capacity that holds ``slots`` and that attention can block."""
    if slots <= _SMALLEST:
        return _SMALLEST
    return -(-slots // tree_attention.BLOCK) * tree_attention.BLOCK


def collect(state: round_lib.State, max_new_tokens: int) -> Generation:
    """The new tokens of a finished state, at most M of them a row."""
    history = state.history
    step = jnp.arange(max_new_tokens, dtype=jnp.int32)[None]
    at = history.prompt_length[:, None] + step
    at = jnp.minimum(at, history.tokens.shape[1] - 1)
    num_new = history.length - history.prompt_length
    inside = step < num_new[:, None]
    return Generation(
        tokens=jnp.where(inside, jnp.take_along_axis(history.tokens, at, axis=1), 0),
        num_new=num_new,
        finish=state.finish,
        log_prob=jnp.where(
            inside, jnp.take_along_axis(state.log_prob, at, axis=1), 0.0
        ),
        stats=state.stats,
    )


def build(
    model: model_lib.Model | contracts.Target,
    drafter: contracts.Drafter | equipped_lib.Equipped,
    *,
    max_new_tokens: int,
    verifier: contracts.Verifier | str | None = None,
    widths: tuple[int, ...] = programs.WIDTHS,
    prompt_widths: tuple[int, ...] = programs.PROMPT_WIDTHS,
    mesh: jax.sharding.Mesh | None = None,
) -> Decode:
    """Makes a pure generation function of a model and a drafter.

    Args:
      model: ``lm.model`` of a loaded language model, or a Target of one's own.
      drafter: what drafts.
      max_new_tokens: capacity for new tokens.
      verifier: a rule or its name, ``exact()`` by default.
      widths: ladder of decode rounds.
      prompt_widths: chunks that prompts go in by.
      mesh: with axes "data" and "model", or one of them: the program is split over
        its devices. Load the model on the same one (``specjax.load(..., mesh=)``), so
        that no device ever holds all of it.

    Raises:
      ValueError: ``max_new_tokens`` or a width is below 1, verifier and drafter don't
        fit, or the mesh does not divide the model.
      TypeError: an argument is of the wrong kind.
    """
    checks.integer("", "max_new_tokens", max_new_tokens, 1)
    known = isinstance(model, model_lib.Model)
    if not known and not isinstance(model, contracts.Target):
        raise TypeError(
            "model must be a Model (lm.model of a loaded one) or a Target, got "
            f"{type(model).__name__}"
        )
    if mesh is not None:
        mesh = placement.automatic(mesh)
        if known:
            placement.check(mesh, model.config)
    recipe = programs.recipe(
        model.target if known else model,
        equipped_lib.equip(drafter).drafter,
        rules.resolve(verifier),
        widths=widths,
        prompt_widths=prompt_widths,
        mesh=mesh,
    )
    return Decode(recipe, max_new_tokens)


def sampling(rows: int, **options) -> sampling_lib.Sampling:
    """Sampling arrays with the same options in every row.

    Args:
      rows: B.
      **options: fields of ``SamplingOptions``: temperature, top_k, top_p, ...

    Raises:
      ValueError: a value is out of range.
      TypeError: a value is of the wrong kind.
    """
    rows = checks.integer("", "rows", rows, 1)
    chosen = sampling_lib.SamplingOptions(**options)
    chosen.validate(vocab_size=2**31 - 1)
    return sampling_lib.pack([chosen] * rows, [0] * rows)
