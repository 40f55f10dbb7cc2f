"""Shards on disk: whole or refused."""

import json

import numpy as np
import pytest
import safetensors.numpy

from specjax.training.data import shards


def document(number, length=4, split=shards.TRAIN, temperature=0.0):
    tokens = np.arange(number, number + length, dtype=np.int32)
    return shards.Document(
        tokens=tokens,
        answer=np.arange(length) >= length // 2,
        temperature=temperature,
        split=split,
        id=2**63 + number,
    )


def folder_of(path, parts, vocab_size=300, **facts):
    for index, documents in enumerate(parts):
        shards.write(path, index, documents, vocab_size)
    shards.write_card(path, {"shards": len(parts), "fingerprint": "mine", **facts})
    return path


def test_documents_come_back_by_split(tmp_path):
    held = document(7, 3, shards.VALIDATION, 1.0)
    folder = folder_of(tmp_path, [[document(1), held], [], [document(20, 5)]])
    train = shards.read(folder, shards.TRAIN, fingerprint="mine")
    assert [x.tolist() for x in train.tokens] == [[1, 2, 3, 4], [20, 21, 22, 23, 24]]
    assert train.answer[0].tolist() == [False, False, True, True]
    assert train.tokens[0].dtype == np.int32
    validation = shards.read(folder, shards.VALIDATION)
    assert [x.tolist() for x in validation.tokens] == [[7, 8, 9]]
    assert validation.temperature.tolist() == [1.0]
    assert shards.ids(folder) == {2**63 + n for n in (1, 7, 20)}


@pytest.mark.parametrize(("vocab_size", "kind"), [(2**16, "uint16"), (70_000, "int32")])
def test_ids_take_as_little_room_as_they_can(tmp_path, vocab_size, kind):
    shards.write(tmp_path, 0, [document(vocab_size - 5)], vocab_size)
    arrays = safetensors.numpy.load_file(tmp_path / "shard-00000.safetensors")
    assert str(arrays["tokens"].dtype) == kind
    assert arrays["tokens"].tolist()[-1] == vocab_size - 2


def test_another_tokenizer_is_refused(tmp_path):
    folder_of(tmp_path, [[document(1)]])
    with pytest.raises(ValueError, match="another tokenizer"):
        shards.read(tmp_path, shards.TRAIN, fingerprint="other")


def test_a_missing_shard_is_refused(tmp_path):
    folder_of(tmp_path, [[document(1)], [document(2)]])
    (tmp_path / "shard-00000.safetensors").unlink()
    with pytest.raises(ValueError, match="0 shards from the first on, its card says 2"):
        shards.read(tmp_path, shards.TRAIN)


@pytest.mark.parametrize("cut", [0, 10, 200])
def test_a_truncated_shard_is_refused(tmp_path, cut):
    folder_of(tmp_path, [[document(1), document(9)]])
    path = tmp_path / "shard-00000.safetensors"
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(ValueError, match=r"can't read .*shard-00000"):
        shards.read(tmp_path, shards.TRAIN)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("answer", lambda x: x[:-1], "do not fit each other"),
        ("offsets", lambda x: x[::-1].copy(), "do not fit each other"),
        ("split", lambda x: x[:-1], "do not fit each other"),
        ("id", lambda x: x.astype(np.int32), "lacks the array 'id'"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(tmp_path, name, change, message):
    folder_of(tmp_path, [[document(1), document(9)]])
    path = tmp_path / "shard-00000.safetensors"
    arrays = safetensors.numpy.load_file(path)
    safetensors.numpy.save_file({**arrays, name: change(arrays[name])}, path)
    with pytest.raises(ValueError, match=message):
        shards.read(tmp_path, shards.TRAIN)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "can't read"),
        ("{", "not JSON"),
        (json.dumps({"format": "other"}), "not a card"),
    ],
)
def test_bad_cards(tmp_path, text, message):
    if text is not None:
        (tmp_path / shards.CARD).write_text(text)
    with pytest.raises(ValueError, match=message):
        shards.read(tmp_path, shards.TRAIN)


def test_unknown_split(tmp_path):
    with pytest.raises(ValueError, match="split must be one of train, validation"):
        shards.read(tmp_path, "test")
