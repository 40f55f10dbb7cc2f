"""The GGUF reader: headers that lie, files that end."""

import contextlib
import dataclasses
import struct

import hypothesis
import jax.numpy as jnp
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind
from hypothesis import strategies as st

from pallas_kernels import linear
from specjax.checkpoints import gguf
from tests import gguf_blocks


@pytest.fixture(scope="module")
def whole(small, tmp_path_factory):
    """The bytes of a whole small file."""
    path = tmp_path_factory.mktemp("gguf") / "m.gguf"
    return small().gguf(path, kind="Q8_0").read_bytes()


@pytest.fixture
def opened(tmp_path):
    """Writes bytes and opens them."""

    def write(raw):
        path = tmp_path / "m.gguf"
        path.write_bytes(raw)
        return gguf.open_gguf(path)

    return write


def test_header_of_a_whole_file(whole, opened):
    file = opened(whole)
    assert file.metadata["llama.block_count"] == 2
    assert file.metadata["tokenizer.ggml.tokens"][0] == "<|end|>"
    assert file.shapes["blk.0.attn_k.weight"] == (32, 64)
    assert file.problems() == []


@hypothesis.given(st.data())
@hypothesis.settings(
    suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture]
)
def test_a_file_cut_anywhere_is_refused(whole, opened, data):
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(ValueError, match=r"truncated|too short"):
        opened(whole[:cut])


@hypothesis.given(st.data())
@hypothesis.settings(
    suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture],
    max_examples=200,
)
def test_noise_in_the_header_never_crashes(whole, opened, data):
    """Either it still reads, or a ValueError says why not."""
    raw = bytearray(whole)
    at = data.draw(st.integers(4, 3000))
    noise = data.draw(st.binary(min_size=1, max_size=8))
    raw[at : at + len(noise)] = noise
    with contextlib.suppress(ValueError):
        opened(bytes(raw))


def test_another_magic(opened):
    with pytest.raises(ValueError, match="does not begin with 'GGUF'"):
        opened(b"PK\x03\x04" + bytes(100))


@pytest.mark.parametrize("version", [1, 4, 0x03000000])
def test_another_version(opened, version):
    with pytest.raises(ValueError, match=f"GGUF version {version} is not read"):
        opened(b"GGUF" + struct.pack("<IQQ", version, 0, 0))


def test_a_length_past_the_end(opened):
    """An array of 2**60 numbers must not be waited for."""
    key = b"k"
    head = b"GGUF" + struct.pack("<IQQ", 3, 0, 1)
    entry = struct.pack("<Q", len(key)) + key + struct.pack("<IIQ", 9, 4, 2**60)
    with pytest.raises(ValueError, match="ends inside metadata k"):
        opened(head + entry)


def test_an_overlong_tensor(opened):
    """2**62 * 2**62 elements overflow 64 bits; the check does not."""
    name = b"t"
    head = b"GGUF" + struct.pack("<IQQ", 3, 1, 0)
    entry = struct.pack("<Q", 1) + name
    entry += struct.pack("<IQQIQ", 2, 2**62, 2**62, 0, 0)
    with pytest.raises(ValueError, match="tensor t ends at byte"):
        opened(head + entry)


def test_a_part_of_a_split_model(small, tmp_path):
    path = small().gguf(tmp_path / "m.gguf", metadata={"split.count": 3})
    with pytest.raises(ValueError, match="one of 3 parts"):
        gguf.open_gguf(path)


def relabelled(file, name, kind):
    """The file with a tensor's storage called something else."""
    info = dataclasses.replace(file.tensors[name], kind=Kind[kind])
    return dataclasses.replace(file, tensors={**file.tensors, name: info})


@pytest.mark.parametrize("kind", ["Q8_1", "Q8_K", "I8", "F64"])
def test_a_storage_that_is_not_read(whole, opened, kind):
    changed = relabelled(opened(whole), "blk.0.attn_k.weight", kind)
    (problem,) = changed.problems()
    assert f"tensor blk.0.attn_k.weight is stored as {kind}, expected one" in problem
    for known in ("F16", "Q4_0", "Q5_1", "Q4_K", "Q6_K", "IQ4_XS"):
        assert f" {known}," in problem
    assert f" {kind}," not in problem.split("expected")[1]
    with pytest.raises(ValueError, match=f"is stored as {kind}, expected one of"):
        changed.read("blk.0.attn_k.weight")


def header_of(kind, inputs, outputs):
    """A file of one tensor t, up to its data at byte 96."""
    entry = struct.pack("<Q", 1) + b"t"
    entry += struct.pack("<IQQIQ", 2, inputs, outputs, Kind[kind], 0)
    return (b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + entry).ljust(96, b"\0")


@pytest.mark.parametrize("kind", gguf_blocks.HALVES)
def test_blocks_are_decoded_as_the_package_does(kind, opened, monkeypatch):
    """A few rows at a time, and as rows for kernels the same numbers."""
    monkeypatch.setattr(gguf, "_ROWS", 4)
    rows = gguf_blocks.random_rows(kind, 11, 512)
    file = opened(header_of(kind, 512, 11) + rows.tobytes())
    wanted = gguf_blocks.dequantize(rows, kind)
    np.testing.assert_array_equal(file.read("t"), wanted)
    stored, name = file.stored("t")
    packed = linear.Packed(jnp.asarray(stored), name)
    np.testing.assert_array_equal(linear.decode(packed), wanted)


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [("Q4_K", "q4_k"), ("Q6_K", "q6_k"), ("Q5_0", "q8_0"), ("Q5_K", "f32")],
)
def test_rows_stay_blocks_where_kernels_have_some_for_them(kind, wanted, opened):
    rows = gguf_blocks.random_rows(kind, 3, 256)
    stored, name = opened(header_of(kind, 256, 3) + rows.tobytes()).stored("t")
    assert name == wanted
    if name == kind.lower():
        np.testing.assert_array_equal(stored, rows)


@pytest.mark.parametrize("kind", ["Q4_K", "Q6_K", "Q5_0"])
def test_blocks_cut_short_are_refused(kind, opened):
    raw = header_of(kind, 256, 3) + gguf_blocks.random_rows(kind, 3, 256).tobytes()
    with pytest.raises(ValueError, match=f"tensor t ends at byte {len(raw)}, the file"):
        opened(raw[:-1])


def test_rows_that_are_no_whole_blocks(opened):
    with pytest.raises(ValueError, match=r"tensor t has rows of 64, .* 256 for Q4_K"):
        opened(header_of("Q4_K", 64, 8) + bytes(1000))


def test_no_such_file(tmp_path):
    with pytest.raises(ValueError, match="found no such file"):
        gguf.open_gguf(tmp_path / "none.gguf")


def test_read_gives_float32_that_owns_its_memory(small, tmp_path):
    made = small()
    path = made.gguf(tmp_path / "m.gguf", kind="F16")
    file = gguf.open_gguf(path)
    value = file.read("token_embd.weight")
    assert value.dtype == np.float32
    wanted = made.tensors()["model.embed_tokens.weight"]
    np.testing.assert_allclose(value, wanted, atol=2e-3)
    norm = file.read("output_norm.weight")
    path.unlink()
    np.testing.assert_array_equal(norm, made.tensors()["model.norm.weight"])
