"""A target answers prompts, shard by shard.

A shard's prompts, seeds and temperatures follow from the settings and its number alone,
and a row's tokens do not depend on its batch mates: a run that was killed goes on with
the first shard that its card does not count, and ends with the bytes of one that was
not.
"""

import dataclasses
import hashlib
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from specjax import checkpoints, checks
from specjax.decoding import engine as engine_lib
from specjax.training.data import prompts as prompts_lib
from specjax.training.data import shards

Notify = Callable[[int, int], None]  # prompts done, tokens written so far
OWN = "own"  # source of user turns that the target wrote


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """How data is made.

    Attributes:
      temperatures: share of the answers that are drawn at each.
      max_new_tokens: most of an answer.
      max_prompt_tokens: longer prompts are left out.
      batch_size: prompts that run together.
      shard_size: prompts of a shard.
      own: user turns that the target writes itself, after the given prompts.
      seed: of all draws.
    """

    temperatures: Mapping[float, float] = dataclasses.field(
        default_factory=lambda: {0.0: 0.5, 1.0: 0.5}
    )
    max_new_tokens: int = 256
    max_prompt_tokens: int = 512
    batch_size: int = 16
    shard_size: int = 256
    own: int = 0
    seed: int = 0

    def validate(self) -> None:
        """Raises ValueError or TypeError naming the setting that does not fit."""
        for name in ("max_new_tokens", "max_prompt_tokens", "batch_size", "shard_size"):
            checks.integer("", name, getattr(self, name), 1)
        checks.integer("", "own", self.own, 0)
        checks.integer("", "seed", self.seed, 0)
        if not self.temperatures:
            raise ValueError("temperatures must be one or more, got none")
        for temperature, share in self.temperatures.items():
            for value in (temperature, share):
                checks.number("", "temperatures", value)
            if not (0 <= temperature < float("inf") and 0 < share < float("inf")):
                raise ValueError(
                    "temperatures must be from 0 up, with shares above 0, got "
                    f"{dict(self.temperatures)}"
                )

    def temperature_of(self, prompt: int) -> float:
        """The temperature that a prompt, by its id, is answered at."""
        share = prompts_lib.digest("temperature", self.seed, prompt) / 2**64
        share *= sum(self.temperatures.values())
        for temperature, part in sorted(self.temperatures.items()):
            share -= part
            if share < 0:
                return temperature
        return max(self.temperatures)


class _Asked(NamedTuple):
    """A prompt with its ids through the chat template."""

    prompt: prompts_lib.Prompt
    ids: list[int]


def harvest(
    lm: checkpoints.LanguageModel,
    prompts: Sequence[prompts_lib.Prompt],
    folder: pathlib.Path,
    settings: Settings,
    *,
    forbidden: frozenset[tuple[str, ...]] = frozenset(),
    notify: Notify = lambda done, tokens: None,
) -> dict[str, Any]:
    """Answers all prompts; goes on where an earlier run with the same settings ended.

    Args:
      lm: the target; it must have a chat template.
      prompts: given ones; equal ones are asked once.
      folder: for shards and card; it exists.
      settings: see ``Settings``.
      forbidden: runs of words that no prompt may have, see ``prompts.held_out``.
      notify: called after each batch.

    Returns:
      The card.

    Raises:
      ValueError: settings do not fit, there is nothing to ask, or the folder holds data
        of other settings.
      OSError: a shard can't be written; those before it stay.
    """
    settings.validate()
    if lm.chat_template is None:
        raise ValueError(
            f"model {lm.name!r} has no chat template, so its answers would not be "
            "those that users get; take one that was made for chat"
        )
    made = _Maker(lm, settings, forbidden)
    card = _begin(folder, made, prompts)
    groups = made.groups(prompts, folder, card)
    done = sum(card["documents"].values())
    for asked in groups:
        documents = []
        for batch in made.batches(asked):
            documents += made.answer(batch)
            tokens = card["tokens"] + sum(len(x.tokens) for x in documents)
            notify(done + len(documents), tokens)
        order = {item.prompt.id: at for at, item in enumerate(asked)}
        documents.sort(key=lambda document: order[document.id])
        shards.write(folder, card["shards"], documents, made.vocab_size)
        _count(card, asked, documents)
        shards.write_card(folder, card)
        done += len(documents)
    card["whole"] = True
    shards.write_card(folder, card)
    return card


