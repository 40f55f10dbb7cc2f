"""A model's own answers to prompts, kept as they come.

Answers go to a file of JSON lines: first the settings, then one row a prompt, each
batch written at once. A run that was interrupted, by whatever, goes on after the last
row that is whole.
"""

import hashlib
import json
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from specjax import checkpoints, files, parsing
from specjax.datastores import build
from specjax.decoding import engine as engine_lib
from specjax.decoding import request
from specjax.decoding import result as result_lib
from specjax.drafters.lookup import datastore as datastore_lib

ROWS = "generations.jsonl"  # its name in the folder of a datastore
Row = dict[str, Any]
Notify = Callable[[int], None]  # prompts done so far


def build_from_prompts(
    lm: checkpoints.LanguageModel,
    prompts: Sequence[str],
    *,
    rows: str | os.PathLike[str] | None = None,
    max_new_tokens: int = 128,
    batch_size: int = 8,
    sizes: build.Sizes | None = None,
    notify: Notify = lambda done: None,
) -> datastore_lib.Datastore:
    """A datastore of what a model answers, greedily, to some prompts.

    Its documents are the new tokens of each answer, stop ids included: what is to be
    drafted later. Prompts go through the chat template if the model has one.

    Args:
      lm: the model.
      prompts: the user's messages.
      rows: file that keeps the answers, see ``harvest``; None keeps them in memory.
      max_new_tokens: most tokens of an answer.
      batch_size: prompts that run together.
      sizes: ``Sizes()`` by default.
      notify: called with the number of prompts done after each batch.

    Raises:
      ValueError: no prompts, one does not fit, bad options, or the file is of other
        settings.
    """
    sizes = build.Sizes() if sizes is None else sizes
    sizes.validate()
    answers = harvest(
        lm,
        prompts,
        rows=rows,
        max_new_tokens=max_new_tokens,
        batch_size=batch_size,
        notify=notify,
    )
    return build.from_documents(
        [row["tokens"] for row in answers],
        vocab_size=lm.model.config.vocab_size,
        fingerprint=lm.fingerprint,
        sizes=sizes,
        made={
            "source": "prompts",
            "model": lm.name,
            "max_new_tokens": max_new_tokens,
        },
    )


def harvest(
    lm: checkpoints.LanguageModel,
    prompts: Sequence[str],
    *,
    rows: str | os.PathLike[str] | None = None,
    max_new_tokens: int = 128,
    batch_size: int = 8,
    notify: Notify = lambda done: None,
) -> list[Row]:
    """Answers of a model, in the order of the prompts.

    Args:
      lm: the model.
      prompts: the user's messages.
      rows: file that answers are added to batch by batch; one that a run with the
        same settings left is continued. Its folder must exist.
      max_new_tokens, batch_size, notify: see ``build_from_prompts``.

    Returns:
      Rows {"index", "tokens", "text", "finish_reason"}, one a prompt.

    Raises:
      ValueError: as for ``build_from_prompts``.
    """
    if isinstance(prompts, str) or not prompts:
        raise ValueError(f"prompts must be a list of at least one, got {prompts!r}")
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    engine, ids = _engine(lm, prompts, max_new_tokens)
    path = None if rows is None else pathlib.Path(rows)
    settings = _settings(lm, prompts, max_new_tokens)
    done = {} if path is None else _resume(path, settings)
    waiting = [index for index in range(len(prompts)) if index not in done]
    batch_size = min(batch_size, len(waiting)) if waiting else 1
    for at in range(0, len(waiting), batch_size):
        group = waiting[at : at + batch_size]
        # The last group is filled up: another number of rows would compile anew.
        filled = group + [group[-1]] * (batch_size - len(group))
        results = engine.generate(
            [ids[index] for index in filled], max_new_tokens=max_new_tokens
        )
        assert isinstance(results, list)
        new = [_row(*pair) for pair in zip(group, results, strict=False)]
        if path is not None:
            _append(path, new)
        done |= {row["index"]: row for row in new}
        notify(len(done))
    return [done[index] for index in range(len(prompts))]


