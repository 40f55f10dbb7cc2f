"""Benchmarks of the tiny model, run in this process."""

import dataclasses

import pytest

import specjax
from specjax import verify
from specjax.checkpoints import ChatTemplate
from specjax.evaluation import bench, plan, prompts
from specjax.evaluation import rows as rows_lib
from tests import tiny_model

TEMPLATE = (
    "{% for message in messages %}{{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}>{% endif %}"
)
QUESTIONS = [
    prompts.Question(question_id=i, category="c", turns=(f"the {i} the", "than the"))
    for i in range(2)
]
SAMPLING = {"max_new_tokens": 8, "ignore_eos": True}


@pytest.fixture(scope="module")
def lm():
    made = tiny_model.language_model(num_layers=1)
    return dataclasses.replace(made, chat_template=ChatTemplate(TEMPLATE))


@pytest.fixture(scope="module")
def singly(lm, tmp_path_factory):
    """Rows of plain decoding one at a time, and their file."""
    path = tmp_path_factory.mktemp("bench") / "rows.jsonl"
    drafters = {"none": specjax.drafters.none()}
    asked = plan.Plan(sampling=SAMPLING)
    return bench.run(lm, drafters, QUESTIONS, asked, out=path), path


def test_conversations_are_the_same_with_drafts(lm):
    drafters = {
        "none": specjax.drafters.none(),
        "x": specjax.drafters.prompt_lookup(max_draft=3, min_ngram=1),
    }
    asked = plan.Plan(sampling=SAMPLING, turns="all", repeats=2)
    rows = bench.run(lm, drafters, QUESTIONS, asked)
    order = [(r["question_id"], r["turn"], r["drafter"]) for r in rows]
    assert order == [(q, t, d) for q in (0, 1) for t in (0, 1) for d in drafters]
    assert all(row["identical"] and row["runs_agree"] for row in rows)
    assert all(len(row["decode_seconds_of_runs"]) == 2 for row in rows)
    assert all(row["compile_seconds"] == 0 for row in rows)


def test_a_batch_against_one_at_a_time(lm, singly):
    asked = plan.Plan(sampling=SAMPLING, batch_size=2)
    drafters = {"none": specjax.drafters.none()}
    rows = bench.run(lm, drafters, QUESTIONS, asked, reference=singly[0])
    assert [row["identical"] for row in rows] == [True, True]
    assert [row["batch"] for row in rows] == [2, 2]


def test_an_interrupted_run_goes_on(lm, singly, tmp_path):
    rows, path = singly
    cut = tmp_path / "cut.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    cut.write_bytes(lines[0] + lines[1][:30])
    # A wrong reference shows a difference, with its place and margin.
    wrong = [{**row, "tokens": [*row["tokens"][:3], 7]} for row in rows]
    drafters = {"none": specjax.drafters.none()}
    asked = plan.Plan(sampling=SAMPLING)
    after = bench.run(lm, drafters, QUESTIONS, asked, out=cut, reference=wrong)
    assert after[0] == rows[0]
    assert after[1]["tokens"] == rows[1]["tokens"]
    assert rows_lib.read(cut) == after
    assert (after[1]["identical"], after[1]["first_difference"]) == (False, 3)
    assert after[1]["margin_at_difference"] > 0


def test_no_margins_where_tokens_differ_by_right(lm):
    """Under a rule that keeps the law only a difference is no near tie."""
    drafters = {
        "none": specjax.drafters.none(),
        "x": specjax.drafters.make("draft_model:layers=1:laws=true", lm),
    }
    asked = plan.Plan(sampling={**SAMPLING, "temperature": 1.0})
    rule = verify.rejection()
    rows = bench.run(lm, drafters, QUESTIONS, asked, verifier=rule)
    assert not all(row["identical"] for row in rows)
    assert all(row["margin_at_difference"] is None for row in rows)


def test_none_must_be_there(lm):
    drafters = {"x": specjax.drafters.prompt_lookup()}
    with pytest.raises(ValueError, match="none"):
        bench.run(lm, drafters, QUESTIONS)


def test_what_was_learnt_goes_on_when_asked(lm):
    """The state goes on from prompt to prompt, and each repeat begins with it."""
    made = specjax.drafters.make("token_recycling:nodes=7:warm_prompt=false", lm)
    drafters = {"none": specjax.drafters.none(), "x": made}
    twice = [QUESTIONS[0], dataclasses.replace(QUESTIONS[0], question_id=9)]
    calls = {}
    for keep in (False, True):
        asked = plan.Plan(sampling=SAMPLING, keep=keep, repeats=2)
        rows = bench.run(lm, drafters, twice, asked)
        assert all(row["identical"] and row["runs_agree"] for row in rows)
        calls[keep] = [r["target_calls"] for r in rows if r["drafter"] == "x"]
        (size,) = {row["drafter_mb"] for row in rows if row["drafter"] == "x"}
        assert size == 4 * lm.model.config.vocab_size * 8 / 1e6
    assert calls[False][0] == calls[False][1] == calls[True][0]
    assert calls[True][1] < calls[True][0]


def test_a_run_that_broke_off_can_not_go_on_with_what_was_learnt(lm, tmp_path):
    out = tmp_path / "rows.jsonl"
    drafters = {"none": specjax.drafters.none()}
    asked = plan.Plan(sampling=SAMPLING, keep=True)
    bench.run(lm, drafters, QUESTIONS, asked, out=out)
    lines = out.read_text().splitlines(keepends=True)
    out.write_text("".join(lines[:-1]))
    with pytest.raises(ValueError, match=r"keep: .*begin anew"):
        bench.run(lm, drafters, QUESTIONS, asked, out=out)


def test_a_smaller_last_batch_can_not_go_on_with_what_was_learnt(lm):
    three = [*QUESTIONS, dataclasses.replace(QUESTIONS[0], question_id=9)]
    asked = plan.Plan(sampling=SAMPLING, keep=True, batch_size=2)
    with pytest.raises(ValueError, match="keep: batch_size=2 leaves"):
        bench.run(lm, {"none": specjax.drafters.none()}, three, asked)
