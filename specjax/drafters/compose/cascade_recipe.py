"""A cascade by name: its models, its matrix and its store out of options."""

from typing import Any

from specjax import checkpoints
from specjax.drafters import checks, equipped, registry
from specjax.drafters.compose import schedule
from specjax.drafters.compose.cascade import cascade, nested_params
from specjax.drafters.lookup import stored
from specjax.drafters.lookup.max_gram import max_gram_with_store

_MOST_ALONE = 10  # tokens that Max-Gram alone drafts
_MOST = 15  # tokens of a row that is chosen: with the trunk a width of 16


def build_cascade(
    lm: checkpoints.LanguageModel, options: registry.Options
) -> equipped.Equipped:
    """Builds it by name: without models it is Max-Gram alone.

    Args:
      lm: the target.
      options: ``layers`` (the target cut to its first layers, 25+15 for two models of
        which the second is smaller) or ``model`` (name or path of one, a list of them
        in a recipe file); ``k`` (rows parted by slashes, 5,10/0,10, or lists), or in
        its place ``acceptances`` (0.8,0.3/0,0.6, or lists) and ``costs`` (0.2,0, or a
        list) that ``best_matrix`` finds it by; ``store`` (a datastore with successors
        for Max-Gram); ``max_draft`` (of a row that ``best_matrix`` finds, or of
        Max-Gram alone); and those of ``cascade``.

    Raises:
      ValueError: an option is unknown or out of range, or some exclude each other.
    """
    given = dict(options)
    smalls = _models(lm, given.pop("layers", None), given.pop("model", None))
    k, last, tokenizer = _take_matrix(given, alone=not smalls), {}, None
    if "store" in given:
        store, given = stored.open_store("cascade", lm, given)
        tokenizer, last = store.fingerprint, max_gram_with_store(store).params
    chosen = registry.convert("cascade", cascade, given)
    drafter = cascade([small.model.target for small in smalls], k=k, **chosen)
    mode = chosen.get("k_mode", "increment")
    weights = [small.params for small in smalls]
    return equipped.Equipped(
        drafter=drafter,
        params=nested_params(weights, k=k, k_mode=mode, last=last),
        fingerprint=smalls[0].fingerprint if smalls else tokenizer,
        label="cascade",
        vocab_size=smalls[0].model.config.vocab_size if smalls else None,
    )


def _models(
    lm: checkpoints.LanguageModel, layers: Any, paths: Any
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
        counts = registry.as_type("cascade", "layers", layers, tuple)
        if list(counts) != sorted(set(counts), reverse=True):
            raise ValueError(
                f"drafter 'cascade': layers must fall, as in 25+15, got {layers!r}"
            )
        return [checkpoints.truncate(lm, count) for count in counts]
    names = (
        [] if paths is None else paths if isinstance(paths, list | tuple) else [paths]
    )
    smalls = [
        checkpoints.load(
            registry.as_path("cascade", "model", path), dtype=lm.model.dtype
        )
        for path in names
    ]
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
    k = _parse("k", given.pop("k", None), int)
    acceptances = _parse("acceptances", given.pop("acceptances", None), float)
    costs = given.pop("costs", None)
    limit = given.pop("max_draft", None)
    if (acceptances is None) != (costs is None) or (
        k is not None and costs is not None
    ):
        raise ValueError(
            "drafter 'cascade': give k, or both acceptances and costs, or none of them"
        )
    if acceptances is not None:
        prices = _parse("costs", costs if isinstance(costs, str) else [costs], float)
        given["k_mode"] = "increment"  # as it is found, whatever k would be
        most = _whole(limit, _MOST)
        return schedule.best_matrix(acceptances, sum(prices or (), ()), most)
    if limit is not None and (k is not None or not alone):
        raise ValueError(
            "drafter 'cascade': max_draft is for Max-Gram alone, or with acceptances "
            "and costs; else the matrix k says how much each drafter drafts"
        )
    if k is not None or not alone:
        return k
    most = _whole(limit, _MOST_ALONE)
    checks.at_least("cascade", 1, max_draft=most)
    return ((most,),)


def _whole(limit: Any, usual: int) -> int:
    """The option ``max_draft`` as a number."""
    if limit is None:
        return usual
    return registry.as_type("cascade", "max_draft", limit, int)


def _parse(option: str, rows: Any, kind: type) -> tuple[tuple[Any, ...], ...] | None:
    """Rows of numbers: out of text, where slashes part them, or out of lists."""
    if rows is None:
        return None
    try:
        if isinstance(rows, str):
            split = [row.split(",") for row in rows.split("/")]
            return tuple(tuple(kind(entry) for entry in row) for row in split)
        if kind is int:  # 2.5 is none, which is told later
            return tuple(tuple(row) for row in rows)
        return tuple(tuple(kind(entry) for entry in row) for row in rows)
    except (TypeError, ValueError):
        numbers = "integers, 5,10/0,10" if kind is int else "numbers, 0.8,0.3/0,0.6"
        raise ValueError(
            f"drafter 'cascade': {option} must be rows of {numbers} or lists in a "
            f"recipe file, got {rows!r}"
        ) from None
