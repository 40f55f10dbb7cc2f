"""Draft checkpoints of EAGLE-3: two layouts, and every fault that users met."""

import copy
import dataclasses
import functools
import json
import re

import numpy as np
import pytest
from safetensors import numpy as safetensors_numpy

from specjax.drafters.neural import (
    eagle3_layout,
    published,
    published_eagle3,
    published_host,
)
from specjax.models import config as config_lib
from tests import saved_model, tiny_model

CONFIG = tiny_model.config(num_layers=8)
E, V = CONFIG.embed_size, CONFIG.vocab_size
IDS = np.arange(100) * 2 + 3
H, G, D, MLP = 4, 2, 10, 36
SAYS = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": E,
    "intermediate_size": MLP,
    "num_attention_heads": H,
    "num_key_value_heads": G,
    "num_hidden_layers": 40,  # as published for Vicuna: there is one layer
    "head_dim": D,
    "rms_norm_eps": 1e-5,
    "vocab_size": V,
    "draft_vocab_size": len(IDS),
}
HOST = published_host.Host("tiny", CONFIG, None)


def tensors(ids=IDS):
    """Random weights in the names of EAGLE."""
    random = np.random.default_rng(0)
    shapes = {
        "fc.weight": (E, 3 * E),
        "midlayer.input_layernorm.weight": (E,),
        "midlayer.hidden_norm.weight": (E,),
        "midlayer.post_attention_layernorm.weight": (E,),
        "midlayer.self_attn.q_proj.weight": (H * D, 2 * E),
        "midlayer.self_attn.k_proj.weight": (G * D, 2 * E),
        "midlayer.self_attn.v_proj.weight": (G * D, 2 * E),
        "midlayer.self_attn.o_proj.weight": (E, H * D),
        "midlayer.mlp.gate_proj.weight": (MLP, E),
        "midlayer.mlp.up_proj.weight": (MLP, E),
        "midlayer.mlp.down_proj.weight": (E, MLP),
        "norm.weight": (E,),
        "lm_head.weight": (len(ids), E),
    }
    made = {name: random.normal(size=shape) for name, shape in shapes.items()}
    made = {name: value.astype(np.float32) for name, value in made.items()}
    marks = np.zeros(V, np.bool_)
    marks[ids] = True
    return made | {"d2t": ids - np.arange(len(ids)), "t2d": marks}


def put(folder, made, config=SAYS):
    folder.mkdir(exist_ok=True)
    safetensors_numpy.save_file(
        {name: np.ascontiguousarray(value) for name, value in made.items()},
        str(folder / "model.safetensors"),
    )
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def speculators(made, config):
    """The same draft in the layout of ``speculators``."""
    layer = {"model_type": "llama", **config}
    layer.pop("draft_vocab_size")
    said = {
        "speculators_model_type": "eagle3",
        "architectures": ["Eagle3Speculator"],
        "transformer_layer_config": layer,
        "draft_vocab_size": config["draft_vocab_size"],
        "norm_before_residual": True,
        "eagle_aux_hidden_state_layer_ids": [2, 4, 5],
        "speculators_config": {"verifier": {"name_or_path": "owner/name"}},
    }
    named = {k.replace("midlayer.", "layers.0."): value for k, value in made.items()}
    return named, said


def found(folder, host=HOST):
    report = published.report(folder, host, "float32")
    assert report.drafter == "eagle3"
    return report.problems


def test_both_layouts_are_read(tmp_path):
    first = put(tmp_path / "eagle", tensors())
    second = put(tmp_path / "speculators", *speculators(tensors(), SAYS))
    for folder, layers, before in (
        (first, (1, 3, 4), False),
        (second, (1, 3, 4), True),
    ):
        assert published.is_draft(folder)
        assert found(folder) == []
        draft = eagle3_layout.published_files.open_draft(folder)
        said = eagle3_layout.facts(draft)
        assert eagle3_layout.feature_layers(said, CONFIG.num_layers) == layers
        assert said.norm_before_residual is before
        np.testing.assert_array_equal(eagle3_layout.ids(draft, said, V), IDS)
    facts = dict(published.report(second, HOST, "float32").facts)
    assert facts["made for"] == "owner/name"
    assert facts["reads layers"] == "1, 3, 4"


