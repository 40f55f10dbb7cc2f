"""What the contract suite runs over: every registered drafter, and the example."""

import functools
import pathlib
import tempfile

import pytest

from specjax import Engine, drafters
from specjax.models import costs
from tests import tiny_medusa, tiny_model, tiny_store
from tests.bigram import bigram

# Options for those that have no defaults on the tiny model.
CHILDREN = ["prompt_lookup", "bigram"]
# Costs so flat that every kind of draft pays, and the ladder has two rungs.
FLAT = costs.Costs((1, 16), (10.0, 11.0), (0.1, 0.2), 0.1)
OPTIONS = {
    "draft_model": {"layers": 1},
    "medusa": {"model": tiny_medusa.path()},
    "cascade": {"layers": 1, "k": "3,4/0,4", "lenience": 3},
    "merge": {"children": CHILDREN},
    "fallback": {"children": CHILDREN},
    "horizontal": {"children": CHILDREN, "tokens": [3, 4]},
    "max_gram": {"store": tiny_store.path()},
    "token_recycling": {"nodes": 15},  # a rung of 81 slots wants larger temporaries
    "corpus": {"store": tiny_store.path(), "max_hits": 16, "max_nodes": 15},
    "model_ngrams": {"store": tiny_store.path()},
    "hierarchy": {"store": tiny_store.path()},
    "with_suffixes": {"children": ["prompt_lookup", "phrase_pool"]},
}
CAPACITY = 256
WIDTHS = (1,)  # and whatever holds the drafter's whole tree
PROMPT_WIDTHS = (4, 16)
TEXTS = (
    "the ban and the ban and the",
    "an owl",
    "banana, banana; bandana: and then the banana, ban",
    "x",
    "to and fro, to and fro",
    "ab",
    "then the hen then the hen",
    "who? who? who? you",
)
# Three combinators deep, and a model that reviews Max-Gram below them.
NESTED = {
    "children": [
        {
            "name": "fallback",
            "options": {
                "children": [
                    "prompt_lookup",
                    {
                        "name": "horizontal",
                        "options": {
                            "children": ["cascade:layers=1:k=2,3/0,3", "bigram"],
                            "tokens": [2, 3],
                        },
                    },
                ]
            },
        },
        "context_ngrams",
    ],
    "budget": 15,
}

drafters.register("bigram", bigram)
drafters.register_builder("nested", lambda lm, _: drafters.make("merge", lm, NESTED))


@functools.cache
def language_model():
    return tiny_model.language_model()


@functools.cache
def equipped(name: str) -> drafters.Equipped:
    if name != "auto":
        return drafters.make(name, language_model(), OPTIONS.get(name))
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "costs.json"
        costs.save(path, FLAT)
        return drafters.make(name, language_model(), {"costs": path})


def make_engine(name: str, **changes) -> Engine:
    """A new engine of a drafter, with few widths so that it compiles fast."""
    options = {"widths": WIDTHS, "prompt_widths": PROMPT_WIDTHS, **changes}
    return Engine(language_model(), equipped(name), **options)


@pytest.fixture(scope="session", params=drafters.names())
def name(request) -> str:
    return request.param


@pytest.fixture(scope="session")
def lm():
    return language_model()


@pytest.fixture(scope="session")
def drafter(name) -> drafters.Equipped:
    return equipped(name)


@pytest.fixture(scope="session")
def speculative(name, plain) -> Engine:
    """The engine under test, compiled once a bucket; it goes when its tests are done.

    Programs take thousands of memory maps a drafter, and a process has 65,530.
    """
    return plain if name == "none" else make_engine(name)


@pytest.fixture(scope="session")
def plain() -> Engine:
    """Plain decoding, what everything is compared with."""
    return make_engine("none")
