"""From documents to a datastore."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from specjax import checkpoints, checks
from specjax.datastores import counts
from specjax.drafters.lookup import datastore as datastore_lib
from specjax.drafters.lookup import suffix_array

Notify = Callable[[int], None]  # documents done so far
_RANGES = {"ngram": (2, 64), "max_phrases": (1, 4096), "max_ngrams": (1, 2**27)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sizes:
    """How much of the documents is kept.

    Attributes:
      ngram: tokens of a model n-gram, its key included.
      max_phrases: n-grams of a key.
      max_ngrams: n-grams in all.
    """

    ngram: int = 5
    max_phrases: int = 7
    max_ngrams: int = 100_000

    def validate(self) -> None:
        """Raises TypeError or ValueError naming the size that is out of range."""
        for name, (least, most) in _RANGES.items():
            checks.integer("", name, getattr(self, name), least, most)


def from_documents(
    documents: Iterable[Sequence[int]],
    *,
    vocab_size: int,
    fingerprint: str,
    sizes: Sizes | None = None,
    made: dict[str, Any] | None = None,
) -> datastore_lib.Datastore:
    """A datastore with all parts, of documents that are token ids already.

    Args:
      documents: the ids of each; empty ones are left out.
      vocab_size: V.
      fingerprint: of the tokenizer.
      sizes: ``Sizes()`` by default.
      made: what else to note of how the store was made.

    Raises:
      ValueError: no tokens at all, ids outside the vocabulary, or bad sizes.
    """
    sizes = Sizes() if sizes is None else sizes
    sizes.validate()
    kept = [np.asarray(ids, np.int64) for ids in documents if len(ids)]
    if not kept:
        raise ValueError("documents must hold at least one token, got none")
    for ids in kept:
        if ids.min() < 0 or ids.max() >= vocab_size:
            raise ValueError(
                f"documents must hold ids 0 to {vocab_size - 1}, got {ids.min()} to "
                f"{ids.max()}"
            )
    text = suffix_array.join(kept)
    table = counts.ngram_table(text, vocab_size=vocab_size, **dataclasses.asdict(sizes))
    return datastore_lib.Datastore(
        arrays={
            "text": text,
            "order": suffix_array.build(text),
            **table,
            "successor": counts.successors(text, vocab_size=vocab_size),
        },
        fingerprint=fingerprint,
        vocab_size=vocab_size,
        documents=len(kept),
        tokens=sum(ids.size for ids in kept),
        options={**dataclasses.asdict(sizes), **(made or {})},
    )


def build_from_texts(
    lm: checkpoints.LanguageModel,
    texts: Iterable[str],
    *,
    sizes: Sizes | None = None,
    notify: Notify = lambda done: None,
) -> datastore_lib.Datastore:
    """A datastore of plain texts, one a document.

    What looks like a special token in them counts as plain characters.

    Args:
      lm: the model whose tokens the store is to speak.
      texts: the documents.
      sizes: ``Sizes()`` by default.
      notify: called with the number of documents after each.

    Raises:
      ValueError: no text with tokens, or bad sizes.
      TypeError: a document is not text.
    """
    if isinstance(texts, str):
        raise TypeError("texts must be a list of documents, got one str")
    sizes = Sizes() if sizes is None else sizes
    sizes.validate()
    documents = []
    for text in texts:
        documents.append(
            lm.tokenizer.encode(text, add_special_tokens=False, parse_special=False)
        )
        notify(len(documents))
    if not any(documents):
        raise ValueError("texts must hold at least one document with words, got none")
    return from_documents(
        documents,
        vocab_size=lm.model.config.vocab_size,
        fingerprint=lm.fingerprint,
        sizes=sizes,
        made={"source": "texts", "model": lm.name},
    )
