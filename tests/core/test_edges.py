"""Edges of core, verify and decoding: each says which slip it is there for."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from specjax import Engine, Memory
from specjax.checkpoints.chat import ChatTemplate
from specjax.core import processors, reading
from specjax.core import sampling as sampling_lib
from specjax.core import tree as tree_lib
from specjax.decoding import programs
from specjax.decoding.text import GrowingText
from specjax.verify import candidates, walk
from specjax.verify.exact import exact
from tests import tiny_model
from tests.core.test_reading import HIDDEN, WEIGHT, forked


def i32(values):
    return jnp.asarray(np.array(values, np.int32))


def two_rows(**second):
    """(state, sampling) of two rows; the second has other options."""
    options = [
        sampling_lib.SamplingOptions(max_new_tokens=9, **row)
        for row in ({"stop_token_ids": (1,)}, {"stop_token_ids": (1,), **second})
    ]
    state = processors.ProcessorState(
        in_prompt=jnp.zeros((2, 3), jnp.bool_),
        output_count=jnp.zeros((2, 3), jnp.int32),
        num_emitted=i32([0, 0]),
        grammar=i32([0, 0]),
    )
    return state, sampling_lib.pack(options, [0, 0])


# processors.py:_ban_stops, `<` -> `<=`
def test_a_row_that_may_stop_may_do_so_beside_one_that_may_not():
    state, sampling = two_rows(min_new_tokens=2)
    logits = processors.apply(state, sampling, jnp.zeros((2, 3), jnp.float32))
    assert np.isfinite(np.asarray(logits)).tolist() == [[True] * 3, [True, False, True]]


# processors.py:advance, `emitted & (after >= 0)` -> `after >= 0`
def test_a_row_that_emits_nothing_stays_in_its_grammar_state():
    state, sampling = two_rows()
    grammar = sampling_lib.Grammar(
        shared={"next": jnp.ones((2, 3), jnp.int32)}, start=i32([0, 0])
    )
    sampling = dataclasses.replace(sampling, grammar=grammar)
    after = processors.advance(state, sampling, i32([0, 0]), jnp.asarray([True, False]))
    assert after.grammar.tolist() == [1, 0]


# processors.py:_ban_stops, `_unless_empty(banned, logits)` -> `banned`
def test_stops_are_not_banned_where_there_is_nothing_else():
    sampling = sampling_lib.pack(
        [sampling_lib.SamplingOptions(min_new_tokens=2, stop_token_ids=(0, 1, 2))], [0]
    )
    state, _ = two_rows()
    one = jax.tree.map(lambda x: x[:1], state)
    logits = processors.apply(one, sampling, jnp.zeros((1, 3), jnp.float32))
    assert np.isfinite(np.asarray(logits)).all()


# reading.py, `jnp.all(jnp.any(found, axis=1))` -> `jnp.any(...)`
def test_a_row_off_the_spine_beside_one_on_it_has_its_own_logits():
    hidden = jnp.asarray(np.concatenate([HIDDEN, 2 * HIDDEN]))
    tree = jax.tree.map(lambda x: jnp.repeat(x, 2, axis=0), forked())
    read = reading.logits_at(lambda h: h @ jnp.asarray(WEIGHT), hidden, tree, 6)
    found = read(i32([1, 3]))  # 3 is a second child
    expected = np.stack([HIDDEN[0, 1] @ WEIGHT, 2 * HIDDEN[0, 3] @ WEIGHT])
    np.testing.assert_allclose(found, expected, atol=1e-5)


# candidates.py:sibling_law, the comparison of parents
def test_what_another_parent_s_child_was_rejected_for_stays():
    tree = tree_lib.TokenTree(
        token=i32([[9, 0, 1, 0, 1]]),
        parent=i32([[-1, 0, 0, 1, 1]]),
        depth=i32([[0, 1, 1, 2, 2]]),
        tag=i32([[-1, 0, 1, 2, 3]]),
        confidence=jnp.ones((1, 5), jnp.float32),
        num_trunk=i32([1]),
        num_nodes=i32([5]),
        law=i32([[-1, 0, 0, 0, 0]]),
        laws=jnp.asarray([[[0.5, 0.25, 0.25]]], jnp.float32),
    )
    rejected = jnp.asarray([[False, True, False, False, False]])
    law = candidates.sibling_law(tree, i32([4]), rejected, 3)
    np.testing.assert_allclose(law, [[0.5, 0.25, 0.25]], atol=1e-6)


# walk.py:_outcome, `slot + 1 < num_trunk` -> `slot < num_trunk`
def test_a_row_that_emits_nothing_has_no_token_behind_its_trunk(make_view):
    view = make_view(1, 5)
    tree = tree_lib.append_chain(
        tree_lib.trunk(view.history, i32([1]), i32([2]), 4),
        token=i32([[3, 4]]),
        count=i32([2]),
        confidence=jnp.ones((1, 2), jnp.float32),
        anchor=i32([1]),
    )
    verdict = walk.walk(
        exact().verify.args[0],
        lambda slot: jnp.zeros((1, 5), jnp.float32),
        tree,
        view,
        jnp.asarray([False]),
        2,
    )
    assert verdict.outcome.token.tolist() == [[2, 0, 0, 0]]


# text.py:_grow, `min(found)` -> `found[0]`
def test_the_earliest_of_two_stop_strings_in_one_token():
    growing = GrowingText(tiny_model.tokenizer(), ("n", "a"))
    growing.push(tiny_model.tokenizer().encode("an")[0])  # one token
    assert growing.text == ""


# programs.py:resume, `lengths - 1` -> `lengths`: then nothing is left to score
def test_the_last_token_of_a_known_prompt_is_scored_again():
    lm = tiny_model.language_model()
    engine = Engine(lm, "none", widths=(1,), prompt_widths=(16,))
    held = engine.programs
    run = engine.start(engine.prepare([[5, 6, 7, 8]], {"max_new_tokens": 9}))
    run.advance(100)
    tokens = jnp.zeros((1, run.capacity), jnp.int32).at[0, :4].set(i32([5, 6, 7, 8]))
    after = programs.resume(held.recipe, run.state, tokens, i32([4]), run.sampling)
    assert after.num_cached.tolist() == [3]


# programs.py:resume, counters that are not set back
def test_counts_of_a_second_turn_are_its_own():
    lm = dataclasses.replace(
        tiny_model.language_model(),
        chat_template=ChatTemplate(
            "{% for m in messages %}{{ m.content }}{% endfor %}"
        ),
    )
    engine = Engine(lm, "none", widths=(1,), prompt_widths=(16,), max_context=200)
    talk = engine.conversation()
    for question in ("the ban", "an owl"):
        result = talk.send(question, max_new_tokens=7, ignore_eos=True)
        assert result.target_calls == 6
        assert sum(result.rounds_per_width.values()) == 6


# memory.py:fitting, `jax.tree.map(jnp.copy, state)` -> `state`
def test_a_memory_outlives_a_request_that_breaks_off():
    lm = tiny_model.language_model()
    options = {"max_new_tokens": 12, "ignore_eos": True}
    engine = Engine(
        lm, "token_recycling:nodes=3", widths=(1,), prompt_widths=(16,), max_context=100
    )
    memory = Memory()
    engine.generate("the ban", memory=memory, **options)
    kept = memory.state.successor
    next(iter(engine.stream("x", memory=memory, **options)))
    assert not kept.is_deleted()
    assert engine.generate("the ban", memory=memory, **options).tokens


def turn(capacity=256, **options):
    """(held, state, sampling) of a plain engine after a prompt and all it may say."""
    engine = Engine(
        tiny_model.language_model(), "none", widths=(1,), prompt_widths=(16,)
    )
    held = engine.programs
    sampling = sampling_lib.pack([sampling_lib.SamplingOptions(**options)], [0])
    state = programs.blank(held.recipe, held.params, 1, capacity)
    tokens = jnp.zeros((1, capacity), jnp.int32).at[0, :4].set(i32([5, 6, 7, 8]))
    state = held.prompt(state, tokens, i32([4]), sampling)
    return held, held.decode(state, sampling, jnp.int32(300)), sampling, tokens


# programs.py:resume, `log_prob` and `rounds` that are not set back
def test_a_turn_starts_with_no_rounds_and_no_log_probabilities():
    held, state, sampling, tokens = turn(max_new_tokens=9)
    after = programs.resume(held.recipe, state, tokens, i32([4]), sampling)
    assert after.rounds.tolist() == [0]
    assert not np.asarray(after.log_prob).any()


# round.py:_advance, `history.length >= slots` -> `>`
def test_a_full_history_ends_a_row():
    _, state, _, _ = turn(max_new_tokens=400)
    assert state.history.length.tolist() == [256]
    assert state.finish.tolist() == [2]


# round.py:_advance, out of length before stopped
def test_a_stop_id_that_is_the_last_token_is_a_stop():
    engine = Engine(
        tiny_model.language_model(), "none", widths=(1,), prompt_widths=(16,)
    )
    free = engine.generate("banana, banana", max_new_tokens=12).tokens
    last = next(at for at in range(12) if free.index(free[at]) == at and at > 0)
    made = engine.generate(
        "banana, banana", max_new_tokens=last + 1, stop_token_ids=(free[last],)
    )
    assert made.new_tokens == last + 1
    assert made.finish_reason == "stop"


# processors.py:_truncate, `| (scaled == 0)` dropped; 1e-50 is 0 in float32
def test_the_best_token_stays_however_small_top_p_is():
    sampling = sampling_lib.pack(
        [sampling_lib.SamplingOptions(temperature=1.0, top_p=1e-50)], [0]
    )
    one = jax.tree.map(lambda x: x[:1], two_rows()[0])
    logits = processors.apply(one, sampling, jnp.asarray([[1.0, 3.0, 2.0]]))
    assert np.isfinite(np.asarray(logits)).tolist() == [[False, True, False]]
