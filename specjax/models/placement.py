"""Meshes: which devices hold which part of a model."""

import math
from typing import Any

import jax
import numpy as np
from jax.experimental import layout
from jax.sharding import (
    AxisType,
    Mesh,
    NamedSharding,
    PartitionSpec,
    SingleDeviceSharding,
)

from specjax import checks
from specjax.core import axes
from specjax.models import config as config_lib
from specjax.models import decoder

_AXES = (axes.DATA, axes.MODEL)


def make_mesh(*, data: int = 1, model: int = 1) -> Mesh:
    """A mesh of the first data x model devices, for ``specjax.load``.

    Args:
      data: groups of devices that share the rows of a batch out.
      model: devices of a group, which share kv heads, the MLP and the vocabulary out.

    Raises:
      ValueError: a number is below 1, or there are not so many devices.
      TypeError: a number is no integer.
    """
    checks.at_least("mesh", 1, data=data, model=model)
    devices = jax.devices()
    needed = data * model
    if needed > len(devices):
        hint = ""
        if devices[0].platform == "cpu":
            hint = (
                "; a CPU plays several for a trial with the environment variable "
                f"XLA_FLAGS=--xla_force_host_platform_device_count={needed}"
            )
        raise ValueError(
            f"mesh: data={data} and model={model} take {needed} devices, this process "
            f"has {len(devices)}{hint}"
        )
    return jax.make_mesh(
        (data, model), _AXES, (AxisType.Auto,) * 2, devices=devices[:needed]
    )


def parse_mesh(text: str) -> Mesh:
    """A mesh that is spelled "data=2,model=3"; an axis left out is 1.

    Raises:
      ValueError: it is not spelled so, or ``make_mesh`` refuses it.
    """
    sizes: dict[str, int] = {}
    for part in text.split(","):
        name, _, size = part.partition("=")
        if name.strip() not in _AXES or name.strip() in sizes or not size.isdecimal():
            raise ValueError(
                f"mesh: expected sizes of {' and '.join(_AXES)} such as "
                f"data=2,model=3, got {text!r}"
            )
        sizes[name.strip()] = int(size)
    return make_mesh(**sizes)


def automatic(mesh: Mesh) -> Mesh:
    """The mesh with axes that the compiler splits programs over by itself.

    Raises:
      ValueError: it has other axes than "data" and "model".
      TypeError: it is no mesh.
    """
    if not isinstance(mesh, Mesh):
        raise TypeError(f"mesh must be a Mesh, as make_mesh makes one, got {mesh!r}")
    unknown = [name for name in mesh.axis_names if name not in _AXES]
    if unknown:
        raise ValueError(
            f"mesh: axes must be among {', '.join(_AXES)}, got {', '.join(unknown)}"
        )
    types = (AxisType.Auto,) * len(mesh.axis_names)
    return Mesh(mesh.devices, mesh.axis_names, axis_types=types)


def check(mesh: Mesh, config: config_lib.ModelConfig) -> None:
    """Refuses a mesh that does not divide what it has to split of a model.

    Raises:
      ValueError: which size it does not divide, and the nearest mesh that does.
    """
    split = mesh.shape.get(axes.MODEL, 1)
    sizes = {
        "kv heads": config.num_kv_heads,
        "MLP": config.mlp_size,
        "vocabulary": config.vocab_size,
    }
    wrong = [f"{name} of {size}" for name, size in sizes.items() if size % split]
    if wrong:
        nearest = _nearest(split, math.gcd(*sizes.values()))
        raise ValueError(
            f"mesh: model={split} does not divide the model's {' and '.join(wrong)}; "
            f"the nearest that does is model={nearest}"
        )


def check_rows(mesh: Mesh, rows: int) -> None:
    """Refuses a batch that the mesh does not divide.

    Raises:
      ValueError: it does not; the message names the nearest that it does.
    """
    split = mesh.shape.get(axes.DATA, 1)
    if rows % split:
        nearest = split * max(1, round(rows / split))
        raise ValueError(
            f"mesh: data={split} does not divide the batch of {rows} rows; the nearest "
            f"that it divides has {nearest}, or take data={_nearest(split, rows)}"
        )


def _nearest(size: int, whole: int) -> int:
    """The divisor of ``whole`` nearest to ``size``, the lesser of two."""
    found = [one for one in range(1, whole + 1) if whole % one == 0]
    return min(found, key=lambda one: (abs(one - size), one))


def home(
    mesh: Mesh | None, names: axes.Names, ndim: int
) -> jax.sharding.Sharding | layout.Format | None:
    """Where a param belongs, and on TPU how it lies there.

    Args:
      mesh: None for the default device.
      names: of the param's axes.
      ndim: how many there are.

    Returns:
      None for the default device, where XLA's own layout is the right one.
    """
    split = None if mesh is None else NamedSharding(mesh, axes.spec(mesh, names))
    first = _default_device() if mesh is None else mesh.devices.flat[0]
    if _platform(first) != "tpu":
        return split
    return row_by_row(split or SingleDeviceSharding(first), ndim)


def _default_device() -> Any:
    """The device that arrays go to where nothing else is said."""
    chosen = jax.config.jax_default_device  # type: ignore[attr-defined]
    if chosen is None or isinstance(chosen, str):  # a platform's name
        return jax.local_devices(backend=chosen)[0]
    return chosen


def row_by_row(where: jax.sharding.Sharding, ndim: int) -> layout.Format:
    """The layout that products on TPU read.

    XLA would lay an array whose last axis does not fill the lanes out the other way
    round, and a program then turns all of it, at every call.
    """
    return layout.Format(layout.Layout(tuple(range(ndim))), where)


def _platform(device: Any) -> str:
    return device.platform


def put(mesh: Mesh | None, value: np.ndarray, names: axes.Names) -> jax.Array:
    """An array on the devices of a mesh, each of which is sent only its own part.

    Args:
      mesh: None for the default device.
      value: on this host.
      names: of its axes.
    """
    where = home(mesh, names, value.ndim)
    if where is None:
        return jax.device_put(value)
    return jax.make_array_from_callback(value.shape, where, lambda part: value[part])


def place(mesh: Mesh | None, params: Any) -> Any:
    """Params of a program on a mesh; arrays that lie there already stay.

    Params of a decoder, wherever they stand among others, are split; all else, such as
    a drafter's tables, is held whole by every device.
    """
    if mesh is None:
        return params

    def of_node(node):
        if not _is_decoder(node):
            return jax.device_put(node, NamedSharding(mesh, PartitionSpec()))
        specs = decoder.param_specs(mesh, node)
        return jax.device_put(
            node, jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs)
        )

    return jax.tree.map(of_node, params, is_leaf=_is_decoder)


def describe(mesh: Mesh) -> str:
    """As ``parse_mesh`` reads it."""
    return ",".join(f"{name}={size}" for name, size in mesh.shape.items())


def _is_decoder(node: Any) -> bool:
    return isinstance(node, dict) and {"embed", "layers", "final_norm"} <= node.keys()
