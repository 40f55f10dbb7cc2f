"""A second model as a drafter: catching up, agreeing, being wrong."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import Engine, drafters, sampling
from specjax.core import tree as tree_lib
from specjax.decoding import programs
from specjax.verify.exact import exact
from tests import tiny_model
from tests.bigram import bigram
from tests.drafters.fixed import fixed
from tests.drafters.table_target import greedy, run, table, table_target

TEXT = "the ban and the ban and the"
VOCAB = 6
MODEL, TABLE, OTHER = table_target(VOCAB), table(VOCAB, 0), table(VOCAB, 1)
PROMPT = (1, 4, 2)
WIDTHS = {"widths": (1,), "prompt_widths": (16,)}


@pytest.fixture(scope="module")
def lm():
    return tiny_model.language_model()


@pytest.fixture(scope="module")
def plain(lm):
    return Engine(lm, **WIDTHS)


def engine(lm, small, **options):
    return Engine(lm, drafters.draft_model(small, **options), **WIDTHS)


@pytest.fixture(scope="module")
def own(lm):
    """The target as its own draft model."""
    return engine(lm, lm, max_draft=4)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_target_as_its_own_draft_model_is_always_right(own, plain, temperature):
    """Coupled noise: equal laws agree at any temperature, not only when greedy."""
    options = {"max_new_tokens": 31, "temperature": temperature, "ignore_eos": True}
    ours = own.generate(TEXT, **options)
    assert ours.tokens == plain.generate(TEXT, **options).tokens
    assert ours.target_calls == 6  # 30 tokens after the first, 5 a call
    assert ours.accepted == 24


def test_penalties_reach_the_draft_model(own, plain):
    options = {
        "max_new_tokens": 31,
        "repetition_penalty": 1.5,
        "frequency_penalty": 0.5,
        "ignore_eos": True,
    }
    ours = own.generate(TEXT, **options)
    assert ours.tokens == plain.generate(TEXT, **options).tokens
    assert ours.target_calls == 6


def test_a_draft_model_that_is_always_wrong_changes_nothing():
    """Its best token is the target's worst."""
    drafter = drafters.speculate(MODEL, max_draft=3)
    out = run(drafter, {"model": -TABLE, "drafter": {}}, TABLE, PROMPT)
    assert out.tokens[0].tolist() == greedy(TABLE, PROMPT, 24)
    assert int(out.stats.accepted[0]) == 0
    assert int(out.stats.target_calls[0]) == 23


def test_it_speculates_itself(lm, plain):
    """A decoder is a drafter: prompt lookup under a draft model under the target."""
    small = tiny_model.language_model(num_layers=1)
    inner = drafters.prompt_lookup(max_draft=3)
    nested = drafters.speculate(small.model.target, drafter=inner, max_draft=4)
    weights = {"model": small.params, "drafter": {}}
    made = drafters.Equipped(nested, weights, small.fingerprint)
    ours = Engine(lm, made, **WIDTHS).generate(TEXT, max_new_tokens=20)
    assert ours.tokens == plain.generate(TEXT, max_new_tokens=20).tokens


def test_it_catches_up_after_rounds_without_drafts(own):
    """Cached positions follow the history, whatever happened in between."""
    held = own.programs
    ids = np.zeros((1, 256), np.int32)
    ids[0, :60] = np.arange(60) % 37 + 3
    sampled = sampling(1, max_new_tokens=64)
    state = programs.blank(held.recipe, held.params, 1, 256)
    state = held.prompt(state, jnp.asarray(ids), jnp.asarray([60], jnp.int32), sampled)
    # Lose the memo: the draft model takes the whole text in again, then agrees.
    fresh = held.recipe.parts.drafter.init(held.params, 1, 256)
    state = dataclasses.replace(state, drafter=fresh)
    state = held.decode(state, sampled, jnp.int32(2))
    assert int(state.stats.accepted[0]) == 8
    length = int(state.history.length[0])
    assert int(state.drafter.num_cached[0]) >= length - 2


