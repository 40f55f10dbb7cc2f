"""Memory that headers promise is what a loaded model has."""

import jax
import numpy as np
import pytest
from safetensors import numpy as safetensors_numpy

from specjax import checkpoints
from specjax.evaluation import held
from tests import saved_model
from tests.small_checkpoint import Small


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A checkpoint whose matrices are of several formats, some of one leaf."""
    path = tmp_path_factory.mktemp("mixed")
    saved_model.write(path)
    weights = safetensors_numpy.load_file(path / "model.safetensors")
    for name in weights:
        if name.endswith(("o_proj.weight", "up_proj.weight", "down_proj.weight")):
            weights[name] = weights[name].astype(np.float16)
    saved_model.save_weights(path, weights)
    return path


def bytes_of(lm):
    return sum(leaf.nbytes for leaf in jax.tree.leaves(lm.params))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("form", checkpoints.WEIGHTS)
def test_bytes(folder, dtype, form):
    lm = checkpoints.load(folder, dtype=dtype, weights=form)
    told = held.weights(checkpoints.inspect(folder), lm.model.config, dtype, form)
    assert told.bytes == bytes_of(lm)
    assert ", ".join(told.formats) == lm.weights.replace("dense", dtype)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(
    ("kind", "kinds"),
    [
        ("Q8_0", {}),
        ("Q4_1", {}),
        ("Q8_0", {"blk.0.ffn_up.weight": "F16"}),
        ("Q8_0", {"blk.0.ffn_gate.weight": "Q4_0", "blk.1.attn_k.weight": "Q4_0"}),
    ],
)
@pytest.mark.parametrize("form", ["tiled", "int8", "stored"])
def test_bytes_of_blocks(tmp_path, form, kind, kinds, tied):
    small = Small(tie_word_embeddings=tied)
    path = small.gguf(tmp_path / "m.gguf", kind=kind, kinds=kinds)
    lm = checkpoints.load(path, dtype="bfloat16", weights=form)
    told = held.weights(checkpoints.inspect(path), lm.model.config, "bfloat16", form)
    assert told.bytes == bytes_of(lm)
    assert ", ".join(told.formats) == lm.weights != "dense"


@pytest.mark.parametrize(
    ("dtype", "form"), [(None, None), ("bfloat16", None), (None, "dense")]
)
def test_what_a_load_settles_on(folder, dtype, form):
    lm = checkpoints.load(folder, dtype=dtype, weights=form)
    taken = checkpoints.settle(dtype, form)
    assert taken[0] == lm.model.dtype
    assert held.weights(
        checkpoints.inspect(folder), lm.model.config, *taken
    ).bytes == bytes_of(lm)


def test_unknown_names():
    with pytest.raises(ValueError, match="dtype: expected one of float32"):
        checkpoints.settle("int8")
    with pytest.raises(ValueError, match="weights: expected one of stored"):
        checkpoints.settle(None, "packed")
