"""Datastores on disk.

One is a folder with `store.json`, the facts, and a safetensors file, the arrays, whose
name has their hash in it. The arrays are written first, then the facts take the place
of the old ones in one step: whenever a process dies, the folder holds a whole store,
the old or the new one.
"""

import contextlib
import hashlib
import json
import os
import pathlib
import re
import time

import numpy as np
from safetensors import SafetensorError
from safetensors import numpy as safetensors_numpy

from specjax import checkpoints, files, parsing
from specjax.drafters.lookup import datastore as datastore_lib

FACTS = "store.json"
# What an earlier store, or a process that died, may have left.
_LEFT = re.compile(
    r"arrays-[0-9a-f]{16}\.safetensors(\.\d+\.part)?|store\.json\.\d+\.part"
)
_ABANDONED_SECONDS = 3600
_KINDS = {
    "parts": list,
    "fingerprint": str,
    "vocab_size": int,
    "documents": int,
    "tokens": int,
    "options": dict,
    "megabytes": dict,
    "arrays": str,
    "sha256": str,
}


def save(path: str | os.PathLike[str], store: datastore_lib.Datastore) -> None:
    """Writes a datastore; one that is there stays whole until the new one is.

    Args:
      path: the folder; it is made, its parent must exist.
      store: what to write.

    Raises:
      ValueError: the folder can't be written, or the store is not sound.
    """
    folder = pathlib.Path(path)
    datastore_lib.check_arrays("store", store.arrays, store.parts, store.vocab_size)
    raw = safetensors_numpy.save(
        {name: np.ascontiguousarray(array) for name, array in store.arrays.items()}
    )
    digest = hashlib.sha256(raw).hexdigest()
    name = f"arrays-{digest[:16]}.safetensors"
    facts = store.facts() | {"arrays": name, "sha256": digest}
    try:
        folder.mkdir(exist_ok=True)
        began = time.time()
        before = _named(folder)
        files.write(folder / name, raw)
        files.write(folder / FACTS, json.dumps(facts, indent=2).encode() + b"\n")
        for old in folder.iterdir():
            if _LEFT.fullmatch(old.name) and old.name != name:
                # Others may be saving here: what is fresh could be theirs.
                wait = 0 if old.name == before else _ABANDONED_SECONDS
                _unlink_older(old, began - wait)
        if not (folder / name).exists():  # one of them took it for the old store's
            files.write(folder / name, raw)
    except OSError as error:
        raise ValueError(
            f"path: can't write a datastore to {folder} ({error.strerror})"
        ) from error


def _named(folder: pathlib.Path) -> str | None:
    """The file of arrays that the store in a folder names, None without a sound one."""
    try:
        return read_facts(folder)["arrays"]
    except ValueError:
        return None


def _unlink_older(file: pathlib.Path, seconds: float) -> None:
    """Removes a file, if it is there, last written before ``seconds`` (Unix time)."""
    with contextlib.suppress(FileNotFoundError):
        if file.stat().st_mtime < seconds:
            file.unlink()


def load(
    path: str | os.PathLike[str], target: checkpoints.LanguageModel | str | None = None
) -> datastore_lib.Datastore:
    """Reads a datastore and checks all of it.

    Args:
      path: the folder.
      target: the model that it is for, whose vocabulary the tables are fitted to, or
        the fingerprint of a tokenizer; None takes any.

    Raises:
      ValueError: there is none, it is damaged or incomplete, was made for another
        tokenizer, or holds ids that the target lacks.
    """
    folder = pathlib.Path(path)
    facts = read_facts(folder)
    fingerprint = target if isinstance(target, str) or target is None else None
    limit = facts["vocab_size"]
    if isinstance(target, checkpoints.LanguageModel):
        fingerprint = target.fingerprint
        limit = target.model.config.vocab_size
    if fingerprint not in (None, facts["fingerprint"]):
        raise ValueError(
            f"store: {folder} was made for another tokenizer (fingerprint "
            f"{facts['fingerprint'][:12]}, the target has {fingerprint[:12]}); build "
            "one for this model"
        )
    try:
        arrays = _read_arrays(folder, facts)
    except ValueError:
        if read_facts(folder) == facts:
            raise
        return load(path, target)  # another store took its place meanwhile
    datastore_lib.check_arrays(f"store: {folder}", arrays, facts["parts"], limit)
    return datastore_lib.Datastore(
        arrays=datastore_lib.fit(arrays, limit),
        fingerprint=facts["fingerprint"],
        vocab_size=limit,
        documents=facts["documents"],
        tokens=facts["tokens"],
        options=facts["options"],
    )


def read_facts(path: str | os.PathLike[str]) -> datastore_lib.Facts:
    """What `store.json` in a folder says; the arrays are not looked at.

    Raises:
      ValueError: there is no datastore, or the file is not one of this version.
    """
    file = pathlib.Path(path) / FACTS
    try:
        facts = parsing.json_value(file.read_bytes())
    except OSError as error:
        raise ValueError(
            f"store: {os.fspath(path)} is no datastore, can't read {FACTS} there "
            f"({error.strerror}); make one with `specjax datastore build`"
        ) from error
    except ValueError as error:  # of JSON or UTF-8
        raise ValueError(f"store: {file} is not valid JSON ({error})") from error
    if not isinstance(facts, dict) or facts.get("format") != datastore_lib.FORMAT:
        raise ValueError(f"store: {file} does not describe a datastore")
    if facts.get("version") != datastore_lib.VERSION:
        raise ValueError(
            f"store: {file} has version {facts.get('version')!r}, this specjax reads "
            f"{datastore_lib.VERSION}; build the store again"
        )
    _check_facts(file, facts)
    return facts


def _check_facts(file: pathlib.Path, facts: datastore_lib.Facts) -> None:
    for key, kind in _KINDS.items():
        if not isinstance(facts.get(key), kind):
            raise ValueError(
                f"store: {file}: {key!r} must be {kind.__name__}, got "
                f"{facts.get(key)!r}; build the store again"
            )
    unknown = [part for part in facts["parts"] if part not in datastore_lib.PARTS]
    name = facts["arrays"]
    if unknown or pathlib.PurePath(name).name != name:
        raise ValueError(
            f"store: {file} names {(unknown or [name])[0]!r}, which no datastore has"
        )


def _read_arrays(
    folder: pathlib.Path, facts: datastore_lib.Facts
) -> dict[str, np.ndarray]:
    path = folder / facts["arrays"]
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise ValueError(f"store: can't read {path} ({error.strerror})") from error
    if hashlib.sha256(raw).hexdigest() != facts["sha256"]:
        raise ValueError(
            f"store: {path} is truncated or damaged, its sha256 is not what {FACTS} "
            "says; copy or build it again"
        )
    try:
        return safetensors_numpy.load(raw)
    except SafetensorError as error:
        raise ValueError(f"store: {path} is not safetensors ({error})") from error
