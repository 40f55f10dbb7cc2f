"""Prompts, options, stops, streams and conversations of the engine."""

import dataclasses
import warnings

import jax.numpy as jnp
import numpy as np
import pytest

from specjax import Engine, UselessDrafterWarning, drafters, generate, stream
from specjax.checkpoints import ChatTemplate
from specjax.core import contracts
from specjax.core import tree as tree_lib
from specjax.decoding.text import GrowingText
from tests import tiny_model

TEXT = "the ban and the ban and the"
WIDTHS = {"widths": (1,), "prompt_widths": (16,)}


@pytest.fixture(scope="module")
def lm():
    return tiny_model.language_model()


@pytest.fixture(scope="module")
def engine(lm):
    return Engine(lm, drafters.prompt_lookup(), **WIDTHS)


@pytest.fixture(scope="module")
def free(engine):
    """What the prompt gives without any stop."""
    return engine.generate(
        TEXT, max_new_tokens=40, ignore_eos=True, seed=1, temperature=1
    )


def test_kinds_of_prompt(engine, lm):
    ids = lm.tokenizer.encode(TEXT)
    options = {"max_new_tokens": 8}
    text = engine.generate(TEXT, **options)
    assert engine.generate(ids, **options).tokens == text.tokens
    batch = engine.generate([TEXT, TEXT], **options)
    assert [result.tokens for result in batch] == [text.tokens] * 2
    assert [r.tokens for r in engine.generate([ids, ids], **options)] == [
        text.tokens
    ] * 2
    assert text.prompt_tokens == len(ids)


@pytest.mark.parametrize(
    ("prompt", "options", "message"),
    [
        ("", {}, "prompt is empty"),
        ("  \n", {}, "prompt is empty"),
        ([], {}, "empty"),
        ([[]], {}, "prompt is empty"),
        ([5, -1], {}, "id -1"),
        ([10**6], {}, "ids are 0 to"),
        ([{"role": "user", "content": "x"}], {}, "no chat template"),
        (TEXT, {"chat": True}, "no chat template"),
        (TEXT, {"max_new_tokens": 0}, "max_new_tokens must be at least 1"),
        (TEXT, {"max_new_tokens": 511}, "exceed the context of 512"),
        ("x" * 600, {}, "exceed the context"),
        (TEXT, {"temperature": -0.1}, "temperature"),
        (TEXT, {"temperature": float("nan")}, "temperature must be finite"),
        (TEXT, {"top_p": 0.0}, "top_p"),
        (TEXT, {"top_p": 1.1}, "top_p"),
        (TEXT, {"top_k": -1}, "top_k"),
        (TEXT, {"min_p": 2.0}, "min_p"),
        (TEXT, {"repetition_penalty": 0.0}, "repetition_penalty"),
        (TEXT, {"min_new_tokens": 300}, "min_new_tokens"),
        (TEXT, {"logit_bias": {999: 1.0}}, "logit_bias holds id 999"),
        (TEXT, {"logit_bias": {1: float("nan")}}, "logit_bias of id 1"),
        (TEXT, {"banned_ids": [-2]}, "banned_ids"),
        (TEXT, {"stop_token_ids": [260]}, "stop_token_ids"),
        (TEXT, {"stop": [""]}, "stop holds an empty string"),
        (TEXT, {"num_samples": 0}, "num_samples"),
        (TEXT, {"seed": -1}, "seed"),
        (TEXT, {"temprature": 1.0}, "not a sampling option"),
    ],
)
def test_bad_requests_compile_nothing(engine, prompt, options, message):
    before = engine.programs.count
    with pytest.raises(ValueError, match=message):
        engine.generate(prompt, **options)
    assert engine.programs.count == before


