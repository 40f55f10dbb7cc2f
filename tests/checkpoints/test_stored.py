"""Matrices that are kept as the checkpoint stores them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import linear
from specjax import checkpoints
from specjax.checkpoints import gguf
from tests.checkpoints.compare import BOTH, dense, same

WIDE = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 1}


def forms(params):
    """Params with every packed matrix decoded, shaped as the dense ones."""
    packed = [leaf for leaf in leaves(params) if isinstance(leaf, linear.Packed)]

    def turned(path, leaf):
        if not isinstance(leaf, linear.Packed):
            return leaf
        rows = linear.decode(leaf)  # [M, K]
        if path[0].key == "embed":
            return rows
        gate_up = path[-1].key == "gate_up"
        return jnp.split(rows.T, 2, axis=1) if gate_up else rows.T

    made = jax.tree_util.tree_map_with_path(turned, params, is_leaf=is_packed)
    return made, len(packed)


def is_packed(leaf):
    return isinstance(leaf, linear.Packed)


def leaves(params):
    return jax.tree.leaves(params, is_leaf=is_packed)


@pytest.mark.parametrize("weights", ["stored", "decoded"])
@pytest.mark.parametrize("name", BOTH)
def test_rows_decode_to_the_dense_weights(name, weights, small, tmp_path):
    arch, changes = BOTH[name]
    made = small(**changes)
    directory = made.directory(tmp_path / "m")
    path = made.gguf(tmp_path / "m.gguf", arch=arch, kind="Q8_0")
    for source in (directory, path):
        lm = checkpoints.load(source, weights=weights)
        decoded, count = forms(lm.params)
        tops = 1 if lm.model.config.tied_head else 2
        kinds = {"stored": "q8_0" if source == path else "f32", "decoded": "f32"}
        assert lm.weights == kinds[weights]
        assert count == 4 * lm.model.config.num_layers + tops
        same(decoded, dense(source).params, rtol=1e-6)


def test_stored_weights_keep_the_bytes_of_the_file(small, tmp_path):
    made = small()
    path = made.gguf(tmp_path / "m.gguf", kind="Q4_0")
    down = checkpoints.load(path, weights="stored").params["layers"][0]["down"]
    file = gguf.open_gguf(path)
    rows, kind = file.stored("blk.0.ffn_down.weight")
    assert down.kind == kind == "q4_0"
    assert down.rows.nbytes == rows.nbytes
    np.testing.assert_array_equal(
        linear.decode(down), linear.decode(linear.Packed(rows, kind))
    )


def test_parts_of_one_matrix_in_several_formats_are_decoded(small, tmp_path):
    made = small()
    path = made.gguf(
        tmp_path / "m.gguf", kind="Q8_0", kinds={"blk.0.attn_v.weight": "Q4_0"}
    )
    lm = checkpoints.load(path, weights="stored")
    kinds = [layer["qkv"].kind for layer in lm.params["layers"]]
    assert kinds == ["f32", "q8_0"]
    decoded, _ = forms(lm.params)
    same(decoded, dense(path).params, rtol=1e-6)


KEPT_AS = {
    "Q4_K": "q4_k",
    "Q6_K": "q6_k",
    "Q5_0": "q8_0",
    "IQ4_NL": "q8_0",
    "Q5_1": "f32",
    "Q2_K": "f32",
    "Q3_K": "f32",
    "Q5_K": "f32",
    "IQ4_XS": "f32",
    "TQ2_0": "f32",
}


@pytest.mark.parametrize("kind", KEPT_AS)
def test_other_blocks_of_gguf(kind, small, tmp_path):
    """Kept or decoded, the numbers are what the gguf package reads."""
    path = small(**WIDE).gguf(tmp_path / "m.gguf", kind=kind)
    lm = checkpoints.load(path, weights="stored")
    assert lm.weights == KEPT_AS[kind]
    decoded, _ = forms(lm.params)
    same(decoded, dense(path).params, rtol=0)


def test_a_mixture_of_k_quants_as_files_have_it(small, tmp_path):
    """v, down and the head in 6 bits: only the leaf that v is a part of is decoded."""
    finer = ("blk.0.attn_v.weight", "blk.0.ffn_down.weight", "output.weight")
    path = small(**WIDE).gguf(
        tmp_path / "m.gguf", kind="Q4_K", kinds=dict.fromkeys(finer, "Q6_K")
    )
    lm = checkpoints.load(path, weights="stored")
    (layer,) = lm.params["layers"]
    kinds = {leaf: layer[leaf].kind for leaf in ("qkv", "out", "gate_up", "down")}
    assert kinds == {"qkv": "f32", "out": "q4_k", "gate_up": "q4_k", "down": "q6_k"}
    assert (lm.params["embed"].kind, lm.params["head"].kind) == ("q4_k", "q6_k")
    decoded, _ = forms(lm.params)
    same(decoded, dense(path).params, rtol=0)


def test_what_narrow_rows_fall_back_to_shares_a_format(small, tmp_path):
    """Rows of 64 have no blocks of 256: files have Q5_0 and Q8_0 instead."""
    path = small().gguf(
        tmp_path / "m.gguf", kind="Q5_0", kinds={"blk.0.attn_v.weight": "Q8_0"}
    )
    lm = checkpoints.load(path, weights="stored")
    assert lm.weights == "q8_0"
    decoded, _ = forms(lm.params)
    same(decoded, dense(path).params, rtol=0)


@pytest.mark.parametrize("weights", ["stored", "decoded", "dense"])
def test_a_storage_that_is_not_read_is_refused_first(
    weights, small, tmp_path, monkeypatch
):
    path = small().gguf(
        tmp_path / "m.gguf", kind="Q8_0", kinds={"blk.1.ffn_up.weight": "Q8_1"}
    )
    monkeypatch.delattr(gguf.GgufFile, "_raw")  # Nothing is read of any tensor.
    message = r"blk.1.ffn_up.weight is stored as Q8_1, expected one of F32, .*Q6_K"
    with pytest.raises(ValueError, match=message):
        checkpoints.load(path, weights=weights)


def test_a_damaged_block_of_six_bits_is_named(small, tmp_path):
    path = small(**WIDE).gguf(tmp_path / "m.gguf", kind="Q6_K")
    info = gguf.open_gguf(path).tensors["blk.0.ffn_up.weight"]
    raw = bytearray(path.read_bytes())
    raw[info.offset + 208 : info.offset + 210] = np.float16(np.inf).tobytes()
    path.write_bytes(raw)
    with pytest.raises(ValueError, match=r"tensor blk.0.ffn_up.weight holds NaN"):
        checkpoints.load(path, weights="stored")


def test_a_damaged_block_is_named(small, tmp_path):
    path = small().gguf(tmp_path / "m.gguf", kind="Q8_0")
    info = gguf.open_gguf(path).tensors["blk.1.ffn_up.weight"]
    raw = bytearray(path.read_bytes())
    raw[info.offset + 34 : info.offset + 36] = np.float16(np.nan).tobytes()
    path.write_bytes(raw)
    with pytest.raises(ValueError, match=r"tensor blk.1.ffn_up.weight holds NaN"):
        checkpoints.load(path, weights="stored")


def test_stored_weights_can_not_be_stacked(small, tmp_path):
    path = small().directory(tmp_path / "m")
    with pytest.raises(ValueError, match=r"weights: stored matrices can't be stacked"):
        checkpoints.load(path, weights="stored", scanned=True)
