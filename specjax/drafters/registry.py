"""Drafters by name, as the command line and recipe files spell them.

``NAME`` or ``NAME:key=value:key=value``. To add a drafter, write its factory and
``register`` it; the contract suite then runs over it.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from specjax import checkpoints
from specjax.core import contracts
from specjax.drafters import equipped
from specjax.drafters.lookup.prompt_lookup import prompt_lookup
from specjax.drafters.neural.draft_model import draft_model
from specjax.drafters.none import none

Options = Mapping[str, Any]
Builder = Callable[[checkpoints.LanguageModel, Options], equipped.Equipped]

_BUILDERS: dict[str, Builder] = {}


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
        given[key] = value
    return _BUILDERS[name](lm, given)._replace(label=spec)


def _from_factory(name: str, factory: Callable[..., contracts.Drafter]) -> Builder:
    takes = inspect.signature(factory).parameters

    def build(lm, options):
        given = _convert(name, factory, options)
        if "vocab_size" in takes:
            given.setdefault("vocab_size", lm.model.config.vocab_size)
        return equipped.equip(factory(**given))

    return build


def _convert(name: str, factory: Callable, options: Options) -> dict[str, Any]:
    """Options as the types of the factory's own defaults."""
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
        converted[key] = _as_type(name, key, value, type(known[key]))
    return converted


def _as_type(name: str, key: str, value: Any, wanted: type) -> Any:
    if isinstance(value, wanted) and not (wanted is int and isinstance(value, bool)):
        return value
    text = str(value).strip()
    if wanted is bool and text.lower() in ("true", "false", "1", "0"):
        return text.lower() in ("true", "1")
    try:
        if wanted in (int, float):
            return wanted(text)
    except ValueError:
        pass
    raise ValueError(
        f"drafter {name!r}: option {key!r} must be {wanted.__name__}, got {value!r}"
    )


def _build_draft_model(lm, options):
    given = dict(options)
    layers, path = given.pop("layers", None), given.pop("model", None)
    if (layers is None) == (path is None):
        raise ValueError(
            "drafter 'draft_model': give either layers=N (the target cut to its first "
            "N layers) or model=NAME_OR_PATH"
        )
    if path is not None:
        small = checkpoints.load(path, dtype=lm.model.dtype)
    else:
        count = _as_type("draft_model", "layers", layers, int)
        small = checkpoints.truncate(lm, count)
    return draft_model(small, **_convert("draft_model", draft_model, given))


register("none", none)
register("prompt_lookup", prompt_lookup)
register_builder("draft_model", _build_draft_model)
