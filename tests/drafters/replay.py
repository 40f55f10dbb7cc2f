"""Runs a drafter over a scripted target and compares it draft for draft.

The target is a fixed pseudo-random function of (token, position mod PERIOD), so the
best ids after any node of any tree are known without a model, and the texts repeat
themselves now and then. Real rounds run; a recorder around the drafter notes what it
drafted and what it was shown.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from specjax.core import contracts, noise
from specjax.core import round as round_lib
from specjax.core import sampling as sampling_lib
from specjax.decoding import programs
from specjax.drafters import equipped
from specjax.verify.exact import exact

PERIOD = 3
CAPACITY = 256
PROMPT_WIDTHS = (4, 16)


class Round(NamedTuple):
    """What one row saw of one round.

    Attributes:
      text: committed tokens before the round; all of the prompt while it goes in.
      start: how many of them the target's cache held.
      room: tokens that might still be emitted, 0 while a prompt goes in.
      trunk: how many tokens the trunk held.
      drafts: (token, parent) of each draft; a parent is an index of ``drafts``, or
        -1 under the trunk.
      tags: of the drafts.
      path: indices of the accepted drafts.
      after: token after each path node, trunk nodes included.
      new: tokens emitted.
      top_ids: i32[trunk + drafts, K], or None.
    """

    text: list[int]
    start: int
    room: int
    trunk: int
    drafts: list[tuple[int, int]]
    tags: list[int]
    path: list[int]
    after: list[int]
    new: list[int]
    top_ids: np.ndarray | None


class Oracle(Protocol):
    """A slow drafter of one row, in plain Python."""

    def propose(self, text: list[int], room: int) -> list[tuple[int, int]]:
        """Drafts as (token, parent), in the order of the device's nodes."""
        ...

    def observe(self, seen: Round) -> None:
        """Learns from a round."""
        ...


def scripted_target(vocab_size: int) -> contracts.Target:
    """A target whose logits are a hash of token and position."""

    def forward(params, tree, cache, start, features):
        del params, cache
        position = (start[:, None] + tree.depth) % PERIOD
        hidden = jnp.stack([tree.token, position], axis=2).astype(jnp.float32)
        kept = jnp.tile(hidden, (1, 1, len(features))) if features else None
        return contracts.Scored(hidden, kept, ())

    def head(params, hidden):
        del params
        seed = (hidden[:, 0] * PERIOD + hidden[:, 1]).astype(jnp.uint32)
        key = noise.row_keys(seed, jnp.zeros_like(seed))
        ids = jnp.arange(vocab_size, dtype=jnp.int32)
        return 3.0 * noise.gumbel(key, jnp.zeros_like(hidden[:, 0], jnp.int32), ids)

    return contracts.Target(
        init=lambda rows, capacity: (),
        forward=forward,
        head=head,
        pad=lambda rows, slots: rows,
        commit=lambda cache, rows, path_slot, start, count: cache,
        rewind=lambda cache, length: cache,
        vocab_size=vocab_size,
        max_context=10**6,
    )


