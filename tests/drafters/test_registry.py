"""Names, options and their errors."""

import numpy as np
import pytest

from specjax import Engine, drafters, verify
from specjax.drafters import registry
from tests import saved_model, tiny_model, tiny_store


@pytest.fixture(scope="module")
def lm():
    return tiny_model.language_model()


def test_options_take_the_types_of_the_factory(lm):
    spec = "prompt_lookup:max_draft=7:recent=false:overrun=cut"
    made = drafters.make(spec, lm)
    assert made.label == spec
    assert made.drafter is drafters.prompt_lookup(
        max_draft=7, recent=False, overrun="cut"
    )


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("nonsense", "unknown name 'nonsense'.*prompt_lookup"),
        ("", "unknown name"),
        ("prompt_lookup:depth=3", "unknown option 'depth'.*max_draft"),
        ("prompt_lookup:max_draft", "key=value"),
        ("prompt_lookup:max_draft=many", "'max_draft' must be an integer"),
        ("prompt_lookup:max_draft=7:min", "'max_draft' must be an integer, got '7:min"),
        ("prompt_lookup:recent=maybe", "'recent' must be true or false"),
        ("prompt_lookup:max_draft=0", "max_draft must be at least 1"),
        ("draft_model", "layers=N"),
        ("draft_model:layers=1:model=x", "either"),
        ("draft_model:layers=99", "'draft_model': option 'layers': expected 1 to 2"),
        ("draft_model:model=nowhere", "'draft_model': option 'model': expected one of"),
        ("cascade:model=nowhere", "'cascade': option 'model': expected one of"),
        ("cascade:layers=99", "'cascade': option 'layers': expected 1 to 2"),
        ("token_recycling:vocab_size=9", "unknown option 'vocab_size'"),
        ("ouroboros:window=3", "'window' is for use with a draft model"),
        ("ouroboros:layers=1:short_draft=3", "'short_draft' is for use without a"),
        ("hierarchy:depth=3", "it takes store, children, max_nodes, quota"),
        ("none:x=1", "it takes none"),
    ],
)
def test_bad_specs(lm, spec, message):
    with pytest.raises(ValueError, match=message):
        drafters.make(spec, lm)


def test_a_draft_model_shares_the_arrays_of_its_target(lm):
    made = drafters.make("draft_model:layers=1", lm)
    assert made.params["model"]["embed"] is lm.params["embed"]
    ours, theirs = made.params["model"]["layers"][0], lm.params["layers"][0]
    assert all(ours[key] is theirs[key] for key in theirs)


def test_a_drafter_with_another_tokenizer_is_refused(lm):
    made = drafters.make("draft_model:layers=1", lm)
    with pytest.raises(ValueError, match="another tokenizer"):
        Engine(lm, made._replace(fingerprint="0" * 64))


def test_wrong_kinds_are_type_errors(lm):
    with pytest.raises(TypeError, match="Drafter or Equipped"):
        Engine(lm, 3)


def test_equal_options_make_the_same_drafter():
    made = [drafters.suffix(max_nodes=5, max_match=8) for _ in range(2)]
    assert made[0] is made[1]
    with pytest.raises(TypeError, match=r"suffix: max_nodes must be a plain value"):
        drafters.suffix(max_nodes=[5])
    with pytest.raises(TypeError, match=r"speculate: model must be a plain value"):
        drafters.speculate([5])


def test_integers_of_numpy_make_the_same_drafter():
    assert drafters.prompt_lookup(max_draft=np.int64(3)) is drafters.prompt_lookup(
        max_draft=3
    )


@pytest.mark.parametrize("arguments", [{"bogus": 1}, {"max_draft": 1, "nodes": 2}])
def test_an_unknown_argument_names_the_factory(arguments):
    with pytest.raises(TypeError, match="prompt_lookup: got an unexpected keyword"):
        drafters.prompt_lookup(**arguments)


