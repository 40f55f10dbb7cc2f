"""What a drafter itself costs."""

import specjax
from specjax.evaluation import parts
from tests import tiny_model


def test_memory_and_times():
    lm = tiny_model.language_model(num_layers=1)
    made = specjax.drafters.make("context_ngrams:buckets=16:max_phrases=2", lm)
    found = parts.measure(specjax.Engine(lm, made), 256)
    # 16 buckets of a key and 2 phrases of 4 tokens, stamp and count each; the clock.
    assert found["drafter_mb"] == 4 * (16 * (1 + 2 * (4 + 2)) + 1) / 1e6
    assert 0 < found["propose_ms"] < 1e4
    assert 0 < found["observe_ms"] < 1e4


def test_a_new_token_is_there_to_be_learnt():
    lm = tiny_model.language_model(num_layers=1)
    made = specjax.drafters.make("context_ngrams", lm)
    engine = specjax.Engine(lm, made)
    held = engine.programs
    view = parts._view(engine, 1, 256)
    seen = parts.after(view)
    drafter = held.recipe.parts.drafter
    state = drafter.init(held.params, 1, 256)
    slots = held.recipe.decode_plan.widths[-1]
    tree = parts.trunk(view, slots)
    learnt = drafter.observe(
        held.params, state, seen, tree, parts._outcome(engine, 1, slots)
    )
    assert int(learnt.table.clock[0]) == 1