@pytest.mark.parametrize(
    ("prompt", "options", "message"),
    [
        (b"abc", {}, "prompt must be text"),
        (7, {}, "prompt must be text"),
        ([1, 2.5], {}, "prompt holds 2.5; ids are integers"),
        ([1, "2"], {}, "prompt holds '2'; ids are integers"),
        ([1, True], {}, "prompt holds True; ids are integers"),
        (["a", {"role": "user"}], {}, "or chat messages, got dict"),
        ([None], {}, "or chat messages, got NoneType"),
        ([b"a"], {}, "or chat messages, got bytes"),
        (TEXT, {"stop": 5}, "stop must be text"),
        (TEXT, {"stop": b"a"}, "stop must be text"),
        (TEXT, {"stop": [5]}, "stop must be text"),
        (TEXT, {"num_samples": "2"}, "num_samples must be an integer"),
        (TEXT, {"ignore_eos": "no"}, "ignore_eos must be True or False, got 'no'"),
        (TEXT, {"max_new_tokens": 1.5}, "max_new_tokens must be an integer"),
        (TEXT, {"temperature": True}, "temperature must be a number, got True"),
        (TEXT, {"temperature": "1"}, "temperature must be a number, got '1'"),
        (TEXT, {"stop_token_ids": [1.5]}, "stop_token_ids holds 1.5"),
        (TEXT, {"stop_token_ids": "12"}, "stop_token_ids holds '1'"),
        (TEXT, {"stop_token_ids": 5}, "stop_token_ids must be token ids, got 5"),
        (TEXT, {"banned_ids": [1.5]}, "banned_ids holds 1.5"),
        (TEXT, {"banned_ids": 5}, "banned_ids must be token ids, got 5"),
        (TEXT, {"logit_bias": {1.5: 1.0}}, "logit_bias holds 1.5"),
        (TEXT, {"logit_bias": [1]}, "logit_bias must be ids and biases"),
        (TEXT, {"logit_bias": {1: "x"}}, "logit_bias of id 1 must be a number"),
        (TEXT, {"chat": "yes"}, "chat must be True or False, got 'yes'"),
        (TEXT, {"memory": "x"}, "memory must be a Memory"),
    ],
)
def test_requests_of_the_wrong_kind_compile_nothing(engine, prompt, options, message):
    before = engine.programs.count
    with pytest.raises(TypeError, match=message):
        engine.generate(prompt, **options)
    assert engine.programs.count == before


def test_numbers_may_be_numpys(engine):
    options = {"temperature": np.float32(0.5), "seed": np.uint32(3)}
    found = engine.generate(TEXT, max_new_tokens=np.int32(4), **options)
    wanted = engine.generate(TEXT, max_new_tokens=4, temperature=0.5, seed=3)
    assert found.tokens == wanted.tokens


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"widths": (1.5,)}, TypeError),
        ({"widths": 4}, TypeError),
        ({"widths": (0,)}, ValueError),
        ({"widths": ()}, ValueError),
        ({"prompt_widths": ()}, ValueError),
        ({"max_context": 300.5}, TypeError),
        ({"max_context": 2**40}, ValueError),
        ({"verifier": "exactly"}, ValueError),
        ({"verifier": 3}, TypeError),
    ],
)
def test_engines_that_can_not_be(lm, options, error):
    (name,) = options
    with pytest.raises(error, match=f"^{name} must be"):
        Engine(lm, drafters.none(), **options)


def test_a_verifier_by_its_name(lm):
    options = {**WIDTHS, "max_context": 256}
    with pytest.raises(ValueError, match="this rule tests drafts against the laws"):
        Engine(lm, drafters.prompt_lookup(), verifier="without_replacement", **options)
    named = Engine(lm, drafters.prompt_lookup(), verifier="exact", **options)
    assert named.generate(TEXT, max_new_tokens=4).tokens


def test_generate_takes_a_loaded_model_only():
    with pytest.raises(TypeError, match=r"^lm must be a loaded model, got 'smollm2"):
        generate("smollm2-135m", TEXT)


@pytest.mark.parametrize(
    "drafter",
    [
        "prompt_lookup:max_draft=3",
        {"name": "prompt_lookup", "options": {"max_draft": 3}},
    ],
)
def test_a_drafter_by_its_name(lm, drafter):
    options = {**WIDTHS, "max_context": 256}
    named = Engine(lm, drafter, **options).generate(TEXT, max_new_tokens=8)
    made = drafters.prompt_lookup(max_draft=3)
    built = Engine(lm, made, **options).generate(TEXT, max_new_tokens=8)
    assert (named.tokens, named.drafted) == (built.tokens, built.drafted)
    assert named.drafter == "prompt_lookup:max_draft=3" or "options" in drafter


def test_generate_takes_a_name_and_compiles_for_it_once(lm):
    def compiled(drafter):
        result = generate(lm, TEXT, drafter=drafter, max_new_tokens=4)
        return result.compile_seconds > 0

    assert compiled("prompt_lookup:max_draft=2")
    assert not compiled("prompt_lookup:max_draft=2")


