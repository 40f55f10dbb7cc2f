"""The GGUF reader: headers that lie, files that end."""

import contextlib
import struct

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from specjax.checkpoints import gguf


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


def test_a_storage_that_is_not_read(whole, opened):
    """Q8_0 rows relabelled as Q8_1, which the package can't decode."""
    file = opened(whole)
    info = file.tensors["blk.0.attn_k.weight"]
    other = info.__class__(info.shape, gguf.gguf.GGMLQuantizationType.Q3_K, 0, 0)
    changed = gguf.GgufFile(file.path, {}, {"blk.0.attn_k.weight": other})
    assert "stored as Q3_K, expected one of F32" in changed.problems()[0]


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
