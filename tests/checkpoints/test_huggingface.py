"""Hugging Face directories: shards that lack, headers that lie, other files."""

import json

import jax
import numpy as np
import pytest
import safetensors.numpy

from specjax import checkpoints


def test_wide_numbers_are_read_as_float32(small, tmp_path):
    """Kernels have no format of 64 bits."""
    made = small()
    wide = {name: x.astype(np.float64) for name, x in made.tensors().items()}
    lm = checkpoints.load(
        made.directory(tmp_path / "wide", tensors=wide), weights="stored"
    )
    assert lm.weights == "f32"
    narrow = checkpoints.load(made.directory(tmp_path / "m"), weights="stored")
    jax.tree.map(np.testing.assert_array_equal, lm.params, narrow.params)


@pytest.mark.parametrize("cut", [0, 1, 7, 9, 200, -1])
def test_truncated_safetensors(small, tmp_path, cut):
    path = small().directory(tmp_path / "m")
    file = path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:cut])
    with pytest.raises(ValueError, match=r"model.safetensors: not a whole"):
        checkpoints.load(path)


def test_corrupt_safetensors_header(small, tmp_path):
    path = small().directory(tmp_path / "m")
    file = path / "model.safetensors"
    raw = bytearray(file.read_bytes())
    raw[8:20] = b"\xff" * 12
    file.write_bytes(raw)
    with pytest.raises(ValueError, match="not a whole safetensors"):
        checkpoints.load(path)


def test_a_missing_shard(small, tmp_path):
    path = small().directory(tmp_path / "m", shards=2)
    (path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ValueError, match=r"00002-of-00002.* this shard is missing"):
        checkpoints.load(path)


def test_an_index_that_promises_too_much(small, tmp_path):
    path = small().directory(tmp_path / "m", shards=2)
    index = path / "model.safetensors.index.json"
    parsed = json.loads(index.read_text())
    parsed["weight_map"]["ghost"] = "model-00001-of-00002.safetensors"
    index.write_text(json.dumps(parsed))
    with pytest.raises(ValueError, match="lacks tensor ghost"):
        checkpoints.load(path)


def test_an_index_that_points_outside(small, tmp_path):
    path = small().directory(tmp_path / "m", shards=2)
    index = path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "../other.safetensors"}}))
    with pytest.raises(ValueError, match="file names in this directory"):
        checkpoints.load(path)


def test_a_tensor_in_two_shards(small, tmp_path):
    path = small().directory(tmp_path / "m", shards=2)
    second = path / "model-00002-of-00002.safetensors"
    held = safetensors.numpy.load_file(str(second))
    held["lm_head.weight"] = np.zeros((1,), np.float32)
    safetensors.numpy.save_file(held, str(second))
    with pytest.raises(ValueError, match=r"lm_head.weight is both in"):
        checkpoints.load(path)


@pytest.mark.parametrize("text", ["", "{", "[1]", b"\xff\xfe{}"])
def test_config_that_is_not_an_object(small, tmp_path, text):
    path = small().directory(tmp_path / "m")
    raw = text if isinstance(text, bytes) else text.encode()
    (path / "config.json").write_bytes(raw)
    with pytest.raises(ValueError, match=r"config.json"):
        checkpoints.load(path)


def test_pickled_weights_are_not_read(small, tmp_path):
    path = small().directory(tmp_path / "m")
    (path / "model.safetensors").rename(path / "pytorch_model.bin")
    with pytest.raises(ValueError, match="convert them to safetensors"):
        checkpoints.load(path)


def test_an_empty_directory(tmp_path):
    with pytest.raises(ValueError, match=r"found no config.json"):
        checkpoints.load(tmp_path)
