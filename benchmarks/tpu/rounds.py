"""Whole decode programs, rounds in a loop over scanned layers, as cases to compile."""

import functools
import math
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp

import specjax
from benchmarks.tpu import chips, kernels, models
from pallas_kernels import linear
from specjax.core import axes
from specjax.decoding import programs
from specjax.models import config as config_lib
from specjax.models import decoder, placement
from specjax.models import model as model_lib

# Model, form of weights, rows, capacity, and the chips that must hold them.
ROUNDS = {
    "smollm2-135m": (models.SMOLLM2, "bfloat16", 1, 2048, "v5e", 1),
    "llama-3-8b in int8": (models.LLAMA3_8B, "int8", 1, 4096, "v5e", 1),
    "llama-3-8b": (models.LLAMA3_8B, "bfloat16", 8, 4096, "v5p", 4),
}


def cases(chip: str) -> Iterator[kernels.Case]:
    """The rounds for a chip."""
    for name, (config, form, rows, capacity, on, number) in ROUNDS.items():
        if on == chip:
            label = name if number == 1 else f"{name} on {number}"
            mesh = chips.mesh(chip, number)
            yield case(label, config, rows, capacity, mesh, form=form)


def case(
    name: str,
    config: config_lib.ModelConfig,
    rows: int,
    capacity: int,
    mesh: jax.sharding.Mesh,
    *,
    form: str = "bfloat16",
) -> kernels.Case:
    """Rounds of prompt lookup until every row has finished.

    Args:
      name: of the model.
      config: its shapes.
      rows: B.
      capacity: S.
      mesh: that model and rows are split over.
      form: of the matrices, "bfloat16" or "int8".
    """
    model = model_lib.Model(config=config, dtype="bfloat16")
    drafter = specjax.drafters.prompt_lookup()
    recipe = specjax.build(model, drafter, max_new_tokens=128, mesh=mesh).recipe

    def decode(params, state, sampling):
        return programs.decode(recipe, params, state, sampling, jnp.int32(capacity))

    target = weights(config, mesh, form=form)
    params = {"target": target, "drafter": {}, "verifier": {}}
    unsplit = recipe._replace(mesh=None)  # shapes only
    blank = jax.eval_shape(lambda p: programs.blank(unsplit, p, rows, capacity), params)
    state = lie(mesh, blank, axes.state_specs(mesh, blank))
    matrices = list(_matrices(config, target, mesh))
    k = state.cache.k
    cache = math.prod(k.sharding.shard_shape(k.shape))
    return kernels.Case(
        name=f"rounds: {name}",
        function=decode,
        arguments={
            "params": params,
            "state": state,
            "sampling": jax.eval_shape(lambda: specjax.sampling(rows)),
        },
        kept=frozenset((cache, cache // config.num_layers)),
        weights=frozenset(held for _, held in matrices),
        split=frozenset(size for size, _ in matrices) if mesh.size > 1 else frozenset(),
        mesh=mesh,
        donated=("state",),
    )


def weights(
    config: config_lib.ModelConfig,
    mesh: jax.sharding.Mesh,
    *,
    stacked: bool = True,
    form: str = "bfloat16",
):
    """Shapes of params, and where they lie.

    Args:
      config: of the model.
      mesh: of chips.
      stacked: whether the layers are.
      form: of the matrices, "bfloat16" or "int8".
    """
    key = jax.eval_shape(lambda: jax.random.key(0))
    made = functools.partial(decoder.init_params, config, dtype=jnp.dtype("bfloat16"))
    shapes = jax.eval_shape(made, key)
    if form == "int8":
        shapes = _rounded(config, shapes, padded=mesh.size == 1)
    if stacked:
        shapes = jax.eval_shape(decoder.stack_layers, shapes)
    placed = lie(mesh, shapes, decoder.param_specs(mesh, shapes))
    return jax.tree.map(_as_loaded, placed)


def _as_loaded(leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    """A param as it lies on TPU."""
    how = placement.row_by_row(leaf.sharding, leaf.ndim)
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=how)


def _rounded(config, shapes, padded: bool):
    """Shapes of params whose matrices are int8, as `checkpoints.load` makes them."""

    def of(name, leaf):
        if name == "gate_up":
            return [
                linear.tiled_shapes(*one.shape, "int8", padded=padded) for one in leaf
            ]
        if name in ("qkv", "out", "down", "head"):
            return linear.tiled_shapes(*leaf.shape, "int8", padded=padded)
        if name == "embed" and config.tied_head:
            return linear.tiled_shapes(*leaf.shape[::-1], "int8", padded=padded)
        return leaf

    made = {name: of(name, leaf) for name, leaf in shapes.items() if name != "layers"}
    layers = [
        {n: of(n, leaf) for n, leaf in layer.items()} for layer in shapes["layers"]
    ]
    return {**made, "layers": layers}


def lie(mesh: jax.sharding.Mesh, shapes: Any, specs: Any) -> Any:
    """Shapes that lie on a mesh as a tree of PartitionSpec says."""

    def place(leaf, spec):
        where = jax.sharding.NamedSharding(mesh, spec)
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where)

    return jax.tree.map(place, shapes, specs)


def _matrices(config, target, mesh) -> Iterator[tuple[int, int]]:
    """Elements of each whole matrix, and of what a chip holds of it.

    A matrix of stacked layers comes twice, with all of them and with one.

    Raises:
      ValueError: each of several chips holds all of one.
    """
    for path, leaf in jax.tree_util.tree_leaves_with_path(target):
        in_layers = path[0].key == "layers"
        if leaf.ndim - in_layers < 2:
            continue  # of norms
        if getattr(path[-1], "name", "") in ("scale", "least"):
            continue  # of tiled weights: a row or few
        if mesh.size > 1 and leaf.sharding.is_fully_replicated:
            raise ValueError(f"{jax.tree_util.keystr(path)} is not split over the mesh")
        whole = math.prod(leaf.shape)
        held = math.prod(leaf.sharding.shard_shape(leaf.shape))
        yield whole, held
        if in_layers:
            yield whole // config.num_layers, held // config.num_layers