def test_what_equals_an_option_is_checked_all_the_same():
    drafters.prompt_lookup(max_draft=1, recent=True)
    for same in (True, 1.0):
        with pytest.raises(TypeError, match="max_draft must be an integer"):
            drafters.prompt_lookup(max_draft=same)
    with pytest.raises(TypeError, match="recent must be True or False, got 1"):
        drafters.prompt_lookup(max_draft=1, recent=1)
    pair = drafters.none(), drafters.prompt_lookup()
    drafters.merge(*pair, budget=1)
    with pytest.raises(TypeError, match="budget must be an integer"):
        drafters.merge(*pair, budget=True)


def test_rules_that_need_laws_refuse_a_drafter_without(lm):
    with pytest.raises(ValueError, match="laws"):
        Engine(lm, drafters.prompt_lookup(), verifier=verify.rejection())


def test_a_draft_model_that_hands_on_its_laws_under_a_rule_that_needs_them(lm):
    """The target as its own draft model: by its laws every draft is kept."""
    made = drafters.make("draft_model:layers=2:max_draft=3:laws=true", lm)
    engine = Engine(lm, made, verifier=verify.rejection())
    options = {"max_new_tokens": 17, "ignore_eos": True}
    drawn = engine.generate("the ban", temperature=1.0, **options)
    assert drawn.tokens_per_target_call == 4
    greedy = engine.generate("the ban", **options)
    assert greedy.tokens == Engine(lm).generate("the ban", **options).tokens


def test_a_wrong_number_of_children(lm):
    with pytest.raises(ValueError, match="children lists 3 drafters"):
        drafters.make("with_suffixes", lm, {"children": ["none", "none", "none"]})


@pytest.mark.parametrize("children", [(), "none", 3])
def test_children_that_are_no_list(children):
    with pytest.raises(ValueError, match="'children' must be a list of drafters"):
        registry.parse("merge", {"children": children})


@pytest.mark.parametrize(
    "child",
    [
        3,
        {"options": {}},
        {"x": 1},
        {"name": 3},
        {"name": "none", "options": 3},
        {"name": "none", "budget": 3},
    ],
)
def test_a_child_that_is_no_drafter(child):
    with pytest.raises(ValueError, match="expected a name, or a table"):
        registry.parse("merge", {"children": ["none", child]})


def test_children_are_checked_before_anything_is_loaded():
    nested = {"name": "fallback", "options": {"children": ["none", "suffix:nodes=3"]}}
    with pytest.raises(ValueError, match="'suffix': unknown option 'nodes'"):
        registry.parse("merge", {"children": ["none", nested]})


@pytest.mark.parametrize("name", ["merge", "corpus"])
def test_what_must_be_given(name):
    key = {"merge": "children", "corpus": "store"}[name]
    with pytest.raises(ValueError, match=f"'{name}': {key} must be given, a "):
        registry.parse(name)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("cascade", {"model": 3}, "option 'model' must be a name or a path, or a list"),
        ("cascade", {"model": [3]}, r"'model' must be .* list of such, got \[3\]"),
        ("cascade", {"k": [[2**40]]}, "option 'k' must be rows of integers"),
        ("cascade", {"k": "5,x"}, "option 'k' must be rows of integers"),
        ("cascade", {"costs": "5,x"}, "option 'costs' must be numbers"),
        ("cascade", {"layers": [2.5]}, "option 'layers' must be integers"),
        ("draft_model", {"model": 3}, "option 'model' must be a name or a path"),
        ("auto", {"costs": 3}, "option 'costs' must be a name or a path, got 3"),
        ("suffix", {"max_nodes": 2**31}, "option 'max_nodes' must be an integer"),
        ("suffix", {"offset": "inf"}, "option 'offset' must be a finite number, got"),
        ("suffix", {"tree": 2}, "option 'tree' must be true or false, got 2"),
        ("suffix", {"overrun": 2}, "option 'overrun' must be text, got 2"),
    ],
)
def test_options_of_a_wrong_kind_are_refused(name, options, message):
    with pytest.raises(ValueError, match=message):
        registry.parse(name, options)


