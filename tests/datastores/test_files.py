"""Datastores on disk: whole, damaged, and while a process dies."""

import dataclasses
import hashlib
import json
import os

import numpy as np
import pytest
from safetensors import numpy as safetensors_numpy

from specjax import datastores
from specjax.drafters.lookup import datastore_files
from tests import tiny_model, tiny_store


@pytest.fixture(scope="module")
def lm():
    return tiny_model.language_model()


@pytest.fixture
def store():
    return tiny_store.make()


@pytest.fixture
def folder(tmp_path, store):
    datastores.save(tmp_path / "store", store)
    return tmp_path / "store"


def assert_equal(first, second):
    assert set(first.arrays) == set(second.arrays)
    for name, array in first.arrays.items():
        np.testing.assert_array_equal(array, second.arrays[name])
    assert first.facts() == second.facts()


def respell(folder, **changes):
    """Changes facts of a store; a change to None removes one."""
    path = folder / datastore_files.FACTS
    facts = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({k: v for k, v in facts.items() if v is not None}))


def rewrite(folder, arrays):
    """Puts other arrays in, with a hash that agrees."""
    store = datastores.load(folder)
    kept = {**store.arrays, **arrays}
    raw = safetensors_numpy.save({k: v for k, v in kept.items() if v is not None})
    (folder / "other.safetensors").write_bytes(raw)
    digest = hashlib.sha256(raw).hexdigest()
    respell(folder, arrays="other.safetensors", sha256=digest)


def test_round_trip(folder, store, lm):
    assert_equal(datastores.load(folder, lm), store)
    assert_equal(datastores.load(folder, store.fingerprint), store)
    assert_equal(datastores.load(folder), store)


def test_facts_say_what_there_is(folder, store):
    facts = datastore_files.read_facts(folder)
    assert facts["parts"] == ["corpus", "model_ngrams", "successor"]
    assert facts["documents"] == 9
    assert facts["megabytes"]["text"] == store.arrays["text"].size * 4 / 1e6
    assert facts["options"]["ngram"] == 5


def test_a_store_may_have_some_parts_only(tmp_path, store):
    arrays = {"successor": store.arrays["successor"]}
    part = dataclasses.replace(store, arrays=arrays)
    datastores.save(tmp_path / "part", part)
    assert datastores.load(tmp_path / "part").parts == ("successor",)


def test_another_tokenizer_is_refused(folder):
    with pytest.raises(ValueError, match="another tokenizer"):
        datastores.load(folder, "0" * 64)


def test_ids_that_the_target_lacks_are_refused(folder, lm):
    narrow = dataclasses.replace(
        lm,
        model=dataclasses.replace(
            lm.model, config=dataclasses.replace(lm.model.config, vocab_size=50)
        ),
    )
    with pytest.raises(ValueError, match="expected -1 to 49"):
        datastores.load(folder, narrow)


@pytest.mark.parametrize("vocab_size", [270, 260])
def test_tables_are_fitted_to_another_embedding(tmp_path, lm, vocab_size):
    """The same tokenizer, other padding: made for 264 ids of which 260 are tokens."""
    documents = [lm.tokenizer.encode("the ban and the ban")]
    made = datastores.from_documents(
        documents, vocab_size=264, fingerprint=lm.fingerprint
    )
    datastores.save(tmp_path / "padded", made)
    config = dataclasses.replace(lm.model.config, vocab_size=vocab_size)
    target = dataclasses.replace(lm, model=dataclasses.replace(lm.model, config=config))
    store = datastores.load(tmp_path / "padded", target)
    assert store.vocab_size == vocab_size
    for name in ("phrase", "count", "total", "successor"):
        rows = store.arrays[name]
        assert rows.shape[0] == vocab_size
        np.testing.assert_array_equal(rows[:260], made.arrays[name][:260])
        assert np.all(rows[260:] <= 0)