def test_a_draft_with_a_logit_for_every_id(tmp_path):
    made = tensors(np.arange(V))
    config = {**SAYS, "draft_vocab_size": V}
    for drop in ((), ("d2t", "t2d")):
        kept = {k: value for k, value in made.items() if k not in drop}
        folder = put(tmp_path / "m", kept, config)
        assert found(folder) == []
        draft = eagle3_layout.published_files.open_draft(folder)
        assert eagle3_layout.ids(draft, eagle3_layout.facts(draft), V) is None


def without(name):
    return lambda made, config: made.pop(name)


def changed(name, value):
    def change(made, config):
        made[name] = np.asarray(value)

    return change


def said(**values):
    return lambda made, config: config.update(values)


def ids_for_offsets(made, config):
    made["d2t"] = IDS


def ids_in_range_for_offsets(made, config):
    """Ids so low that the sums are ids as well: only the marks tell."""
    made.update(tensors(np.arange(100) + 5), d2t=np.arange(100) + 5)


def other_marks(made, config):
    made["t2d"] = np.roll(made["t2d"], 1)


F32 = np.float32
FAULTS = {
    "no head": (without("lm_head.weight"), r"lm_head\.weight is missing.* its own"),
    "no fusion": (without("fc.weight"), r"tensor fc\.weight is missing"),
    "no norm": (
        without("midlayer.hidden_norm.weight"),
        r"midlayer\.hidden_norm\.weight is missing",
    ),
    "other features": (
        changed("fc.weight", np.zeros((E, 2 * E), F32)),
        r"fc\.weight has shape \(24, 48\), expected \(24, 72\): 3 layers' outputs",
    ),
    "more layers than the fusion takes": (
        said(eagle_aux_hidden_state_layer_ids=[1, 2, 3, 4]),
        r"fc\.weight has shape \(24, 72\), expected \(24, 96\): 4 layers' outputs",
    ),
    "layers that are none": (
        said(eagle_aux_hidden_state_layer_ids=[2, 4, 9]),
        r"outputs of layers \(1, 3, 8\), tiny has 8",
    ),
    "layers that are no numbers": (
        said(eagle_aux_hidden_state_layer_ids="2"),
        "must be layers from 1 up",
    ),
    "another target": (said(hidden_size=32), "hidden_size 32, tiny has 24"),
    "another width": (
        changed("midlayer.mlp.down_proj.weight", np.zeros((32, MLP), F32)),
        r"down_proj\.weight has shape \(32, 36\), expected \(24, 36\) for tiny",
    ),
    "ids for offsets": (
        ids_for_offsets,
        "d2t holds the target's ids, expected offsets",
    ),
    "low ids for offsets": (
        ids_in_range_for_offsets,
        "d2t holds the ids that t2d marks",
    ),
    "offsets out of range": (
        changed("d2t", np.full(100, 200)),
        "d2t must give ascending",
    ),
    "offsets in disorder": (changed("d2t", -np.arange(100)), "d2t must give ascending"),
    "offsets of another size": (changed("d2t", np.arange(9)), r"d2t has shape \(9,\)"),
    "no offsets": (without("d2t"), "d2t is missing: there are 100 logits for 260 ids"),
    "other marks": (other_marks, "t2d and d2t disagree: t2d marks 100 ids"),
    "marks of another vocabulary": (
        changed("t2d", np.zeros(9, np.bool_)),
        r"t2d has shape \(9,\), expected \(260,\)",
    ),
    "another vocabulary": (said(vocab_size=300), "vocab_size 300, tiny has 260"),
    "a tied head": (
        said(tie_word_embeddings=True),
        "ties lm_head.weight, which has 100",
    ),
    "extra": (
        changed("midlayer.self_attn.q_norm.weight", np.zeros(D, F32)),
        r"q_norm\.weight is no part of an EAGLE-3 draft",
    ),
    "a second layer": (
        changed("layers.1.mlp.up_proj.weight", np.zeros((MLP, E), F32)),
        r"layers\.1\.mlp\.up_proj\.weight is no part of an EAGLE-3 draft of one",
    ),
    "misshapen embedding": (
        changed("embed_tokens.weight", np.zeros((V, 3), F32)),
        r"embed_tokens\.weight has shape \(260, 3\)",
    ),
    "ids as numbers": (changed("d2t", np.zeros(100, F32)), "d2t is stored as F32"),
    "a later version": (
        said(norm_output=True),
        "norm_output is True, .* not supported",
    ),
    "another activation": (said(hidden_act="gelu"), "hidden_act must be silu"),
    "no size": (said(hidden_size=None), "hidden_size must be a positive integer"),
    "a scaling that is none": (
        said(rope_scaling={"type": "dynamic", "factor": 2.0}),
        "rope_scaling type must be one of",
    ),
}