def record(
    drafter: equipped.AnyDrafter,
    prompts: Sequence[Sequence[int]],
    *,
    vocab_size: int = 7,
    rounds: int = 25,
    **options: Any,
) -> list[list[Round]]:
    """Runs a batch of prompts; returns the rounds of each row.

    Args:
      drafter: the drafter.
      prompts: token ids below ``vocab_size``.
      vocab_size: of the scripted target.
      rounds: decode rounds to run, fewer where all rows finish.
      **options: fields of ``SamplingOptions``.
    """
    held = equipped.equip(drafter)
    recipe = programs.recipe(
        scripted_target(vocab_size),
        _recorder(held.drafter),
        exact(),
        widths=(1,),
        prompt_widths=PROMPT_WIDTHS,
    )
    params = {"target": {}, "drafter": held.params, "verifier": {}}
    sampling = sampling_lib.pack(
        [sampling_lib.SamplingOptions(**{"max_new_tokens": 100, **options})]
        * len(prompts),
        list(range(len(prompts))),
    )
    tokens = np.zeros((len(prompts), CAPACITY), np.int32)
    for row, prompt in enumerate(prompts):
        tokens[row, : len(prompt)] = prompt
    lengths = jnp.asarray([len(prompt) for prompt in prompts], jnp.int32)
    state = programs.blank(recipe, params, len(prompts), CAPACITY)
    state = programs.resume(recipe, state, jnp.asarray(tokens), lengths, sampling)
    seen: list[list[Round]] = [[] for _ in prompts]
    plans = {"prompt": recipe.prompt_plan, "decode": recipe.decode_plan}
    steps = {
        name: jax.jit(
            lambda state, plan=plan: round_lib.run(
                recipe.parts, plan, params, state, sampling
            )
        )
        for name, plan in plans.items()
    }
    while bool(jnp.any(_waiting(state))):
        state = _step(steps["prompt"], state, seen, decoding=False)
    for _ in range(rounds):
        if not bool(jnp.any(state.finish == round_lib.RUNNING)):
            break
        state = _step(steps["decode"], state, seen, decoding=True)
    return seen


def check(
    drafter: equipped.AnyDrafter,
    make_oracle: Callable[[], Oracle],
    prompts: Sequence[Sequence[int]],
    **options: Any,
) -> list[list[Round]]:
    """Asserts that device and oracle draft the same in every round of every row.

    Returns:
      The rounds, so that a test can assert that something was drafted at all.
    """
    runs = record(drafter, prompts, **options)
    for row, run in enumerate(runs):
        oracle = make_oracle()
        for index, seen in enumerate(run):
            if seen.room:
                drafted = oracle.propose(seen.text, seen.room)
                assert seen.drafts == drafted, f"row {row}, round {index}: {seen.text}"
            oracle.observe(seen)
    return runs


def _waiting(state):
    return (state.finish == round_lib.RUNNING) & (state.processors.num_emitted == 0)


def _recorder(child: contracts.Drafter) -> contracts.Drafter:
    """The drafter, its state followed by what it was shown last."""

    def init(params, rows, capacity):
        return child.init(params, rows, capacity), None

    def propose(params, state, view, tree):
        tree, inner = child.propose(params, state[0], view, tree)
        return tree, (inner, view)

    def observe(params, state, view, tree, outcome):
        inner = child.observe(params, state[0], view, tree, outcome)
        return inner, (state[1], view, tree, outcome)

    return child._replace(init=init, propose=propose, observe=observe)


def _step(step, state, seen, *, decoding):
    """Runs a round, files what each row saw, and forgets the recording."""
    before = state
    state = step(state)
    inner, shown = state.drafter
    for row, run in enumerate(seen):
        entry = _entry(row, before, jax.tree.map(np.asarray, shown), decoding)
        if entry is not None:
            run.append(entry)
    return dataclasses.replace(state, drafter=(inner, None))


def _entry(row, before, shown, decoding) -> Round | None:
    """The round as one row saw it; None where the row had nothing to do."""
    proposing, view, tree, outcome = shown
    trunk, nodes = int(tree.num_trunk[row]), int(tree.num_nodes[row])
    if trunk == 0:
        return None
    num_path = int(outcome.num_path[row])
    length = int(before.history.length[row])
    top_ids = outcome.top_ids
    return Round(
        text=np.asarray(before.history.tokens)[row, :length].tolist(),
        start=int(view.start[row]),
        room=int(proposing.room[row]) if decoding else 0,
        trunk=trunk,
        drafts=[
            (int(tree.token[row, n]), max(int(tree.parent[row, n]) - trunk, -1))
            for n in range(trunk, nodes)
        ],
        tags=tree.tag[row, trunk:nodes].tolist(),
        path=(outcome.path_slot[row, trunk:num_path] - trunk).tolist(),
        after=outcome.token[row, :num_path].tolist(),
        new=outcome.token[row, trunk - 1 : trunk - 1 + outcome.num_new[row]].tolist(),
        top_ids=None if top_ids is None else top_ids[row, :nodes],
    )
