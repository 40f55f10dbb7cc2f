"""Counting on the host: n-grams of documents, and what follows each token."""

import numpy as np

from specjax.drafters.lookup import suffix_array

NONE = -1  # where there is no phrase or successor


def ngram_table(
    text: np.ndarray,
    *,
    vocab_size: int,
    ngram: int,
    max_phrases: int,
    max_ngrams: int,
) -> dict[str, np.ndarray]:
    """The phrases that follow each token in most documents.

    An n-gram counts once a document, however often it occurs there. Of all n-grams
    the ``max_ngrams`` most frequent are kept, of each key the ``max_phrases`` most
    frequent of those; among equals the one that was seen earlier goes first.

    Args:
      text: NumPy i32[M], documents as ``suffix_array.join`` joins them.
      vocab_size: V.
      ngram: N, tokens of an n-gram; its first is the key.
      max_phrases: G, phrases of a key.
      max_ngrams: n-grams in all.

    Returns:
      phrase i32[V, G, N - 1], most frequent first, NONE where there is none; count
      i32[V, G], documents; total i32[V], counts of all n-grams of a key, those that
      are not kept included.
    """
    start, kind = _windows(text, vocab_size, ngram)
    document = np.cumsum(text == suffix_array.SEPARATOR)[start]
    # Once a document: of equal (document, n-gram) pairs the first stays.
    pair = document * np.int64(start.size + 1) + kind
    _, first = np.unique(pair, return_index=True)
    first = np.sort(first)
    _, at, count = np.unique(kind[first], return_index=True, return_counts=True)
    gram = start[first[at]]  # where each distinct n-gram was seen first
    total = np.zeros(vocab_size, np.int32)
    np.add.at(total, text[gram], count.astype(np.int32))
    best = np.lexsort((gram, -count))[:max_ngrams]
    best = best[np.argsort(text[gram[best]], kind="stable")]  # by key, best first
    key = text[gram[best]]
    rank = _rank_in_run(key)
    kept = rank < max_phrases
    key, rank, best = key[kept], rank[kept], best[kept]
    phrase = np.full((vocab_size, max_phrases, ngram - 1), NONE, np.int32)
    phrase[key, rank] = text[gram[best][:, None] + np.arange(1, ngram)]
    table = np.zeros((vocab_size, max_phrases), np.int32)
    table[key, rank] = count[best]
    return {"phrase": phrase, "count": table, "total": total}


def successors(text: np.ndarray, *, vocab_size: int) -> np.ndarray:
    """The most frequent next token of each id.

    Args:
      text: NumPy i32[M], documents as ``suffix_array.join`` joins them.
      vocab_size: V.

    Returns:
      i32[V]; NONE for an id that nothing follows; among equals the one that followed
      earlier.
    """
    start, kind = _windows(text, vocab_size, 2)
    _, at, count = np.unique(kind, return_index=True, return_counts=True)
    gram = start[at]
    best = np.lexsort((gram, -count, text[gram]))
    key = text[gram[best]]
    best = best[_rank_in_run(key) == 0]
    table = np.full(vocab_size, NONE, np.int32)
    table[text[gram[best]]] = text[gram[best] + 1]
    return table


def _windows(text: np.ndarray, vocab_size: int, width: int):
    """All windows of ``width`` tokens within a document.

    Returns:
      (start i64[n] in order, kind i64[n]): equal windows have the same kind.
    """
    size = max(text.size - width + 1, 0)
    parts = [text[i : i + size].astype(np.int64) for i in range(width)]
    start = np.arange(size)
    for part in parts:  # no separator inside
        start = start[part[start] != suffix_array.SEPARATOR]
    kind = parts[0][start]
    for part in parts[1:]:
        _, kind = np.unique(kind * vocab_size + part[start], return_inverse=True)
    return start, kind.astype(np.int64)


def _rank_in_run(key: np.ndarray) -> np.ndarray:
    """0, 1, 2, ... within each run of equal values."""
    if not key.size:
        return np.zeros(0, np.int64)
    index = np.arange(key.size)
    begins = np.concatenate([[True], key[1:] != key[:-1]])
    return index - np.maximum.accumulate(np.where(begins, index, 0))
