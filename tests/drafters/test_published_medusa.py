"""Checkpoints of Medusa heads: round trips, names of others, and every fault."""

import dataclasses
import json

import jax
import ml_dtypes
import numpy as np
import pytest
from safetensors import numpy as safetensors_numpy

from specjax import drafters
from specjax.drafters.neural import medusa_recipe, published_files, published_medusa
from tests import tiny_medusa, tiny_model

CONFIG = tiny_model.config()
E, V = CONFIG.embed_size, CONFIG.vocab_size
IDS = np.arange(1, 200, 3)
CHOICES = ((0,), (0, 0), (1,))
SAYS = {"medusa_num_heads": 2, "medusa_num_layers": 2}


@pytest.fixture(scope="module")
def lm():
    return tiny_model.language_model()


def tensors(own=True):
    """Two heads of two blocks, in the names of Medusa."""
    random = np.random.default_rng(0)
    made = {}
    for k in range(2):
        for layer in range(2):
            made[f"{k}.{layer}.linear.weight"] = random.normal(size=(E, E))
            made[f"{k}.{layer}.linear.bias"] = random.normal(size=(E,))
        if own:
            made[f"{k}.2.weight"] = random.normal(size=(V, E))
    return {name: value.astype(np.float32) for name, value in made.items()}


def put(folder, made, config=SAYS, file="model.safetensors"):
    folder.mkdir(exist_ok=True)
    safetensors_numpy.save_file(
        {name: np.ascontiguousarray(value) for name, value in made.items()},
        str(folder / file),
    )
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_the_names_of_medusa(tmp_path, lm):
    made = tensors()
    folder = put(tmp_path / "m", made, file="medusa_lm_head.safetensors")
    params = published_medusa.load(folder, lm).params
    np.testing.assert_array_equal(
        params["blocks"]["w"][1, 0], made["1.0.linear.weight"].T
    )
    np.testing.assert_array_equal(params["blocks"]["b"][0, 1], made["0.1.linear.bias"])
    np.testing.assert_array_equal(params["head"][1], made["1.2.weight"].T)
    assert "ids" not in params


def test_a_prefix_and_fewer_heads_in_the_config(tmp_path, lm):
    """As published: the config of Vicuna's heads says two where there are more."""
    made = {f"medusa_head.{name}": value for name, value in tensors().items()}
    folder = put(tmp_path / "m", made, {"medusa_num_heads": 1})
    assert published_medusa.load(folder, lm).params["head"].shape == (2, E, V)


def test_the_names_of_vllm(tmp_path, lm):
    made, plain = {"token_map": IDS[::-1].copy()}, tensors()
    for k in range(2):
        for layer in range(2):
            weight = plain[f"{k}.{layer}.linear.weight"]
            made[f"medusa_heads.blocks.{k}.layers.{layer}.weight"] = weight
        made[f"medusa_heads.lm_heads.{k}.weight"] = plain[f"{k}.2.weight"]
    folder = put(
        tmp_path / "m", made, {"model_type": "medusa", "num_heads": 2, "vocab_size": V}
    )
    params = published_medusa.load(folder, lm).params
    assert not np.any(params["blocks"]["b"])
    np.testing.assert_array_equal(params["ids"], IDS[::-1])
    np.testing.assert_array_equal(params["head"][1], plain["1.2.weight"][IDS[::-1]].T)