@pytest.mark.parametrize("layout", ["eagle", "speculators"])
@pytest.mark.parametrize("fault", FAULTS)
def test_faults(tmp_path, fault, layout):
    change, message = FAULTS[fault]
    made, config = tensors(), dict(SAYS)
    change(made, config)
    if layout == "speculators":
        made, outer = speculators(made, config)
        for key in ("eagle_aux_hidden_state_layer_ids", "norm_output"):
            outer |= {key: config[key]} if key in config else {}
        config = outer
        message = message.replace("midlayer", "(midlayer|layers.0)")
    problems = found(put(tmp_path / "m", made, config))
    assert any(re.search(message, problem) for problem in problems), problems


SCALED = config_lib.RopeScaling(
    kind="llama3", factor=8.0, low_freq_factor=1.0, original_context=64
)
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


@pytest.mark.parametrize(
    ("words", "fits"),
    [
        ({}, False),
        ({"rope_theta": 500000.0}, False),
        ({"rope_scaling": None}, True),
        ({"rope_scaling": LLAMA3}, True),
        ({"rope_parameters": {**LLAMA3, "rope_theta": 500000.0}}, True),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}, True),
    ],
)
def test_a_scaling_that_was_left_out(tmp_path, words, fits):
    host = HOST._replace(config=dataclasses.replace(CONFIG, rope_scaling=SCALED))
    problems = found(put(tmp_path / "m", tensors(), {**SAYS, **words}), host)
    if fits:
        assert not problems
    else:
        assert len(problems) == 1
        assert "no word about rope_scaling, tiny has llama3 scaling by 8" in problems[0]


def test_drafts_of_kinds_that_we_lack(tmp_path):
    config = {"speculators_model_type": "dflash", "draft_vocab_size": 3}
    folder = put(tmp_path / "m", {"fc.weight": np.zeros((2, 2), F32)}, config)
    assert published.is_draft(folder)
    report = published.report(folder, HOST, "float32")
    assert report.drafter is None
    assert report.problems == ["a draft of kind 'dflash'; known are medusa, eagle3"]


def test_a_draft_of_the_first_eagle(tmp_path):
    made = tensors()
    for name in ("lm_head.weight", "midlayer.hidden_norm.weight", "d2t", "t2d"):
        del made[name]
    named, _ = speculators(made, SAYS)
    config = {k: value for k, value in SAYS.items() if k != "draft_vocab_size"}
    problems = found(put(tmp_path / "m", named, config))
    assert len(problems) == 1
    assert "EAGLE-1 or EAGLE-2" in problems[0]


def test_language_models_are_no_drafts(tmp_path):
    saved_model.write(tmp_path)
    assert not published.is_draft(tmp_path)
    assert not published.is_draft(tmp_path / "none")
    assert not published.is_draft(tmp_path / "config.json")


@pytest.fixture(scope="module")
def lm():
    return tiny_model.language_model(num_layers=8)


def assert_same(first, second):
    assert first._replace(arrays={}, ids=None) == second._replace(arrays={}, ids=None)
    assert first.arrays.keys() == second.arrays.keys()
    for name, value in first.arrays.items():
        np.testing.assert_array_equal(value, second.arrays[name], err_msg=name)
    np.testing.assert_array_equal(first.ids, second.ids)


def test_pieces_by_name(tmp_path, lm):
    made = tensors()
    weights = published_eagle3.load(put(tmp_path / "m", made), lm)
    assert weights.features == (1, 3, 4)
    np.testing.assert_array_equal(weights.ids, IDS)
    for piece, name in (
        ("fc", "fc.weight"),
        ("k", "midlayer.self_attn.k_proj.weight"),
        ("embed_norm", "midlayer.input_layernorm.weight"),
        ("feature_norm", "midlayer.hidden_norm.weight"),
        ("mlp_norm", "midlayer.post_attention_layernorm.weight"),
        ("final_norm", "norm.weight"),
        ("down", "midlayer.mlp.down_proj.weight"),
        ("head", "lm_head.weight"),
    ):
        np.testing.assert_array_equal(weights.arrays[piece], made[name].T)


def test_both_layouts_load_alike(tmp_path, lm):
    first = published_eagle3.load(put(tmp_path / "eagle", tensors()), lm)
    named, config = speculators(tensors(), SAYS)
    second = published_eagle3.load(put(tmp_path / "speculators", named, config), lm)
    changes = {"verifier": None, "norm_before_residual": False, "features": None}
    second = second._replace(facts=dataclasses.replace(second.facts, **changes))
    assert_same(second, first)