@pytest.mark.parametrize("drafter", ["sufix", {"name": "sufix"}])
def test_an_unknown_name(lm, drafter):
    with pytest.raises(ValueError, match="did you mean 'suffix'"):
        generate(lm, TEXT, drafter=drafter)


def test_why_a_drafter_was_chosen_goes_with_the_result(lm):
    made = drafters.equip(drafters.none())._replace(note="it is cheap")
    result = Engine(lm, made, **WIDTHS).generate(TEXT, max_new_tokens=2)
    assert result.choice == result.to_json()["choice"] == "it is cheap"


def test_a_context_that_is_too_small_says_what_would_do(lm):
    engine = Engine(lm, max_context=20)
    message = "max_context must be 40 to 512, the limit of 'tiny', .* got 20"
    with pytest.raises(ValueError, match=message):
        engine.capacity(30, 10)


def test_a_prompt_of_the_wrong_kind(engine):
    with pytest.raises(TypeError, match="prompt must be text"):
        engine.generate(3)


def test_bad_context(lm):
    with pytest.raises(ValueError, match="max_context must be"):
        Engine(lm, max_context=513)


def test_stop_strings_cut_text_tokens_and_counts(engine, lm, free):
    middle = len(free.text) // 2
    stop = free.text[middle : middle + 3]
    cut = engine.generate(
        TEXT, max_new_tokens=40, ignore_eos=True, seed=1, temperature=1, stop=stop
    )
    assert cut.finish_reason == "stop"
    assert cut.text == free.text[: free.text.index(stop)]
    assert cut.tokens == free.tokens[: cut.new_tokens]
    assert len(cut.log_probs) == cut.new_tokens
    before = GrowingText(lm.tokenizer)
    for token in cut.tokens[:-1]:
        before.push(token)
    assert stop not in before.text
    before.push(cut.tokens[-1])
    assert stop in before.text
    _counts_fit(cut)


def _counts_fit(cut):
    """Each call gives its drafts and one token more, but for the last, if it is cut."""
    emitted = cut.accepted + cut.target_calls
    assert emitted - 1 <= cut.new_tokens - 1 <= emitted
    assert sum(cut.accepted_per_depth) == cut.accepted
    assert sum(cut.accepted_per_source.values()) == cut.accepted


def test_stop_strings_cut_counts_inside_drafts_that_were_kept(lm):
    """The target drafts for itself, with a lookup behind: every draft is kept."""
    pair = ["draft_model:layers=2:max_draft=3", "prompt_lookup:min_ngram=1:max_draft=2"]
    asked = {"name": "with_suffixes", "options": {"children": pair}}
    engine = Engine(lm, asked, widths=(8,))
    options = {"max_new_tokens": 24, "ignore_eos": True}
    free = engine.generate(TEXT, **options)
    assert free.accepted > free.target_calls
    _counts_fit(free)
    inside = 0
    for at in range(2, len(free.text) - 2):
        cut = engine.generate(TEXT, stop=free.text[at : at + 2], **options)
        _counts_fit(cut)
        inside += cut.new_tokens - 1 < cut.accepted + cut.target_calls
    assert inside > 2


def test_streams_give_the_same_text_and_tokens(engine, free):
    options = {"max_new_tokens": 40, "ignore_eos": True, "seed": 1, "temperature": 1}
    for rounds in (1, 3):
        running = engine.stream(TEXT, rounds=rounds, **options)
        pieces = list(running)
        assert "".join(piece.text for piece in pieces) == free.text
        assert [token for piece in pieces for token in piece.tokens] == free.tokens
        assert running.result().tokens == free.tokens
        assert len(pieces) > 2


def test_an_abandoned_stream_has_what_it_has(engine, free):
    options = {"max_new_tokens": 40, "ignore_eos": True, "seed": 1, "temperature": 1}
    running = engine.stream(TEXT, **options)
    for _, _piece in zip(range(3), running, strict=False):
        pass
    result = running.result()
    assert result.finish_reason == "interrupted"
    assert 0 < result.new_tokens < 40
    assert result.tokens == free.tokens[: result.new_tokens]


