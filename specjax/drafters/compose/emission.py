"""The laws of an inner decoder's tokens, brought out of its rounds.

A round hands a verifier's outcome to its drafter. So the verifier here adds the laws
to the outcome, and a drafter around the inner one takes them down.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp

from specjax.core import contracts
from specjax.core import outcome as outcome_lib
from specjax.verify import lenient as lenient_lib


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class LawfulOutcome(outcome_lib.Outcome):
    """An outcome with the laws of its tokens.

    Attributes:
      laws: f32[B, L, V], of the emitted tokens in order, then 0.
    """

    laws: jax.Array  # f32[B, L, V]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """What the inner drafter remembers, and the laws taken down beside it.

    Attributes:
      child: the inner drafter's state.
      key: u32[B, 2], the noise key that it is shown.
      start: i32[B], history position of the first token whose law is kept.
      laws: f32[B, D, V], of the tokens from there on, 0 where none was emitted.
    """

    child: contracts.DrafterState
    key: jax.Array  # u32[B, 2]
    start: jax.Array  # i32[B]
    laws: jax.Array  # f32[B, D, V]


@functools.cache
def lawful(lenience: float) -> contracts.Verifier:
    """`lenient`, drawing by the key that it is given, with laws in its outcomes."""
    rule = lenient_lib.lenient(lenience, coupled=True)

    def verify(logits_at, tree, view, ready, depth):
        verdict = rule.verify(logits_at, tree, view, ready, depth)
        laws = lenient_lib.emission_laws(
            logits_at, tree, view, verdict.outcome, depth, lenience
        )
        fields = dataclasses.fields(outcome_lib.Outcome)
        found = {field.name: getattr(verdict.outcome, field.name) for field in fields}
        return verdict._replace(outcome=LawfulOutcome(**found, laws=laws))

    return rule._replace(verify=verify)


@functools.cache
def recorded(child: contracts.Drafter) -> contracts.Drafter:
    """The drafter, with a Record for its state; it knows nothing of the review's noise.

    A draft that went by the same noise would tell what the review is going to draw,
    and then the law of that would be another one.
    """

    def propose(params, state, view, tree):
        sampling = dataclasses.replace(view.sampling, key=state.key)
        view = dataclasses.replace(view, sampling=sampling)
        tree, inner = child.propose(params, state.child, view, tree)
        return tree, dataclasses.replace(state, child=inner)

    def observe(params, state, view, tree, outcome):
        inner = child.observe(params, state.child, view, tree, outcome)
        step = jnp.arange(outcome.laws.shape[1], dtype=jnp.int32)[None]
        first = view.history.length - outcome.num_new - state.start
        new = step < outcome.num_new[:, None]
        at = jnp.where(new, first[:, None] + step, state.laws.shape[1])
        laws = jax.vmap(lambda row, at, x: row.at[at].set(x, mode="drop"))(
            state.laws, at, outcome.laws
        )
        return dataclasses.replace(state, child=inner, laws=laws)

    return child._replace(propose=propose, observe=observe)