@pytest.mark.parametrize("own", [0, V])
@pytest.mark.parametrize("form", ["float32", "bfloat16", "int8"])
def test_saved_and_loaded(tmp_path, lm, form, own):
    params = tiny_medusa.params(2, 2, own=own, ids=None if own else IDS, scale=0.3)
    published_medusa.save(
        tmp_path / "m",
        CONFIG,
        params,
        form=form,
        fingerprint=lm.fingerprint,
        choices=CHOICES,
    )
    back = published_medusa.load(tmp_path / "m", lm)
    assert back.choices == CHOICES
    assert back.fingerprint == lm.fingerprint
    assert jax.tree.structure(back.params) == jax.tree.structure(params)
    for (path, ours), theirs in zip(
        jax.tree_util.tree_leaves_with_path(back.params),
        jax.tree.leaves(params),
        strict=True,
    ):
        error = {"float32": 0.0, "bfloat16": 2.0**-8, "int8": 0.5 / 127}[form]
        if not np.issubdtype(theirs.dtype, np.floating):
            error = 0.0
        # Of 8 bits the error is that of the greatest of an output, over all of them.
        scale = np.abs(theirs).max() if form == "int8" else np.abs(theirs)
        wrong = np.abs(np.asarray(ours) - theirs) > error * scale + 1e-9
        assert not wrong.any(), jax.tree_util.keystr(path)
    if form != "float32":
        with np.errstate(all="ignore"):
            assert not np.array_equal(back.params["blocks"]["w"], params["blocks"]["w"])


def test_a_folder_that_is_there_is_replaced_and_nothing_is_left(tmp_path, lm):
    for seed in (0, 1):
        published_medusa.save(
            tmp_path / "m", CONFIG, tiny_medusa.params(seed=seed), form="float32"
        )
    assert sorted(x.name for x in tmp_path.iterdir()) == ["m"]
    assert sorted(x.name for x in (tmp_path / "m").iterdir()) == [
        "config.json",
        "model.safetensors",
    ]
    back = published_medusa.load(tmp_path / "m", lm).params["blocks"]["w"]
    np.testing.assert_array_equal(back, tiny_medusa.params(seed=1)["blocks"]["w"])


def test_nothing_is_left_of_a_save_that_fails(tmp_path, monkeypatch):
    def full(path, raw):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(published_files.files, "write", full)
    with pytest.raises(ValueError, match=r"can't write .*No space left"):
        published_medusa.save(tmp_path / "m", CONFIG, tiny_medusa.params())
    assert not list(tmp_path.iterdir())


def test_what_is_not_finite_is_not_saved(tmp_path):
    params = tiny_medusa.params()
    params["blocks"]["w"][0, 0, 0, 0] = np.nan
    with pytest.raises(ValueError, match=r"tensor 0\.0\.linear\.weight holds NaN"):
        published_medusa.save(tmp_path / "m", CONFIG, params)
    assert not list(tmp_path.iterdir())


def without(name):
    return lambda made, config: made.pop(name)


def changed(name, value):
    def change(made, config):
        made[name] = np.asarray(value)

    return change


def said(**values):
    return lambda made, config: config.update(values)


def nan(made, config):
    made["1.1.linear.weight"][3, 4] = np.nan


