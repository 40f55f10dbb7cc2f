"""Draft vocabularies: fewer logits than the target has ids, and which ids they are.

EAGLE-3 stores ``d2t``, offsets by which draft ids are turned into the target's, and
``t2d``, a mark for each id of the target; Medusa in vLLM has ``token_map``, the ids::

    ids   2 3 7      d2t = ids - (0 1 2) = 2 2 5      t2d marks 2, 3 and 7
"""

import numpy as np


def from_offsets(d2t: np.ndarray, vocab_size: int) -> np.ndarray:
    """Ids i64[Vd] of offsets ``d2t``.

    Raises:
      ValueError: they are no ascending ids of a vocabulary of ``vocab_size``; the
        message says what to do.
    """
    offsets = d2t.astype(np.int64)
    ids = offsets + np.arange(len(offsets))
    if _sound(ids, vocab_size):
        return ids
    if _sound(offsets, vocab_size):
        raise ValueError(
            "tensor d2t holds the target's ids, expected offsets from the draft's to "
            "them; subtract 0, 1, 2, ... from it (d2t - arange(len(d2t))) and save it "
            "again"
        )
    raise ValueError(
        f"tensor d2t must give ascending ids below {vocab_size} when 0, 1, 2, ... is "
        f"added to it, got {_told(ids)}; it is damaged, or of a target with another "
        "vocabulary"
    )


def to_offsets(ids: np.ndarray) -> np.ndarray:
    """``d2t`` i64[Vd] of ids."""
    return ids.astype(np.int64) - np.arange(len(ids))


def to_marks(ids: np.ndarray, vocab_size: int) -> np.ndarray:
    """``t2d`` bool[V] of ids."""
    marks = np.zeros(vocab_size, np.bool_)
    marks[ids] = True
    return marks


def check_marks(
    t2d: np.ndarray, d2t: np.ndarray, ids: np.ndarray, vocab_size: int
) -> None:
    """Refuses marks that are not of these ids.

    Args:
      t2d: as stored, bool or 0 and 1.
      d2t: as stored, to tell ids from offsets.
      ids: that ``from_offsets`` makes of it.
      vocab_size: V.

    Raises:
      ValueError: they disagree.
    """
    if t2d.shape != (vocab_size,):
        raise ValueError(
            f"tensor t2d has shape {t2d.shape}, expected ({vocab_size},), a mark for "
            "each id of the target; this draft is of a target with another vocabulary"
        )
    marked = np.flatnonzero(t2d)
    if np.array_equal(marked, ids):
        return
    if np.array_equal(marked, d2t.astype(np.int64)):
        raise ValueError(
            "tensor d2t holds the ids that t2d marks, expected offsets; subtract 0, 1, "
            "2, ... from it (d2t - arange(len(d2t))) and save it again"
        )
    raise ValueError(
        f"tensors t2d and d2t disagree: t2d marks {len(marked)} ids ({_told(marked)}), "
        f"d2t leads to {len(ids)} ({_told(ids)}); they are of different trainings: "
        "save both from the same one"
    )


def from_map(token_map: np.ndarray, vocab_size: int) -> np.ndarray:
    """Ids i64[Vd] of a ``token_map``.

    Raises:
      ValueError: they are not different ids of the vocabulary.
    """
    ids = token_map.astype(np.int64)
    if ids.ndim == 1 and _sound(np.sort(ids), vocab_size):
        return ids
    raise ValueError(
        f"tensor token_map must hold different ids below {vocab_size}, got "
        f"{_told(ids.ravel())}; it is damaged, or of a target with another vocabulary"
    )


def _sound(ids: np.ndarray, vocab_size: int) -> bool:
    """Whether these are ascending ids of a vocabulary."""
    if ids.ndim != 1 or not len(ids) or ids[0] < 0 or ids[-1] >= vocab_size:
        return False
    return bool(np.all(np.diff(ids) > 0))


def _told(ids: np.ndarray) -> str:
    if not len(ids):
        return "none"
    return f"{', '.join(map(str, ids[:3]))}, ... {ids[-1]}"
