"""Drafters by name, as the command line and recipe files spell them.

``NAME`` or ``NAME:key=value:key=value``; a colon with no ``key=`` behind it belongs to
the value, as in ``draft_model:model=hf:owner/name``. A combinator's ``children`` are a
list of such names, or of tables ``{name, options}``, in a recipe file. To add a
drafter, write its factory and register it in ``named.py``; the contract suite then runs
over it.
"""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from specjax import checkpoints, checks
from specjax.drafters import equipped
from specjax.drafters import options as options_lib

Options = Mapping[str, Any]
Builder = Callable[[checkpoints.LanguageModel, Options], equipped.Equipped]
Spelled = str | Mapping[str, Any]  # a name with its options, or a table of them
Drafting = Spelled | equipped.AnyDrafter

CHILDREN = options_lib.Option(
    "children", options_lib.DRAFTERS, "what it combines, by name or {name, options}."
)
_PAIRS = re.compile(r":(?=[A-Za-z_]\w*=)")


class Named(NamedTuple):
    """A drafter that has a name.

    Attributes:
      name: it.
      summary: what it drafts, a line.
      options: all that it takes.
      build: makes it for a target, of options that are read and checked.
    """

    name: str
    summary: str
    options: tuple[options_lib.Option, ...]
    build: Builder

    def to_json(self) -> dict[str, Any]:
        """What people want to know, as a JSON-ready dict."""
        listed = [option.to_json() for option in self.options]
        return {"name": self.name, "summary": self.summary, "options": listed}


class Recipe(NamedTuple):
    """A drafter as it was asked for, checked as far as that goes without a target.

    Attributes:
      named: which one.
      options: values that are given, ``children`` as recipes.
      label: how it was spelled.
    """

    named: Named
    options: dict[str, Any]
    label: str

    def build(self, lm: checkpoints.LanguageModel) -> equipped.Equipped:
        """Makes it for a target.

        Raises:
          ValueError: options do not fit each other or the target.
        """
        return self.named.build(lm, self.options)._replace(label=self.label)


_NAMED: dict[str, Named] = {}


def register(name: str, factory: Callable[..., equipped.AnyDrafter]) -> None:
    """Makes a drafter without weights known by name.

    Args:
      name: letters, digits and underscores.
      factory: takes keyword-only options, all with defaults that are a bool, int,
        float, str or tuple of integers; ``vocab_size`` is the target's. The first line
        of its docstring is the summary, its Args are what options mean.
    """
    takes_width = options_lib.FILLED_IN in inspect.signature(factory).parameters

    def build(lm, options):
        width = {options_lib.FILLED_IN: lm.model.config.vocab_size}
        return equipped.equip(factory(**options, **(width if takes_width else {})))

    register_builder(name, build, like=factory)


def register_builder(
    name: str,
    builder: Builder,
    *,
    options: Sequence[options_lib.Option] = (),
    like: Callable[..., Any] | None = None,
) -> None:
    """Makes a drafter with weights known by name.

    Args:
      name: letters, digits and underscores.
      builder: (lm, options) -> Equipped, which loads or makes the weights. It gets the
        options that are given, of their kinds.
      options: that it takes.
      like: a function whose keyword-only parameters are options too, where none of the
        same name stands above; its docstring is what people read, as for ``register``.
        By default the builder's is.
    """
    own = tuple(options)
    if like is not None:
        own += options_lib.of(like, leave_out=[option.name for option in own])
    _NAMED[name] = Named(name, options_lib.summary(like or builder), own, builder)


def register_combinator(name: str, combine: Callable[..., equipped.AnyDrafter]) -> None:
    """Makes a combinator known by name; its option ``children`` lists drafters.

    Args:
      name: letters, digits and underscores.
      combine: takes drafters and keyword-only options; see ``register``.
    """

    def build(lm, options):
        given = dict(options)
        made = [child.build(lm) for child in given.pop("children")]
        try:
            inspect.signature(combine).bind(*made, **given)
        except TypeError as error:
            raise ValueError(
                f"drafter {name!r}: children lists {len(made)} drafters ({error})"
            ) from error
        return equipped.equip(combine(*made, **given))

    register_builder(
        name, build, options=(CHILDREN._replace(required=True),), like=combine
    )