@pytest.mark.parametrize("scaling", [config_lib.RopeScaling(), SCALED])
@pytest.mark.parametrize("ids", [IDS, None])
def test_saved_and_loaded(tmp_path, lm, ids, scaling):
    made = tensors(np.arange(V) if ids is None else ids)
    config = {**SAYS, "draft_vocab_size": V if ids is None else len(ids)}
    first = published_eagle3.load(put(tmp_path / "m", made, config), lm)
    first = first._replace(
        facts=dataclasses.replace(
            first.facts, rope_scaling=scaling, says_scaling=True, features=(1, 3, 4)
        ),
        fingerprint=lm.fingerprint,
    )
    published_eagle3.save(tmp_path / "saved", CONFIG, first, form="float32")
    assert_same(published_eagle3.load(tmp_path / "saved", lm), first)


@pytest.mark.parametrize(("form", "most"), [("bfloat16", 2.0**-8), ("int8", 0.6 / 127)])
def test_saved_in_fewer_bits(tmp_path, lm, form, most):
    first = published_eagle3.load(put(tmp_path / "m", tensors()), lm)
    published_eagle3.save(tmp_path / "saved", CONFIG, first, form=form)
    second = published_eagle3.load(tmp_path / "saved", lm)
    for name, value in first.arrays.items():
        # A scale for every output, but for vectors, which stay in bfloat16.
        scale = np.abs(value).max(axis=0) if value.ndim > 1 else np.abs(value)
        wrong = np.abs(second.arrays[name] - value)
        assert np.all(wrong <= max(most, 2.0**-8 * (value.ndim < 2)) * scale), name
        assert np.any(wrong), name


def test_the_targets_embedding_is_not_kept_twice(tmp_path, lm):
    embed = np.asarray(lm.params["embed"])
    same = published_eagle3.load(
        put(tmp_path / "same", tensors() | {"embed_tokens.weight": embed}), lm
    )
    assert "embed" not in same.arrays
    other = embed.copy()
    other[3] *= 1.5
    apart = published_eagle3.load(
        put(tmp_path / "apart", tensors() | {"embed_tokens.weight": other}), lm
    )
    np.testing.assert_array_equal(apart.arrays["embed"], other)


def test_values_that_are_not_finite(tmp_path, lm):
    made = tensors()
    made["midlayer.mlp.up_proj.weight"][2, 3] = np.inf
    with pytest.raises(ValueError, match=r"midlayer\.mlp\.up_proj\.weight holds NaN"):
        published_eagle3.load(put(tmp_path / "m", made), lm)


def test_load_refuses_what_report_finds(tmp_path, lm):
    made = tensors()
    del made["lm_head.weight"]
    with pytest.raises(ValueError, match=r"m: tensor lm_head\.weight is missing"):
        published_eagle3.load(put(tmp_path / "m", made), lm)
    with pytest.raises(ValueError, match="expected a draft of the EAGLE-3 kind"):
        published_eagle3.load(
            put(tmp_path / "m", {"x": np.zeros(3, F32)}, {"model_type": "llama"}), lm
        )


ODD = [None, True, 0, -1, 2**40, 1.5, "x", [], [1], {}, {"a": 1}, [None], float("nan")]


@pytest.mark.parametrize("layout", ["eagle", "speculators"])
def test_odd_values_in_a_config_end_in_words(tmp_path, layout):
    config = {
        **SAYS,
        "rope_scaling": LLAMA3,
        "tie_word_embeddings": False,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 4, 5]},
    }
    made = tensors()
    if layout == "speculators":
        made, config = speculators(made, config)
    folder = put(tmp_path / "m", made, config)
    for value in ODD:
        for path in _paths(config):
            spoilt = copy.deepcopy(config)
            part = functools.reduce(lambda table, key: table[key], path[:-1], spoilt)
            part[path[-1]] = value
            (folder / "config.json").write_text(json.dumps(spoilt))
            if published.is_draft(folder):
                report = published.report(folder, HOST, "float32")
                assert all(isinstance(line, str) for line in report.problems)


def _paths(config, above=()):
    """Paths of keys to all values of nested tables."""
    for key, value in config.items():
        yield (*above, key)
        if isinstance(value, dict):
            yield from _paths(value, (*above, key))
