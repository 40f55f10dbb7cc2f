"""Drafters by name, as the command line and recipe files spell them.

``NAME`` or ``NAME:key=value:key=value``; a combinator's ``children`` are a list of
such names, or of tables ``{name, options}``, in a recipe file. To add a drafter, write
its factory and register it in ``named.py``; the contract suite then runs over it.
"""

import inspect
import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from specjax import checkpoints
from specjax.core import contracts
from specjax.drafters import equipped

Options = Mapping[str, Any]
Builder = Callable[[checkpoints.LanguageModel, Options], equipped.Equipped]

_BUILDERS: dict[str, Builder] = {}
_CHILD_KEYS = {"name", "options"}


def register(name: str, factory: Callable[..., contracts.Drafter]) -> None:
    """Makes a drafter without weights known by name.

    Args:
      name: letters, digits and underscores.
      factory: takes keyword-only options, all with defaults; one called
        ``vocab_size`` is the target's if it is not given.
    """
    _BUILDERS[name] = _from_factory(name, factory)


def register_builder(name: str, builder: Builder) -> None:
    """Makes a drafter with weights known by name.

    Args:
      name: letters, digits and underscores.
      builder: (lm, options) -> Equipped, which loads or makes the weights.
    """
    _BUILDERS[name] = builder


def register_combinator(name: str, combine: Callable[..., equipped.AnyDrafter]) -> None:
    """Makes a combinator known by name; its option ``children`` lists drafters.

    Args:
      name: letters, digits and underscores.
      combine: takes drafters and keyword-only options.
    """

    def build(lm, options):
        given = dict(options)
        made = children(name, lm, given.pop("children", ()))
        converted = convert(name, combine, given)
        try:
            inspect.signature(combine).bind(*made, **converted)
        except TypeError as error:
            raise ValueError(
                f"drafter {name!r}: children lists {len(made)} drafters ({error})"
            ) from error
        return equipped.equip(combine(*made, **converted))

    _BUILDERS[name] = build


def children(
    name: str, lm: checkpoints.LanguageModel, specs: Any
) -> list[equipped.Equipped]:
    """The drafters that a combinator's option ``children`` lists.

    Args:
      name: of the combinator.
      lm: the target.
      specs: names, or tables {name, options}.

    Raises:
      ValueError: it is no list, or an entry is not a drafter.
    """
    if isinstance(specs, str) or not isinstance(specs, Sequence) or not specs:
        raise ValueError(
            f"drafter {name!r}: children must list drafters, in a recipe file that "
            f'--config names (children = ["NAME", ...]), got {specs!r}'
        )
    made = []
    for spec in specs:
        if isinstance(spec, str):
            made.append(make(spec, lm))
            continue
        known = isinstance(spec, Mapping) and {"name"} <= set(spec) <= _CHILD_KEYS
        if not (
            known
            and isinstance(spec["name"], str)
            and isinstance(spec.get("options") or {}, Mapping)
        ):
            raise ValueError(
                f"drafter {name!r}: a child must be a name or a table with name and "
                f"options, got {spec!r}"
            )
        made.append(make(spec["name"], lm, spec.get("options")))
    return made


def names() -> tuple[str, ...]:
    """Registered names, in order of registration."""
    return tuple(_BUILDERS)


def make(
    spec: str, lm: checkpoints.LanguageModel, options: Options | None = None
) -> equipped.Equipped:
    """Builds a drafter for a target.

    Args:
      spec: ``NAME`` or ``NAME:key=value:...``.
      lm: the target.
      options: further options, which a recipe file gives as values.

    Raises:
      ValueError: the name or an option is unknown, or a value does not fit.
    """
    name, *pairs = spec.split(":")
    if name not in _BUILDERS:
        raise ValueError(
            f"drafter: unknown name {name!r}; known are {', '.join(names())}"
        )
    given = dict(options or {})
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise ValueError(
                f"drafter: expected key=value after {name!r}, got {pair!r}"
            )
        if key in given:
            raise ValueError(f"drafter {name!r}: option {key!r} is given twice")
        given[key] = value
    return _BUILDERS[name](lm, given)._replace(label=spec)


def _from_factory(name: str, factory: Callable[..., contracts.Drafter]) -> Builder:
    takes = inspect.signature(factory).parameters

    def build(lm, options):
        given = convert(name, factory, options)
        if "vocab_size" in takes:
            given.setdefault("vocab_size", lm.model.config.vocab_size)
        return equipped.equip(factory(**given))

    return build


def convert(name: str, factory: Callable, options: Options) -> dict[str, Any]:
    """Options as the types of a factory's own defaults.

    A tuple is spelled with plus signs, 5+10, or as a list in a recipe file.

    Args:
      name: of the drafter, for errors.
      factory: its keyword-only parameters are the options.
      options: as given.

    Raises:
      ValueError: an option is unknown or its value does not fit.
    """
    known = {
        p.name: p.default
        for p in inspect.signature(factory).parameters.values()
        if p.kind is p.KEYWORD_ONLY
    }
    converted = {}
    for key, value in options.items():
        if key not in known:
            options_text = ", ".join(known) or "none"
            raise ValueError(
                f"drafter {name!r}: unknown option {key!r}; it takes {options_text}"
            )
        converted[key] = as_type(name, key, value, type(known[key]))
    return converted


def as_type(name: str, key: str, value: Any, wanted: type) -> Any:
    """One option as a type; see ``convert``."""
    text = str(value).strip()
    if wanted is bool and text.lower() in ("true", "false", "1", "0"):
        return text.lower() in ("true", "1")
    if wanted not in (bool, int, float, tuple) and isinstance(value, wanted):
        return value
    try:
        if wanted is int:
            return _small(int(text))
        if wanted is float and math.isfinite(float(text)):
            return float(text)
        if wanted is tuple:
            parts = value if isinstance(value, list | tuple) else text.split("+")
            return tuple(_small(int(str(part))) for part in parts)
    except (TypeError, ValueError):
        pass
    raise ValueError(
        f"drafter {name!r}: option {key!r} must be {wanted.__name__}, got {value!r}"
    )


def as_path(name: str, key: str, value: Any) -> str | os.PathLike:
    """An option that names a file, a folder or a model.

    Raises:
      ValueError: it is something else.
    """
    if isinstance(value, str | os.PathLike) and os.fspath(value):
        return value
    raise ValueError(
        f"drafter {name!r}: option {key!r} must be a name or a path, got {value!r}"
    )


def _small(number: int) -> int:
    """The number, if an i32 holds it."""
    if abs(number) >= 2**31:
        raise ValueError
    return number