def test_min_new_tokens_holds_stop_ids_off(engine):
    free = engine.generate(TEXT, max_new_tokens=20, seed=1, temperature=1.0)
    stop = {"stop_token_ids": tuple(set(free.tokens[:3])), "ignore_eos": True}
    short = engine.generate(TEXT, max_new_tokens=20, seed=1, temperature=1.0, **stop)
    assert short.new_tokens == 1
    held = engine.generate(
        TEXT, max_new_tokens=20, min_new_tokens=10, seed=1, temperature=1.0, **stop
    )
    assert held.new_tokens >= 11
    assert not set(held.tokens[:10]) & set(stop["stop_token_ids"])


def test_biases_and_bans(engine):
    only = engine.generate(TEXT, max_new_tokens=6, logit_bias={65: 1e6})
    assert only.tokens == [65] * 6
    banned = engine.generate(
        TEXT, max_new_tokens=6, logit_bias={65: 1e6, 66: 1e5}, banned_ids=[65]
    )
    assert banned.tokens == [66] * 6


def test_a_conversation_reuses_the_cache(lm):
    template = ChatTemplate("{% for m in messages %}{{ m.content }}\n{% endfor %}")
    chatty = dataclasses.replace(lm, chat_template=template)
    engine = Engine(chatty, drafters.prompt_lookup(), **WIDTHS)
    talk = engine.conversation("be brief")
    first = talk.send("the ban and", max_new_tokens=8, banned_ids=range(1, 33))
    assert talk.messages[-1] == {"role": "assistant", "content": first.text}
    asked = [*talk.messages, {"role": "user", "content": "an owl"}]
    second = talk.send("an owl", max_new_tokens=8)
    fresh = engine.generate(asked, max_new_tokens=8)
    assert second.tokens == fresh.tokens
    assert second.prompt_tokens == fresh.prompt_tokens
    before = list(talk.messages)
    with pytest.raises(ValueError, match="exceed the context"):
        talk.send("x" * 600)
    assert talk.messages == before


def test_module_level_functions_keep_their_engine(lm):
    drafter = drafters.prompt_lookup()
    first = generate(lm, TEXT, drafter=drafter, max_new_tokens=4)
    assert first.compile_seconds > 0
    again = generate(lm, TEXT, drafter=drafters.prompt_lookup(), max_new_tokens=5)
    assert again.compile_seconds == 0
    assert again.programs == 2
    pieces = list(stream(lm, TEXT, drafter=drafter, max_new_tokens=5))
    assert [token for piece in pieces for token in piece.tokens] == again.tokens


def test_a_useless_drafter_is_reported_once(lm):
    engine = Engine(lm, _wrong(), **WIDTHS)
    options = {"max_new_tokens": 80, "ignore_eos": True}
    with pytest.warns(UselessDrafterWarning, match="hardly ever accepted"):
        engine.generate(TEXT, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        engine.generate(TEXT, **options)


def _wrong() -> contracts.Drafter:
    """Drafts id 1, which the tests' model does not say."""
    plain = drafters.none()

    def propose(params, state, view, tree):
        rows = tree.token.shape[0]
        tree = tree_lib.append_chain(
            tree,
            token=jnp.ones((rows, 1), jnp.int32),
            count=(view.room > 1).astype(jnp.int32),
            confidence=jnp.ones((rows, 1), jnp.float32),
            anchor=tree_lib.spine_end(tree),
        )
        return tree, state

    return plain._replace(
        propose=propose,
        bounds=contracts.Bounds(1, 1, 1),
        sources=(contracts.Source("wrong", 1),),
    )


def test_rows_of_a_job_may_have_options_of_their_own(engine):
    asked = [
        {"max_new_tokens": 5},
        {"max_new_tokens": 9, "temperature": 1.2, "seed": 4},
        {"max_new_tokens": 9, "temperature": 1.2, "seed": 5},
    ]
    run = engine.start(engine.prepare([TEXT] * 3, asked))
    run.advance(run.capacity)
    together = engine.results(run)
    alone = [engine.generate(TEXT, **options) for options in asked]
    assert [x.tokens for x in together] == [x.tokens for x in alone]
    assert [x.seed for x in together] == [0, 4, 5]
    assert alone[1].tokens != alone[2].tokens


def test_options_for_another_number_of_prompts_are_refused(engine):
    with pytest.raises(ValueError, match="one for each of 2 prompts, got 1"):
        engine.prepare([TEXT, TEXT], [{}])