def test_an_option_given_twice_is_refused():
    with pytest.raises(ValueError, match="option 'max_nodes' is given twice"):
        registry.parse("suffix:max_nodes=3:max_nodes=5")


@pytest.mark.parametrize(
    ("spec", "options"),
    [
        ("draft_model:model=hf:a/b", {"model": "hf:a/b"}),
        ("draft_model:model=hf:a/b:max_draft=3", {"model": "hf:a/b", "max_draft": 3}),
        ("draft_model:max_draft=3:model=hf:a/b", {"model": "hf:a/b", "max_draft": 3}),
        ("suffix:store=c:/a/b", {"store": "c:/a/b"}),
        ("suffix:store=a=b:min_match=2", {"store": "a=b", "min_match": 2}),
    ],
)
def test_a_colon_without_a_key_behind_it_belongs_to_the_value(spec, options):
    assert registry.parse(spec).options == options


@pytest.mark.parametrize(
    ("spec", "meant"),
    [
        ("sufix", "suffix"),
        ("prompt-lookup", "prompt_lookup"),
        ("suffix:max_node=3", "max_nodes"),
        ("draft_model:layer=3", "layers"),
        ("suffix:stor=x", "store"),
    ],
)
def test_what_was_meant_is_asked_for(spec, meant):
    with pytest.raises(ValueError, match=f"did you mean '{meant}'\\?"):
        registry.parse(spec)


def test_nothing_is_suggested_where_nothing_comes_close():
    with pytest.raises(ValueError, match="unknown name 'xyz'; known are none, "):
        registry.parse("xyz")


def test_a_table_is_a_drafter(lm):
    made = drafters.make({"name": "suffix", "options": {"max_nodes": 3}}, lm)
    assert made.drafter is drafters.suffix(max_nodes=3)


def test_children_by_name_and_by_table(lm):
    table = {"name": "prompt_lookup", "options": {"max_draft": 4}}
    made = drafters.make("merge", lm, {"children": [table, "suffix"], "budget": "5"})
    assert made.drafter.sources[0].num_tags == 4
    assert made.drafter.bounds.nodes == 5


def test_a_chain_of_drafters_by_name(lm):
    options = {"children": ["prompt_lookup", "suffix"], "tokens": "3+4"}
    made = drafters.make("horizontal", lm, options)
    assert made.drafter.bounds.depth == 7
    with pytest.raises(ValueError, match="horizontal: tokens must be 2 numbers"):
        drafters.make("horizontal", lm, options | {"tokens": [3]})


def test_successors_out_of_a_datastore(lm):
    store = drafters.make("corpus", lm, {"store": tiny_store.path()})
    made = drafters.make(f"max_gram:store={tiny_store.path()}:max_draft=4", lm)
    assert made.params["successor"].shape == (lm.model.config.vocab_size,)
    assert made.fingerprint == store.fingerprint == lm.fingerprint
    assert made.drafter.bounds.depth == 4
    assert drafters.make("max_gram", lm).params == {}


def test_models_of_a_cascade_out_of_folders(lm, tmp_path):
    """Two models, the larger first, drafting for the target, give its tokens."""
    paths = [str(tmp_path / name) for name in ("large", "small")]
    for layers, path in zip((2, 1), paths, strict=True):
        (tmp_path / path).mkdir()
        saved_model.write(tmp_path / path, num_layers=layers, seed=layers)
    made = drafters.make("cascade", lm, {"model": paths})
    assert made.drafter.bounds.nodes == 15
    ours = Engine(lm, made, widths=(16,)).generate("an owl", max_new_tokens=12)
    assert ours.tokens == Engine(lm).generate("an owl", max_new_tokens=12).tokens
    with pytest.raises(ValueError, match="layers"):
        drafters.make("cascade", lm, {"model": paths, "layers": "1"})
