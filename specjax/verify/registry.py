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


def by_name(name: str) -> contracts.Verifier:
    """The rule of that name with its default settings.

    Raises:
      ValueError: there is none.
    """
    if name not in _RULES:
        raise ValueError(f"verifier must be one of {', '.join(_RULES)}; got {name!r}")
    return _RULES[name]()
