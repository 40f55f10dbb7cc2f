"""Names of array axes, and the one table that says how a mesh splits them.

Params, caches and states name their axes: a batch row, a kv head, an id of the
vocabulary. ``RULES`` gives each name the axis of the mesh that it is split over; what
has no rule, histories and trees apart from their rows among it, is held whole by every
device. A program is split by tracing it ``on`` a mesh; without one, all here does
nothing.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
from jax.sharding import PartitionSpec

DATA, MODEL = "data", "model"  # axes of a mesh
RULES: Mapping[str, str] = {
    "batch": DATA,
    "vocab": MODEL,
    "kv_heads": MODEL,
    "mlp": MODEL,
}
Names = tuple[str | None, ...]  # of an array's axes, the last ones may be left out


def spec(mesh: Any, names: Names) -> PartitionSpec:
    """How a mesh splits an array.

    Args:
      mesh: concrete or abstract; it may lack an axis that a rule names.
      names: of the array's axes.
    """
    split = [RULES.get(name or "") for name in names]
    return PartitionSpec(*(axis if axis in mesh.shape else None for axis in split))


def state_specs(mesh: Any, state: Any) -> Any:
    """How a mesh splits a state: every leaf by rows, and more where it says so.

    A type may name the axes of its fields in a mapping ``AXES``. What lies under a
    field ``shared`` is held whole.

    Args:
      mesh: concrete or abstract.
      state: tree of arrays or of their shapes.

    Returns:
      The same tree of PartitionSpec.
    """

    def of_node(path, node):
        known = getattr(type(node), "AXES", None)
        if known is None:
            whole = any(getattr(key, "name", None) == "shared" for key in path)
            return spec(mesh, () if whole else ("batch",))
        return jax.tree_util.tree_map_with_path(
            lambda inner, _: spec(mesh, known.get(inner[0].name, ("batch",))), node
        )

    return jax.tree_util.tree_map_with_path(
        of_node, state, is_leaf=lambda node: hasattr(type(node), "AXES")
    )


@contextlib.contextmanager
def on(mesh: jax.sharding.Mesh | None) -> Iterator[None]:
    """What is traced inside is split over the mesh; None leaves things as they are."""
    if mesh is None:
        yield
        return
    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
        yield


def parts(axis: str) -> int:
    """Parts that an axis of the mesh that this is traced on makes of what it splits."""
    return jax.sharding.get_abstract_mesh().shape.get(axis, 1)


def constrain_state(mesh: jax.sharding.Mesh | None, state: Any) -> Any:
    """The state, split over the mesh as ``state_specs`` says."""
    if mesh is None:
        return state

    def constrain(leaf, spec):
        where = jax.sharding.NamedSharding(mesh, spec)
        return jax.lax.with_sharding_constraint(leaf, where)

    return jax.tree.map(constrain, state, state_specs(mesh, state))


def per_device(
    function: Callable[..., Any], arguments: tuple[Any, ...], results: Any
) -> Callable[..., Any]:
    """The function, run by each device on its own part: for kernels.

    A compiler cannot split a kernel, or a loop that copies row after row; devices need
    nothing of each other's parts here.

    Args:
      function: of positional arguments.
      arguments: of each, ``Names``, or a tree of them that is a prefix of it; ints
        and None go through as they are.
      results: the same of what it returns.
    """

    def run(*values):
        mesh = jax.sharding.get_abstract_mesh()
        if mesh.empty:
            return function(*values)
        arrays = [at for at, x in enumerate(values) if not isinstance(x, int | None)]

        def on_device(*parts):
            whole = list(values)
            for at, part in zip(arrays, parts, strict=True):
                whole[at] = part
            return function(*whole)

        def specs(names):
            return jax.tree.map(
                lambda one: spec(mesh, one), names, is_leaf=lambda x: type(x) is tuple
            )

        split = jax.shard_map(
            on_device,
            in_specs=tuple(specs(arguments[at]) for at in arrays),
            out_specs=specs(results),
            check_vma=False,
        )
        return split(*(values[at] for at in arrays))

    return run
