"""Random Medusa heads for the tiny model, on disk."""

import atexit
import functools
import pathlib
import shutil
import tempfile
from typing import Any

import numpy as np

from specjax.drafters.neural import published_medusa
from tests import tiny_model


def params(
    heads: int = 3,
    layers: int = 2,
    size: int = 24,
    *,
    ids: np.ndarray | None = None,
    own: int = 0,
    scale: float = 0.01,
    seed: int = 0,
):
    """Params of random heads, as ``medusa_heads`` has them.

    Args:
      heads, layers, size: K, L, E.
      ids: the draft vocabulary.
      own: logits of matrices of their own, 0 for heads that use the target's.
      scale: of the blocks.
      seed: of the numbers.
    """
    random = np.random.default_rng(seed)

    def normal(*shape, scale):
        return random.normal(0.0, scale, shape).astype(np.float32)

    made: dict[str, Any] = {
        "blocks": {
            "w": normal(heads, layers, size, size, scale=scale),
            "b": normal(heads, layers, size, scale=scale),
        }
    }
    if own:
        made["head"] = normal(heads, size, own, scale=0.2)
    if ids is not None:
        made["ids"] = np.asarray(ids, np.int32)
    return made


@functools.cache
def path() -> str:
    """A folder of heads that say about what the model would say; it goes at the end.

    They use the model's own matrix, for three ids of four.
    """
    parent = pathlib.Path(tempfile.mkdtemp(prefix="specjax-medusa-"))
    atexit.register(shutil.rmtree, parent, ignore_errors=True)
    vocab = tiny_model.tokenizer().vocab_size
    ids = np.asarray([token for token in range(vocab) if token % 4 != 1])
    assert tiny_model.tokenizer().encode("x", add_special_tokens=False)[0] in ids
    published_medusa.save(
        parent / "heads", tiny_model.config(), params(ids=ids), form="float32"
    )
    return str(parent / "heads")