def test_a_turn_that_is_a_prefix_of_the_last_one(lm, own):
    """All of the text is cached already; the last token is taken in again."""
    held = own.programs
    ids = lm.tokenizer.encode(TEXT)
    sampled = sampling(1, max_new_tokens=20)

    def turn(state, ids):
        tokens = np.zeros((1, 256), np.int32)
        tokens[0, : len(ids)] = ids
        lengths = jnp.asarray([len(ids)], jnp.int32)
        state = held.prompt(state, jnp.asarray(tokens), lengths, sampled)
        state = held.decode(state, sampled, jnp.int32(100))
        length = int(state.history.length[0])
        return state, np.asarray(state.history.tokens)[0, :length].tolist()

    state, first = turn(programs.blank(held.recipe, held.params, 1, 256), ids)
    _, second = turn(state, first[: len(ids) + 3])
    assert second[: len(first)] == first
    assert len(second) == len(ids) + 3 + 20


def weights(logits, inner=None):
    return {"model": logits, "drafter": {} if inner is None else inner}


@pytest.mark.parametrize("lenience", [1.0, 3.0])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_lenient_reviews_change_no_token(lenience, temperature):
    """Reviews by another model than the target, of drafts by a third."""
    inner = drafters.speculate(MODEL, max_draft=3)
    outer = drafters.speculate(MODEL, drafter=inner, max_draft=5, lenience=lenience)
    params = weights(OTHER, weights(table(VOCAB, 2)))
    plain = run(drafters.none(), {}, TABLE, PROMPT, rows=4, temperature=temperature)
    ours = run(outer, params, TABLE, PROMPT, rows=4, temperature=temperature)
    np.testing.assert_array_equal(ours.tokens, plain.tokens)
    assert int(jnp.sum(ours.stats.accepted)) > 0


