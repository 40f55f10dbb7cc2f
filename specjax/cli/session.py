"""From a recipe to a loaded model and an engine. Imports jax."""

import dataclasses
from collections.abc import Iterable
from typing import Any

import specjax
from specjax import verify
from specjax.cli import progress
from specjax.cli import recipe as recipe_lib
from specjax.core import sampling as sampling_lib
from specjax.drafters import registry
from specjax.models import placement

_ANY_ID = 2**31 - 1


def sampling_options(recipe: recipe_lib.SamplingRecipe) -> dict[str, Any]:
    """Keyword arguments of ``Engine.generate``, checked before a model is loaded.

    Raises:
      ValueError: a value is out of range.
    """
    given = recipe.model_dump()
    known = {field.name for field in dataclasses.fields(specjax.SamplingOptions)}
    checked = {key: value for key, value in given.items() if key in known}
    sampling_lib.SamplingOptions(**checked).validate(_ANY_ID)
    if not all(recipe.stop):
        raise ValueError("stop holds an empty text")
    return given


def load(recipe: recipe_lib.Recipe, *, cache: bool) -> specjax.LanguageModel:
    """Loads the target, with compiled programs kept on disk if ``cache``.

    Raises:
      ValueError: the checkpoint can't be loaded, or the cache folder not written.
    """
    if cache:
        specjax.enable_compilation_cache()
    mesh = None if recipe.mesh is None else placement.parse_mesh(recipe.mesh)
    with progress.waiting(f"loading {recipe.model}"):
        return specjax.load(
            recipe.model, dtype=recipe.dtype, weights=recipe.weights, mesh=mesh
        )


def check_names(
    recipe: recipe_lib.Recipe, drafters: Iterable[recipe_lib.DrafterRecipe]
) -> None:
    """Checks names and options of rule and drafters before a model is loaded.

    Raises:
      ValueError: one is not known, or a value is of another kind.
    """
    verifier(recipe)
    for asked in drafters:
        registry.parse(asked.name, asked.options)


def verifier(recipe: recipe_lib.Recipe):
    """The rule of a recipe.

    Raises:
      ValueError: there is none of that name.
    """
    return verify.by_name(recipe.verifier)


def drafter(
    recipe: recipe_lib.DrafterRecipe, lm: specjax.LanguageModel
) -> specjax.drafters.Equipped:
    """The drafter of a recipe, for a target; ``auto`` measures the device for it.

    Raises:
      ValueError: it does not fit the target.
    """
    with progress.waiting(f"making the drafter {recipe.name}"):
        return specjax.drafters.make(recipe.name, lm, recipe.options)


def engine(recipe: recipe_lib.Recipe, lm: specjax.LanguageModel) -> specjax.Engine:
    """An engine of the target and the recipe's drafter.

    Raises:
      ValueError: the parts are not known or do not fit.
    """
    return specjax.Engine(
        lm,
        drafter(recipe.drafter, lm),
        verifier=verifier(recipe),
        max_context=recipe.max_context,
    )
