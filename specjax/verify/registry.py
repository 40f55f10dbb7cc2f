"""Rules by name."""

from specjax.core import contracts
from specjax.verify.exact import exact
from specjax.verify.rejection import rejection
from specjax.verify.without_replacement import without_replacement

_RULES = {
    "exact": exact,
    "rejection": rejection,
    "without_replacement": without_replacement,
}


def resolve(verifier: contracts.Verifier | str | None) -> contracts.Verifier:
    """A rule, made already or only named; ``exact()`` if None.

    Raises:
      ValueError: there is none of that name.
      TypeError: it is nothing of the kind.
    """
    if verifier is None:
        return exact()
    if isinstance(verifier, str):
        return by_name(verifier)
    if not isinstance(verifier, contracts.Verifier):
        raise TypeError(
            f"verifier must be a rule or its name, got {type(verifier).__name__}"
        )
    return verifier


def by_name(name: str) -> contracts.Verifier:
    """The rule of that name with its default settings.

    Raises:
      ValueError: there is none.
    """
    if name not in _RULES:
        raise ValueError(f"verifier must be one of {', '.join(_RULES)}; got {name!r}")
    return _RULES[name]()
