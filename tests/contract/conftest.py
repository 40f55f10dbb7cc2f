"""What the contract suite runs over: every registered drafter, and the example."""

import functools

import pytest

from specjax import Engine, drafters
from tests import tiny_model
from tests.bigram import bigram

# Options for those that have no defaults on the tiny model.
CHILDREN = ["prompt_lookup", "bigram"]
OPTIONS = {
    "draft_model": {"layers": 1},
    "merge": {"children": CHILDREN},
    "fallback": {"children": CHILDREN},
}
CAPACITY = 256
WIDTHS = (1,)  # and whatever holds the drafter's whole tree
PROMPT_WIDTHS = (4, 16)
TEXTS = (
    "the ban and the ban and the",
    "an owl",
    "banana, banana; bandana: and then the banana, ban",
    "x",
)

drafters.register("bigram", bigram)


@functools.cache
def language_model():
    return tiny_model.language_model()


@functools.cache
def equipped(name: str) -> drafters.Equipped:
    return drafters.make(name, language_model(), OPTIONS.get(name))


@functools.cache
def engine(name: str) -> Engine:
    return make_engine(name)


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
def speculative(name) -> Engine:
    """The engine of the drafter under test, compiled once a bucket."""
    return engine(name)


@pytest.fixture(scope="session")
def plain() -> Engine:
    """Plain decoding, what everything is compared with."""
    return engine("none")
