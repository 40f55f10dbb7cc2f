"""The draft model that a recipe asks for: the target cut short, or another model."""

from typing import Any

from specjax import checkpoints
from specjax.drafters import registry


def take(
    name: str, lm: checkpoints.LanguageModel, options: dict[str, Any]
) -> checkpoints.LanguageModel | None:
    """Takes ``layers`` and ``model`` out of the options and makes the draft model.

    Args:
      name: of the drafter, for errors.
      lm: the target.
      options: ``layers`` is how many of the target's first layers to use, ``model``
        the name or path of another model; changed in place.

    Returns:
      The draft model, None where neither is given.

    Raises:
      ValueError: both are given, or the model can't be made.
    """
    layers, path = options.pop("layers", None), options.pop("model", None)
    if layers is not None and path is not None:
        raise ValueError(
            f"drafter {name!r}: give either layers=N (the target cut to its first N "
            "layers) or model=NAME_OR_PATH, not both"
        )
    if layers is not None:
        return checkpoints.truncate(lm, registry.as_type(name, "layers", layers, int))
    if path is None:
        return None
    return checkpoints.load(registry.as_path(name, "model", path), dtype=lm.model.dtype)