FAULTS = {
    "no matrix": (without("1.2.weight"), r"1\.2\.weight.*head 1, is missing"),
    "no block": (without("0.1.linear.weight"), r"0\.1\.linear\.weight .* is missing"),
    "no bias": (without("0.1.linear.bias"), r"0\.1\.linear\.bias .* is missing"),
    "fewer heads than said": (said(medusa_num_heads=3), r"2\.0\.linear.*is missing"),
    "far too many heads": (said(medusa_num_heads=10**9), "say 1000000000 heads of 2"),
    "another size": (
        changed("0.0.linear.weight", np.zeros((32, 32), np.float32)),
        r"0\.0\.linear\.weight has shape \(32, 32\), expected \(24, 24\) for tiny",
    ),
    "another vocabulary": (
        changed("0.2.weight", np.zeros((V + 1, E), np.float32)),
        r"0\.2\.weight has shape \(261, 24\), expected \(260, 24\)",
    ),
    "another vocabulary said": (
        said(vocab_size=999),
        "config.json says vocab_size 999",
    ),
    "another tokenizer": (said(specjax={"fingerprint": "x"}), "another tokenizer"),
    "extra": (
        changed("model.norm.weight", np.zeros(3, np.float32)),
        r"model\.norm\.weight is no part of Medusa heads",
    ),
    "not finite": (nan, r"1\.1\.linear\.weight holds NaN"),
    "stored as integers": (
        changed("0.0.linear.bias", np.zeros(E, np.int32)),
        r"0\.0\.linear\.bias is stored as I32",
    ),
    "8 bits without a scale": (
        changed("0.0.linear.weight", np.zeros((E, E), np.int8)),
        r"0\.0\.linear\.weight is stored as I8, expected .*_scale",
    ),
    "ids out of range": (changed("token_map", [1, 2, V]), r"token_map must hold"),
    "ids twice": (changed("token_map", [1, 2, 2]), r"token_map must hold"),
    "ids of a square": (changed("token_map", [[1, 2]]), r"token_map must hold"),
    "no tree": (said(specjax={"choices": [[0, 0]]}), "specjax.choices is no tree"),
    "no choices": (said(specjax={"choices": 3}), "specjax.choices is no tree"),
    "a tree too deep": (
        said(specjax={"choices": [[0], [0, 0], [0, 0, 0]]}),
        "choices are 3 deep and there are 2 heads",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults(tmp_path, lm, fault):
    change, message = FAULTS[fault]
    made, config = tensors(), dict(SAYS)
    published_medusa.load(put(tmp_path / "sound", made, config), lm)
    change(made, config)
    with pytest.raises(ValueError, match=message):
        published_medusa.load(put(tmp_path / "spoilt", made, config), lm)


def test_what_is_no_draft(tmp_path, lm):
    folder = put(tmp_path / "m", {"weight": np.zeros(3, np.float32)}, {})
    with pytest.raises(ValueError, match="expected Medusa heads, found none"):
        published_medusa.load(folder, lm)
    (folder / "model.safetensors").unlink()
    (folder / "medusa_lm_head.pt").write_bytes(b"")
    with pytest.raises(ValueError, match=r"pickled weights .* are not read"):
        published_medusa.load(folder, lm)


def test_a_target_in_bfloat16(tmp_path, lm):
    half = dataclasses.replace(
        lm, model=dataclasses.replace(lm.model, dtype="bfloat16")
    )
    params = published_medusa.load(put(tmp_path / "m", tensors()), half).params
    assert params["head"].dtype == ml_dtypes.bfloat16


@pytest.mark.parametrize(
    ("options", "nodes", "depth"),
    [
        ({}, 15, 3),
        ({"nodes": 31}, 31, 3),
        ({"nodes": 3}, 3, 2),
    ],
)
def test_trees_by_options(lm, options, nodes, depth):
    made = drafters.make("medusa", lm, {"model": tiny_medusa.path(), **options})
    assert made.drafter.bounds.nodes == nodes
    assert made.drafter.bounds.depth == depth
    assert made.vocab_size == V


def test_the_measured_tree_is_the_default(lm):
    weights = published_medusa.MedusaWeights(tiny_medusa.params(), CHOICES, None)
    made = medusa_recipe.with_weights(lm, weights)
    assert made.drafter.bounds == (3, 2, 2)
    assert medusa_recipe.with_weights(lm, weights, nodes=2).drafter.bounds.nodes == 2


def test_options_that_do_not_fit(lm, tmp_path):
    path = tiny_medusa.path()
    with pytest.raises(ValueError, match=r"stage2 is 4 deep, .* 3 heads"):
        drafters.make("medusa", lm, {"model": path, "tree": "vicuna_7b_stage2"})
    with pytest.raises(ValueError, match="medusa: tree must be one of"):
        drafters.make("medusa", lm, {"model": path, "tree": "x"})
    with pytest.raises(ValueError, match="nodes must be at least 1"):
        drafters.make("medusa", lm, {"model": path, "nodes": 0})
    with pytest.raises(ValueError, match="drafter 'medusa': option 'model': expected"):
        drafters.make("medusa", lm, {"model": tmp_path / "none"})
    few = tiny_medusa.params(ids=np.arange(3))
    weights = published_medusa.MedusaWeights(few, None, None)
    with pytest.raises(ValueError, match=r"best tokens of each head, .* has 3"):
        medusa_recipe.with_weights(lm, weights)
