"""The draft model that a recipe asks for: the target cut short, or another model."""

from typing import Any

from specjax import checkpoints
from specjax.drafters import options as options_lib

LAYERS = options_lib.Option(
    "layers",
    options_lib.INTEGER,
    "takes the target cut to its first so many layers as the draft model.",
)
MODEL = options_lib.Option(
    "model",
    options_lib.PATH,
    "takes another model as the draft model: a name, file, directory or hf:OWNER/NAME.",
)


def take(
    name: str, lm: checkpoints.LanguageModel, options: dict[str, Any]
) -> checkpoints.LanguageModel | None:
    """Takes ``layers`` and ``model`` out of the options and makes the draft model.

    Args:
      name: of the drafter, for errors.
      lm: the target.
      options: as ``LAYERS`` and ``MODEL`` read them; changed in place.

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
        return cut(name, lm, layers)
    return None if path is None else load(name, lm, path)


def cut(
    name: str, lm: checkpoints.LanguageModel, layers: int
) -> checkpoints.LanguageModel:
    """The target cut to its first layers.

    Raises:
      ValueError: it has not that many; the message names the drafter's option.
    """
    try:
        return checkpoints.truncate(lm, layers)
    except ValueError as error:
        raise _of_option(name, "layers", error) from error


def load(
    name: str, lm: checkpoints.LanguageModel, path: str
) -> checkpoints.LanguageModel:
    """Another model, in the target's dtype and on its mesh.

    Raises:
      ValueError: it can't be loaded; the message names the drafter's option.
    """
    try:
        return checkpoints.load(path, dtype=lm.model.dtype, mesh=lm.mesh)
    except ValueError as error:
        raise _of_option(name, "model", error) from error


def _of_option(name: str, option: str, error: ValueError) -> ValueError:
    """An error of a function whose argument has the same name as the option."""
    reason = str(error).removeprefix(f"{option}: ")
    return ValueError(f"drafter {name!r}: option {option!r}: {reason}")
