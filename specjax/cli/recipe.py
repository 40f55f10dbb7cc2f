"""Recipes: model, drafter and sampling in one TOML file.

    model = "smollm2-135m"

    [drafter]
    name = "prompt_lookup"
    options = { max_draft = 7 }

    [sampling]
    max_new_tokens = 64
    temperature = 0.8

Every key may be left out. An option on the command line goes before the file.
"""

import pathlib
from typing import Any

import pydantic

from specjax import invalid, parsing


class _Table(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)


class DrafterRecipe(_Table):
    """A drafter by name; ``drafter = "NAME:key=value"`` is short for it.

    Attributes:
      name: as on the command line.
      options: values of the drafter's own options.
    """

    name: str
    options: dict[str, Any] = {}


class SamplingRecipe(_Table):
    """Fields of ``SamplingOptions``, and how text ends.

    Attributes:
      stop: texts that end the output.
      ignore_eos: do not stop at the model's own stop ids.
    """

    max_new_tokens: pydantic.StrictInt = 128
    min_new_tokens: pydantic.StrictInt = 0
    temperature: pydantic.StrictFloat = 0.0
    top_k: pydantic.StrictInt = 0
    top_p: pydantic.StrictFloat = 1.0
    min_p: pydantic.StrictFloat = 0.0
    repetition_penalty: pydantic.StrictFloat = 1.0
    presence_penalty: pydantic.StrictFloat = 0.0
    frequency_penalty: pydantic.StrictFloat = 0.0
    logit_bias: dict[int, pydantic.StrictFloat] = {}
    banned_ids: tuple[pydantic.StrictInt, ...] = ()
    stop_token_ids: tuple[pydantic.StrictInt, ...] = ()
    seed: pydantic.StrictInt = 0
    stop: tuple[str, ...] = ()
    ignore_eos: pydantic.StrictBool = False


class Recipe(_Table):
    """All that a generation or a benchmark is made of.

    Attributes:
      model: name, file or directory.
      dtype: of weights and cache, None for the device's usual one.
      weights: form of ``specjax.load``, or None for the device's usual one.
      mesh: devices to split model and batch over, such as "data=2,model=3"; None for
        one.
      max_context: positions to hold, None for what a request needs.
      verifier: rule by name.
      drafter: what drafts.
      sampling: how tokens are chosen.
    """

    model: str = "smollm2-135m"
    dtype: str | None = None
    weights: str | None = None
    mesh: str | None = None
    max_context: pydantic.StrictInt | None = None
    verifier: str = "exact"
    drafter: DrafterRecipe = DrafterRecipe(name="auto")
    sampling: SamplingRecipe = SamplingRecipe()

    @pydantic.field_validator("drafter", mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    def changed(self, *, sampling: dict[str, Any], **changes: Any) -> "Recipe":
        """This recipe with the options that are not None put in."""
        inner = {key: value for key, value in sampling.items() if value is not None}
        outer = {key: value for key, value in changes.items() if value is not None}
        outer["sampling"] = self.sampling.model_copy(update=inner)
        if isinstance(outer.get("drafter"), str):
            outer["drafter"] = DrafterRecipe(name=outer["drafter"])
        return self.model_copy(update=outer)


def read(path: pathlib.Path | None) -> Recipe:
    """The recipe in a file; the default one without a file.

    Raises:
      ValueError: there is no such file, or it is not a recipe; the message names the
        key.
    """
    if path is None:
        return Recipe()
    try:
        tables = parsing.toml_tables(path.read_bytes())
    except OSError as error:
        raise ValueError(f"--config: can't read {path} ({error.strerror})") from error
    except ValueError as error:  # of TOML or UTF-8
        raise ValueError(f"--config: {path} is not valid TOML ({error})") from error
    try:
        return Recipe.model_validate(tables)
    except pydantic.ValidationError as error:
        tables = (Recipe, DrafterRecipe, SamplingRecipe)
        known = [name for table in tables for name in table.model_fields]
        raise ValueError(
            f"--config: {path}: {invalid.describe(error, known)}"
        ) from error
