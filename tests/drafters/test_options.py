"""What is read off a factory, and how values are."""

import pathlib

import pytest

from specjax import drafters
from specjax.drafters import options


def factory(
    drafter=None,
    *,
    vocab_size: int = 0,
    depth: int = 3,
    chance: float = 0.5,
    tokens: tuple[int, ...] = (1, 2),
    order: str = "newest",
    compat: bool = False,
):
    """Drafts ``this`` and that.

    More of it, a: b.

    Args:
      drafter: no option.
      vocab_size: V.
      depth, chance: of what; it goes on
        here: and ``here``.
      tokens: x.

    Raises:
      order: nothing.
    """


def test_what_a_factory_takes():
    assert [(o.name, o.kind, o.default) for o in options.of(factory)] == [
        ("depth", options.INTEGER, 3),
        ("chance", options.NUMBER, 0.5),
        ("tokens", options.INTEGERS, (1, 2)),
        ("order", options.TEXT, "newest"),
        ("compat", options.SWITCH, False),
    ]


def test_what_its_options_mean():
    told = {option.name: option.meaning for option in options.of(factory)}
    both = "of what; it goes on here: and `here`."
    assert told == {
        "depth": both,
        "chance": both,
        "tokens": "x.",
        "order": "",
        "compat": "",
    }


def test_the_summary_is_the_first_line():
    assert options.summary(factory) == "Drafts `this` and that."


def test_what_is_left_out():
    names = [option.name for option in options.of(factory, leave_out=("depth",))]
    assert names == ["chance", "tokens", "order", "compat"]


def test_a_default_that_tells_no_kind():
    with pytest.raises(TypeError, match="'k' must have a default"):
        options.of(lambda *, k=None: k)


@pytest.mark.parametrize(
    ("kind", "given", "value"),
    [
        (options.INTEGER, " 7 ", 7),
        (options.NUMBER, "1e-1", 0.1),
        (options.SWITCH, "False", False),
        (options.SWITCH, 1, True),
        (options.INTEGERS, "5+10", (5, 10)),
        (options.INTEGERS, [5, "10"], (5, 10)),
        (options.PATH, pathlib.Path("a"), "a"),
        (options.PATHS, "a", ("a",)),
        (options.PATHS, ["a", "b"], ("a", "b")),
    ],
)
def test_values(kind, given, value):
    assert options.Option("x", kind).read("name", given) == value


# Other tests may register drafters of their own.
@pytest.mark.parametrize("name", [n for n in drafters.names() if n in drafters.__all__])
def test_every_option_of_every_drafter_is_explained(name):
    named = drafters.describe(name)
    assert named.summary.endswith(".")
    for option in named.options:
        assert option.meaning, option.name
        assert not option.meaning.startswith("see "), option.name