def names() -> tuple[str, ...]:
    """Registered names, in order of registration."""
    return tuple(_NAMED)


def describe(name: str) -> Named:
    """What is known of a drafter by its name: summary and options.

    Raises:
      ValueError: there is none of that name.
    """
    if name not in _NAMED:
        raise ValueError(
            f"drafter: unknown name {name!r}{checks.suggestion(name, _NAMED)}; known "
            f"are {', '.join(_NAMED)}"
        )
    return _NAMED[name]


def parse(spec: Spelled, options: Options | None = None) -> Recipe:
    """Reads what is asked for, children included; nothing is loaded for it.

    Args:
      spec: ``NAME`` or ``NAME:key=value:...``, or a table ``{name, options}``.
      options: further ones, as values.

    Raises:
      ValueError: a name or an option is unknown or missing, or a value is of another
        kind.
    """
    if not isinstance(spec, str):
        label, inner = _table(spec)
        return parse(label, {**inner, **(options or {})})
    name, colon, rest = spec.partition(":")
    named = describe(name)
    given = dict(options or {})
    for pair in _PAIRS.split(rest) if colon else ():
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise ValueError(
                f"drafter: expected key=value after {name!r}, got {pair!r}"
            )
        if key in given:
            raise ValueError(f"drafter {name!r}: option {key!r} is given twice")
        given[key] = value
    return Recipe(named, _read(named, given), spec)


def make(
    spec: Spelled, lm: checkpoints.LanguageModel, options: Options | None = None
) -> equipped.Equipped:
    """Builds a drafter for a target; see ``parse``.

    Args:
      spec: ``NAME`` or ``NAME:key=value:...``, or a table ``{name, options}``.
      lm: the target.
      options: further ones, as values.

    Raises:
      ValueError: a name or an option is unknown, or a value does not fit.
    """
    return parse(spec, options).build(lm)


def resolve(drafter: Drafting, lm: checkpoints.LanguageModel) -> equipped.Equipped:
    """A drafter for a target, whether it is made already or only named.

    Args:
      drafter: what ``make`` takes, or a Drafter, or an Equipped.
      lm: the target.

    Raises:
      ValueError: see ``make``.
      TypeError: it is nothing of the kind.
    """
    if isinstance(drafter, str | Mapping):
        return make(drafter, lm)
    return equipped.equip(drafter)


def _read(named: Named, given: Options) -> dict[str, Any]:
    """The given options of their kinds, children as recipes.

    Raises:
      ValueError: one is unknown, missing or of another kind.
    """
    known = {option.name: option for option in named.options}
    for key in given:
        if key not in known:
            raise ValueError(
                f"drafter {named.name!r}: unknown option {key!r}"
                f"{checks.suggestion(key, known)}; it takes "
                f"{', '.join(known) or 'none'}"
            )
    for option in named.options:
        if option.required and option.name not in given:
            raise ValueError(
                f"drafter {named.name!r}: {option.name} must be given, "
                f"{option.kind.must}: {option.meaning}"
            )
    read = {key: known[key].read(named.name, value) for key, value in given.items()}
    for key, value in read.items():
        if known[key].kind is options_lib.DRAFTERS:
            read[key] = [parse(child) for child in value]
    return read


def _table(spec: Any) -> tuple[str, Options]:
    """Name and options of a table.

    Raises:
      ValueError: it is none.
    """
    if isinstance(spec, Mapping) and {"name"} <= set(spec) <= {"name", "options"}:
        name, inner = spec["name"], spec.get("options", {})
        if isinstance(name, str) and isinstance(inner, Mapping):
            return name, inner
    raise ValueError(
        f"drafter: expected a name, or a table with name and options, got {spec!r}"
    )