class _Maker:
    """The target at work; keeps the engine and what must not be asked."""

    def __init__(self, lm, settings: Settings, forbidden) -> None:
        limit, most = settings.max_prompt_tokens, settings.max_new_tokens
        context = lm.model.config.max_context
        if limit + most > context:
            raise ValueError(
                f"max_prompt_tokens={limit} and max_new_tokens={most} exceed the "
                f"context of {context}, the limit of {lm.name!r}; lower one of them"
            )
        self.lm, self.settings, self.forbidden = lm, settings, forbidden
        self.vocab_size = lm.model.config.vocab_size
        self._engine = engine_lib.Engine(lm, max_context=limit + most)

    def groups(self, prompts, folder, card) -> Iterator[list[_Asked]]:
        """What each shard that is to be made asks, its drops counted in the card."""
        size, first = self.settings.shard_size, card["shards"]
        kept = prompts_lib.clean(prompts, self.forbidden)
        mixed = sorted(kept.prompts, key=lambda prompt: self._seed("order", prompt.id))
        given = [mixed[at : at + size] for at in range(0, len(mixed), size)]
        if first == 0:
            _add(card["dropped"], kept.dropped)
        for part in given[first:]:
            yield self._encode(part, card)
        seen = shards.ids(folder)
        for at in range(0, self.settings.own, size):
            if len(given) + at // size < first:
                continue
            count = min(size, self.settings.own - at)
            turns = self._own_turns(range(at, at + count))
            fresh = prompts_lib.clean(turns, self.forbidden, seen)
            _add(card["dropped"], fresh.dropped)
            seen |= {prompt.id for prompt in fresh.prompts}
            yield self._encode(fresh.prompts, card)

    def _encode(self, prompts, card) -> list[_Asked]:
        asked = [_Asked(x, self._engine.encode(x.text, chat=True)) for x in prompts]
        short = [x for x in asked if len(x.ids) <= self.settings.max_prompt_tokens]
        _add(card["dropped"], {"too long": len(asked) - len(short)})
        return short

    def batches(self, asked: list[_Asked]) -> Iterator[list[_Asked]]:
        """Prompts of like lengths together."""
        ordered = sorted(asked, key=lambda x: (len(x.ids), x.prompt.id))
        for at in range(0, len(ordered), self.settings.batch_size):
            yield ordered[at : at + self.settings.batch_size]

    def answer(self, batch: list[_Asked]) -> list[shards.Document]:
        """One answer to each."""
        options = [
            {
                "temperature": self.settings.temperature_of(asked.prompt.id),
                "seed": self._seed("answer", asked.prompt.id),
                "max_new_tokens": self.settings.max_new_tokens,
            }
            for asked in batch
        ]
        found = self._draw([asked.ids for asked in batch], options)
        documents = []
        for asked, new, option in zip(batch, found, options, strict=True):
            tokens = np.array([*asked.ids, *new.tokens], np.int32)
            answer = np.arange(len(tokens)) >= len(asked.ids)
            documents.append(
                shards.Document(
                    tokens=tokens,
                    answer=answer,
                    temperature=option["temperature"],
                    split=asked.prompt.split,
                    id=asked.prompt.id,
                )
            )
        return documents

    def _own_turns(self, numbers: Sequence[int]) -> list[prompts_lib.Prompt]:
        """User turns that the target writes behind its template's header of a user."""
        header = user_header(self.lm)
        found = []
        for at in range(0, len(numbers), self.settings.batch_size):
            part = numbers[at : at + self.settings.batch_size]
            options = [
                {
                    "temperature": 1.0,
                    "seed": self._seed(OWN, number),
                    "max_new_tokens": min(128, self.settings.max_prompt_tokens),
                }
                for number in part
            ]
            results = self._draw([header] * len(part), options)
            found += [x.text.strip() for x in results if x.finish_reason == "stop"]
        return [
            prompts_lib.Prompt(text, OWN, prompts_lib.split_of(text))
            for text in found
            if text
        ]

    def _draw(self, ids: list[list[int]], options: list[dict[str, Any]]):
        """One result a row; the last batch is filled up, since sizes compile anew."""
        spare = self.settings.batch_size - len(ids)
        job = self._engine.prepare(
            ids + ids[-1:] * spare, options + options[-1:] * spare
        )
        run = self._engine.start(job)
        run.advance(run.capacity)
        return self._engine.results(run)[: len(ids)]

    def _seed(self, *of: object) -> int:
        return prompts_lib.digest(self.settings.seed, *of) % 2**32


