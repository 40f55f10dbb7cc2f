"""A cascade by name: its models, its matrix and its store out of options."""

from collections.abc import Callable
from typing import Any

from specjax import checkpoints, checks
from specjax.drafters import equipped, registry
from specjax.drafters import options as options_lib
from specjax.drafters.compose import schedule
from specjax.drafters.compose.cascade import cascade, nested_params
from specjax.drafters.lookup import stored
from specjax.drafters.lookup.max_gram import max_gram_with_store
from specjax.drafters.neural import small as small_lib

_MOST_ALONE = 10  # tokens that Max-Gram alone drafts
_MOST = 15  # tokens of a row that is chosen: with the trunk a width of 16


def _rows(kind: options_lib.Kind) -> Callable[[Any], tuple[tuple[Any, ...], ...]]:
    """What reads rows: out of text, where slashes part them, or out of lists."""

    def read(value):
        rows = value
        if isinstance(value, str):
            rows = [row.split(",") for row in value.split("/")]
        return tuple(tuple(map(kind.read, row)) for row in rows)

    return read


def _row(value: Any) -> tuple[float, ...]:
    parts = value.split(",") if isinstance(value, str) else value
    return tuple(map(options_lib.NUMBER.read, parts))


OPTIONS = (
    options_lib.Option(
        "layers",
        options_lib.INTEGERS,
        "the models are the target cut to its first so many layers, the largest first.",
    ),
    options_lib.Option(
        "model",
        options_lib.PATHS,
        "the models by name or path, the largest first; without any it is Max-Gram "
        "alone.",
    ),
    options_lib.Option(
        "k",
        options_lib.Kind(
            "int rows",
            "rows of integers, 5,10/0,10, or lists in a recipe file",
            _rows(options_lib.INTEGER),
        ),
        "what each drafter adds for each reviewer.",
    ),
    options_lib.Option(
        "acceptances",
        options_lib.Kind(
            "float rows",
            "rows of numbers, 0.8,0.3/0,0.6, or lists in a recipe file",
            _rows(options_lib.NUMBER),
        ),
        "in place of k: how often each reviewer accepts each drafter; with costs.",
    ),
    options_lib.Option(
        "costs",
        options_lib.Kind("floats", "numbers, 0.2,0, or a list in a recipe file", _row),
        "of one run of each drafter, in runs of the target; with acceptances.",
    ),
    options_lib.Option(
        "max_draft",
        options_lib.INTEGER,
        f"tokens of Max-Gram alone [{_MOST_ALONE}], or of the target's row that "
        f"acceptances and costs choose [{_MOST}].",
    ),
    stored.STORE._replace(meaning="datastore with successors for Max-Gram."),
)


def build_cascade(
    lm: checkpoints.LanguageModel, options: registry.Options
) -> equipped.Equipped:
    """Builds it by name: without models it is Max-Gram alone.

    Args:
      lm: the target.
      options: ``OPTIONS`` and those of ``cascade``.

    Raises:
      ValueError: an option is out of range, or some exclude each other.
    """
    given = dict(options)
    smalls = _models(lm, given.pop("layers", None), given.pop("model", None))
    k, last, tokenizer = _take_matrix(given, alone=not smalls), {}, None
    if "store" in given:
        store = stored.open_store("cascade", lm, given.pop("store"))
        tokenizer, last = store.fingerprint, max_gram_with_store(store).params
    drafter = cascade([small.model.target for small in smalls], k=k, **given)
    mode = given.get("k_mode", "increment")
    weights = [small.params for small in smalls]
    return equipped.Equipped(
        drafter=drafter,
        params=nested_params(weights, k=k, k_mode=mode, last=last),
        fingerprint=smalls[0].fingerprint if smalls else tokenizer,
        label="cascade",
        vocab_size=smalls[0].model.config.vocab_size if smalls else None,
    )


def _models(
    lm: checkpoints.LanguageModel,
    layers: tuple[int, ...] | None,
    paths: tuple[str, ...] | None,
) -> list[checkpoints.LanguageModel]:
    """The models of a recipe, the largest first.

    Raises:
      ValueError: both are given, the layers do not fall, or the models speak other
        tokens than the target.
    """
    if layers is not None and paths is not None:
        raise ValueError(
            "drafter 'cascade': give layers (the target cut to its first layers) or "
            "model (names or paths) or neither, not both"
        )
    if layers is not None:
        if list(layers) != sorted(set(layers), reverse=True):
            raise ValueError(
                f"drafter 'cascade': layers must fall, as in 25+15, got {layers!r}"
            )
        return [small_lib.cut("cascade", lm, count) for count in layers]
    smalls = [small_lib.load("cascade", lm, path) for path in paths or ()]
    for small in smalls:
        if small.fingerprint != lm.fingerprint:
            raise ValueError(
                f"drafter 'cascade': model {small.name} has another tokenizer than "
                f"{lm.name}"
            )
    return smalls


def _take_matrix(given: dict[str, Any], *, alone: bool) -> schedule.Matrix | None:
    """Takes what says how much is drafted out of the options; None for the usual K.

    Args:
      given: the options; changed in place.
      alone: whether there are no models.

    Raises:
      ValueError: the options exclude each other or are out of range.
    """
    k, acceptances = given.pop("k", None), given.pop("acceptances", None)
    costs, limit = given.pop("costs", None), given.pop("max_draft", None)
    if (acceptances is None) != (costs is None) or (
        k is not None and costs is not None
    ):
        raise ValueError(
            "drafter 'cascade': give k, or both acceptances and costs, or none of them"
        )
    if acceptances is not None and costs is not None:
        given["k_mode"] = "increment"  # as it is found, whatever k would be
        return schedule.best_matrix(
            acceptances, costs, _MOST if limit is None else limit
        )
    if limit is not None and (k is not None or not alone):
        raise ValueError(
            "drafter 'cascade': max_draft is for Max-Gram alone, or with acceptances "
            "and costs; else the matrix k says how much each drafter drafts"
        )
    if k is not None or not alone:
        return k
    most = _MOST_ALONE if limit is None else limit
    checks.at_least("cascade", 1, max_draft=most)
    return ((most,),)