def _row(index: int, result: result_lib.Result) -> Row:
    return {
        "index": index,
        "tokens": result.tokens,
        "text": result.text,
        "finish_reason": result.finish_reason,
    }


def _engine(lm, prompts: Sequence[str], max_new_tokens: int):
    """An engine that all prompts fit into, and their ids."""
    probe = engine_lib.Engine(lm)
    request.sampling_options(lm, {"max_new_tokens": max_new_tokens})  # checks it
    limit = lm.model.config.max_context
    ids, longest = [], 0
    for number, prompt in enumerate(prompts, start=1):
        ids.append(probe.encode(prompt))
        longest = max(longest, len(ids[-1]))
        if longest + max_new_tokens > limit:
            raise ValueError(
                f"prompts: number {number} has {longest} tokens, with max_new_tokens="
                f"{max_new_tokens} that exceeds the context of {limit}; ask for fewer "
                "or leave it out"
            )
    return engine_lib.Engine(lm, max_context=longest + max_new_tokens), ids


def _settings(lm, prompts: Sequence[str], max_new_tokens: int) -> dict[str, Any]:
    """What must be equal for two runs to be one: the first line of the file."""
    digest = hashlib.sha256(json.dumps(list(prompts)).encode())
    return {
        "model": lm.name,
        "fingerprint": lm.fingerprint,
        "dtype": lm.model.dtype,
        "max_new_tokens": max_new_tokens,
        "prompts": len(prompts),
        "prompts_sha256": digest.hexdigest()[:16],
    }


def _resume(path: pathlib.Path, settings: Mapping[str, Any]) -> dict[int, Row]:
    """Rows that an earlier run left by their index; the file then ends whole."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raw = b""
    except OSError as error:
        raise ValueError(f"rows: can't read {path} ({error.strerror})") from error
    lines = raw.split(b"\n")[:-1]  # a line without its break was cut short
    parsed = [_parse(path, number, line) for number, line in enumerate(lines, start=1)]
    before = parsed[0] if parsed else settings
    for name in {**before, **settings}:
        if before.get(name) != settings.get(name):
            raise ValueError(
                f"rows: {path} was written with {name}={before.get(name)!r}, this run "
                f"has {settings.get(name)!r}; name another file, or on the command "
                "line another folder or --overwrite"
            )
    kept: dict[int, Row] = {}
    for number, row in enumerate(parsed[1:], start=2):
        index = _check_row(path, number, row, settings["prompts"])
        kept.setdefault(index, row)
    _rewrite(path, [dict(settings), *kept.values()])
    return kept


def _parse(path: pathlib.Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        row = parsing.json_value(line)
    except ValueError as error:  # of JSON or UTF-8
        raise ValueError(f"rows: {path}:{number}: not a line of JSON") from error
    if not isinstance(row, dict):
        raise ValueError(f"rows: {path}:{number}: expected an object")
    return row


def _check_row(path: pathlib.Path, number: int, row: Row, prompts: int) -> int:
    index, tokens = row.get("index"), row.get("tokens")
    if not isinstance(index, int) or not 0 <= index < prompts:
        raise ValueError(f"rows: {path}:{number}: 'index' must be 0 to {prompts - 1}")
    if not isinstance(tokens, list) or not all(isinstance(t, int) for t in tokens):
        raise ValueError(f"rows: {path}:{number}: 'tokens' must be a list of ids")
    return index


def _rewrite(path: pathlib.Path, lines: Sequence[Mapping[str, Any]]) -> None:
    try:
        files.write(path, b"".join(map(_line, lines)))
    except OSError as error:
        raise ValueError(f"rows: can't write {path} ({error.strerror})") from error


def _append(path: pathlib.Path, rows: Sequence[Row]) -> None:
    """Adds rows in one write."""
    try:
        with path.open("ab") as file:
            file.write(b"".join(map(_line, rows)))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise ValueError(f"rows: can't write {path} ({error.strerror})") from error


def _line(row: Mapping[str, Any]) -> bytes:
    text = json.dumps(row, ensure_ascii=False)
    return text.encode("utf-8", "replace") + b"\n"
