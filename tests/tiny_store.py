"""A small datastore for the tiny model, on disk."""

import atexit
import functools
import pathlib
import shutil
import tempfile

import numpy as np

from specjax import datastores
from tests import tiny_model

TEXTS = (
    "the ban and the ban and the bandana",
    "an owl and then an owl and then",
    "banana, banana; bandana: and then the banana, ban",
    "the than the than the",
    "x" * 30,  # what the tiny model says to the contract suite's prompts
)


@functools.cache
def path() -> str:
    """The folder of a datastore with all parts; it goes when the process ends."""
    parent = pathlib.Path(tempfile.mkdtemp(prefix="specjax-store-"))
    atexit.register(shutil.rmtree, parent, ignore_errors=True)
    datastores.save(parent / "store", make())
    return str(parent / "store")


def make() -> datastores.Datastore:
    """The datastore: a few texts, and random ids below 6 that follow one another."""
    words = tiny_model.tokenizer()
    random = np.random.default_rng(0)
    documents = [words.encode(text, add_special_tokens=False) for text in TEXTS]
    documents += [random.integers(0, 6, 60).tolist() for _ in range(4)]
    return datastores.from_documents(
        documents, vocab_size=words.vocab_size, fingerprint=words.fingerprint()
    )