@pytest.mark.parametrize("spoil", ["cut", "flipped", "gone"])
def test_damaged_arrays_are_refused(folder, spoil):
    (path,) = folder.glob("arrays-*.safetensors")
    raw = bytearray(path.read_bytes())
    if spoil == "cut":
        path.write_bytes(raw[:-4])
    elif spoil == "flipped":
        raw[-5] ^= 1
        path.write_bytes(raw)
    else:
        path.unlink()
    with pytest.raises(ValueError, match=r"truncated or damaged|can't read"):
        datastores.load(folder)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"order": None}, "'order' is missing"),
        ({"total": None}, "'total' is missing"),
        ({"text": np.zeros((2, 2), np.int32)}, "'text' must be int32 with 1 axes"),
        ({"text": np.zeros(3, np.int64)}, "'text' must be int32"),
        ({"successor": np.zeros(0, np.int32)}, "'successor' must be int32"),
        ({"successor": np.full(3, 999, np.int32)}, "'successor' holds 999 to 999"),
        ({"text": np.full(3, -2, np.int32)}, "'text' holds -2"),
        ({"order": np.full(3, 9999, np.int32)}, "'order' holds 9999"),
        ({"order": np.zeros(3, np.int32)}, "'text' .* and 'order' .* do not belong"),
        ({"total": np.zeros(3, np.int32)}, "'phrase' .* and 'total' .* do not belong"),
        ({"count": np.zeros((3, 2), np.int32)}, "'phrase' .* and 'count'"),
        ({"count": np.full((3, 2), -1, np.int32)}, "'count' holds -1"),
    ],
)
def test_unsound_arrays_are_refused(folder, arrays, message):
    rewrite(folder, arrays)
    with pytest.raises(ValueError, match=f"^store: .*{message}"):
        datastores.load(folder)


def test_a_file_of_another_kind_is_refused(folder):
    raw = b"no tensors"
    (folder / "x").write_bytes(raw)
    digest = hashlib.sha256(raw).hexdigest()
    respell(folder, arrays="x", sha256=digest)
    with pytest.raises(ValueError, match="not safetensors"):
        datastores.load(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "other"}, "does not describe a datastore"),
        ({"version": 2}, "has version 2, this specjax reads 1"),
        ({"fingerprint": None}, "'fingerprint' must be str, got None"),
        ({"vocab_size": "many"}, "'vocab_size' must be int"),
        ({"parts": ["corpus", "poems"]}, "names 'poems'"),
        ({"parts": []}, "has no part"),
        ({"arrays": "../arrays"}, r"names '\.\./arrays'"),
    ],
)
def test_unsound_facts_are_refused(folder, changes, message):
    respell(folder, **changes)
    with pytest.raises(ValueError, match=f"^store: .*{message}"):
        datastores.load(folder)


@pytest.mark.parametrize("content", [b"{", b"\xff", b"[]"])
def test_facts_that_are_no_json_object(folder, content):
    (folder / datastore_files.FACTS).write_bytes(content)
    with pytest.raises(ValueError, match=r"^store: "):
        datastores.load(folder)


def test_no_store_at_all(tmp_path):
    with pytest.raises(ValueError, match=r"is no datastore.*No such file"):
        datastores.load(tmp_path)


class _Death(BaseException):
    pass


@pytest.mark.parametrize("step", range(4))
def test_a_process_that_dies_leaves_a_whole_store(folder, store, monkeypatch, step):
    """Dying before each sync and each rename: the store is the old one."""
    calls = []

    def dying(function):
        def call(*arguments):
            calls.append(function)
            if len(calls) > step:
                raise _Death
            return function(*arguments)

        return call

    new = dataclasses.replace(store, arrays={**store.arrays, "text": spread(store)})
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", dying(os.fsync))
        patch.setattr(os, "replace", dying(os.replace))
        with pytest.raises(_Death):
            datastores.save(folder, new)
    assert_equal(datastores.load(folder), store)
    datastores.save(folder, new)
    assert_equal(datastores.load(folder), new)
    assert len(list(folder.iterdir())) == 2


def spread(store):
    return np.where(store.arrays["text"] < 0, -1, store.arrays["text"] // 2)


def test_two_that_save_at_once_leave_one_whole(folder, store, monkeypatch):
    other = dataclasses.replace(store, arrays={**store.arrays, "text": spread(store)})
    replace = os.replace

    def interrupted(part, path):
        replace(part, path)
        if "arrays-" in str(path):
            monkeypatch.setattr(os, "replace", replace)
            datastores.save(folder, other)

    monkeypatch.setattr(os, "replace", interrupted)
    datastores.save(folder, store)
    assert_equal(datastores.load(folder), store)


def test_what_a_dead_process_left_is_swept_up_later(folder, store):
    left = folder / "arrays-0123456789abcdef.safetensors.99999.part"
    left.write_text("")
    datastores.save(folder, store)
    assert left.exists()  # it may be somebody's who is writing it now
    os.utime(left, (0, 0))
    datastores.save(folder, store)
    assert not left.exists()


def test_files_of_others_are_left_alone(folder, store):
    (folder / "arrays-of-mine.safetensors").write_text("")
    datastores.save(folder, store)
    assert (folder / "arrays-of-mine.safetensors").exists()


def test_what_can_not_be_written(tmp_path, store):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"^path: can't write"):
        datastores.save(tmp_path / "file", store)
    with pytest.raises(ValueError, match=r"^path: can't write"):
        datastores.save(tmp_path / "no" / "such", store)