def user_header(lm: checkpoints.LanguageModel) -> list[int]:
    """Ids that the chat template puts before a user's first message.

    Raises:
      ValueError: the template does not put messages in as they are.
    """
    assert lm.chat_template is not None
    mark = "\u2021message\u2021"
    messages = [{"role": "user", "content": mark}]
    text = lm.chat_template.render(messages, add_generation_prompt=False)
    before, found, _ = text.partition(mark)
    if not found or not before:
        raise ValueError(
            f"model {lm.name!r}: its chat template puts nothing before a user's "
            "message, so it can't write one; give prompts and own=0"
        )
    return lm.tokenizer.encode(before, add_special_tokens=False)


def _begin(folder: pathlib.Path, made: _Maker, prompts) -> dict[str, Any]:
    """A new card, or that of an earlier run with the same settings."""
    lm = made.lm
    given = hashlib.sha256(repr([tuple(p) for p in prompts]).encode()).hexdigest()[:16]
    shown = dataclasses.asdict(made.settings)
    shown["temperatures"] = {f"{t:g}": s for t, s in made.settings.temperatures.items()}
    template = hashlib.sha256(lm.chat_template.source.encode()).hexdigest()[:16]
    head = {
        "model": lm.name,
        "fingerprint": lm.fingerprint,
        "vocab_size": made.vocab_size,
        "weights": lm.weights,
        "dtype": lm.model.dtype,
        "template_sha256": template,
        "prompts_sha256": given,
        "settings": shown,
    }
    if not prompts and not made.settings.own:
        raise ValueError("prompts: there are none; give a file or own=N")
    if (folder / shards.CARD).exists():
        card = shards.read_card(folder)
        for name, value in head.items():
            if card.get(name) != value:
                raise ValueError(
                    f"data: {folder} was made with {name}={card.get(name)!r}, this run "
                    f"has {value!r}; name another folder"
                )
        return card
    empty = {name: {} for name in ("documents", "sources", "temperatures", "dropped")}
    counts = {"shards": 0, "tokens": 0, "answer_tokens": 0, **empty}
    card = {"format": shards.FORMAT, **head, **counts, "whole": False}
    shards.write_card(folder, card)
    return card


def _count(card: dict[str, Any], asked, documents: list[shards.Document]) -> None:
    """Adds a shard to the card's counts."""
    card["shards"] += 1
    card["tokens"] += sum(len(document.tokens) for document in documents)
    card["answer_tokens"] += sum(int(x.answer.sum()) for x in documents)
    for document in documents:
        _add(card["documents"], {document.split: 1})
        _add(card["temperatures"], {f"{document.temperature:g}": 1})
    for item in asked:
        _add(card["sources"], {item.prompt.source: 1})


def _add(counts: dict[str, int], more: Mapping[str, int]) -> None:
    for name, count in more.items():
        counts[name] = counts.get(name, 0) + count