def test_lenient_reviews_keep_what_the_inner_drafter_says():
    """The inner drafter knows the target; the review between them would not agree.

    Of four drafts three are the inner drafter's, the last is the reviewer's own.
    """
    inner = drafters.speculate(MODEL, max_draft=4)
    outer = drafters.speculate(MODEL, drafter=inner, max_draft=4, lenience=1e6)
    params = weights(OTHER, weights(TABLE))
    out = run(outer, params, TABLE, PROMPT, rows=4, temperature=1.0)
    kept = jnp.sum(out.stats.accepted_at, axis=0)
    assert int(kept[2]) == int(jnp.sum(out.stats.drafted // 4)) >= 20  # whole drafts
    assert int(kept[3]) < int(kept[2]) / 2


def test_one_review_a_call():
    """The chain of an inner drafter that is always right, and one token more."""
    inner = drafters.speculate(MODEL, max_draft=2)
    outer = drafters.speculate(MODEL, drafter=inner, max_draft=9, once=True)
    assert outer.bounds == (3, 3, 1)
    right = run(outer, weights(TABLE, weights(TABLE)), TABLE, PROMPT)
    assert right.stats.accepted_at.shape == (1, 3)
    assert int(right.stats.drafted[0]) >= 3 * int(right.stats.target_calls[0]) - 3
    wrong = run(outer, weights(TABLE, weights(-TABLE)), TABLE, PROMPT)
    assert int(wrong.stats.drafted[0]) == int(wrong.stats.target_calls[0]) - 1


def test_an_inner_drafter_with_branches_and_best_ids():
    """It gets the inner model's best ids, as many as it asked for."""
    nodes = ((1, -1, 0.5), (2, -1, 0.5), (3, 0, 0.5), (4, 1, 0.5))
    inner = fixed(*nodes, top_k=2)
    outer = drafters.speculate(MODEL, drafter=inner, max_draft=4)
    out = run(outer, weights(TABLE), TABLE, PROMPT)
    assert out.tokens[0].tolist() == greedy(TABLE, PROMPT, 24)
    assert int(out.stats.accepted[0]) >= 18  # the model is the target itself


def test_an_inner_drafter_observes_the_whole_prompt():
    """The pair before the first new token is seen too, and that one only once."""
    outer = drafters.speculate(
        MODEL, drafter=bigram(vocab_size=VOCAB, max_draft=2), max_draft=2
    )
    recipe = programs.recipe(MODEL, outer, exact(), widths=(1,), prompt_widths=(4,))
    params = {"target": TABLE, "drafter": weights(OTHER), "verifier": {}}
    state = programs.blank(recipe, params, 1, 32)
    tokens = (
        jnp.zeros((1, 32), jnp.int32)
        .at[0, :6]
        .set(jnp.asarray([1, 2, 3, 4, 5, 0], jnp.int32))
    )
    state = programs.prompt(
        recipe, params, state, tokens, jnp.asarray([6], jnp.int32), sampling(1)
    )
    table = np.asarray(state.drafter.drafter)[0]
    assert table[1:6].tolist() == [2, 3, 4, 5, 0]


def view_of(make_view, room, **options):
    """A view of rows with the texts 0 1 2, and room for this many tokens each."""
    view = make_view(len(room), VOCAB, **options)
    return dataclasses.replace(view, room=jnp.asarray(room, jnp.int32))


def propose(drafter, params, view, spine=()):
    """Drafts behind a spine, as a list a row."""
    rows = view.room.shape[0]
    slots = 1 + len(spine) + drafter.bounds.nodes + 3  # wider than it needs
    end = view.history.length - 1
    tree = tree_lib.trunk(view.history, end, jnp.ones_like(end), slots)
    if spine:
        tree = tree_lib.append_chain(
            tree,
            token=jnp.tile(jnp.asarray([spine], jnp.int32), (rows, 1)),
            count=jnp.full((rows,), len(spine), jnp.int32),
            confidence=jnp.ones((rows, len(spine)), jnp.float32),
            anchor=jnp.zeros((rows,), jnp.int32),
        )
    params = {"drafter": params}
    state = drafter.init(params, rows, view.history.tokens.shape[1])
    tree, _ = jax.jit(drafter.propose)(params, state, view, tree)
    count = np.asarray(tree.num_nodes)
    token = np.asarray(tree.token)
    return [token[row, 1 + len(spine) : count[row]].tolist() for row in range(rows)]


def test_room_counts_from_the_text_and_not_from_the_spine(make_view):
    drafter = drafters.speculate(MODEL, max_draft=4)
    view = view_of(make_view, [0, 1, 2, 3, 9])
    counts = [len(row) for row in propose(drafter, weights(TABLE), view)]
    assert counts == [0, 0, 1, 2, 4]
    behind = propose(drafter, weights(TABLE), view, spine=(3,))
    assert [len(row) for row in behind] == [0, 0, 0, 1, 4]
    assert behind[4] == greedy(TABLE, (0, 1, 2, 3), 4)


def test_nothing_follows_a_stop_id_on_the_spine(make_view):
    drafter = drafters.speculate(MODEL, max_draft=4)
    view = view_of(make_view, [9], stop_token_ids=(3,))
    assert propose(drafter, weights(TABLE), view, spine=(3,)) == [[]]
    assert propose(drafter, weights(TABLE), view, spine=(4,)) != [[]]


def test_processors_know_the_spine(make_view):
    """A token of the spine is penalised so much that it is not drafted again."""
    drafter = drafters.speculate(MODEL, max_draft=1)
    likely = TABLE.at[:, :, 3].set(20.0)
    view = view_of(make_view, [9], presence_penalty=100.0)
    assert propose(drafter, weights(likely), view, spine=(4,)) == [[3]]
    assert propose(drafter, weights(likely), view, spine=(3,)) != [[3]]


def test_a_text_as_long_as_the_model_reads(make_view):
    """Three tokens of four are there already, so one more may be drafted."""
    drafter = drafters.speculate(table_target(VOCAB, max_context=4), max_draft=4)
    view = view_of(make_view, [9])
    assert len(propose(drafter, weights(TABLE), view)[0]) == 1


@pytest.mark.parametrize(
    "options", [{"max_draft": 0}, {"lenience": 0.9}, {"lenience": float("nan")}]
)
def test_bad_options(options):
    with pytest.raises(ValueError, match=f"speculate: {next(iter(options))}"):
        drafters.speculate(MODEL, **options)
