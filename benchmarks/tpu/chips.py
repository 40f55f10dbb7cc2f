"""Chips to compile for on a machine that has none of them."""

import dataclasses
import functools
import importlib.util
import os
from collections.abc import Mapping

import jax
import numpy as np
from jax.experimental import topologies

from specjax.core import axes

_GIB = 2**30


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chip:
    """One kind of TPU.

    Attributes:
      slices: name of the topology by number of chips.
      memory: bytes.
      bandwidth: bytes a second, from memory.
      flops: a second, in bfloat16.
    """

    slices: Mapping[int, str]
    memory: int
    bandwidth: float
    flops: float


_FLAT = {1: "1x1", 4: "2x2", 8: "2x4", 16: "4x4"}
_DEEP = {1: "1x1x1", 4: "2x2x1", 8: "2x2x2", 16: "2x2x4"}
CHIPS = {
    "v5e": Chip(slices=_FLAT, memory=16 * _GIB, bandwidth=819e9, flops=197e12),
    "v5p": Chip(slices=_DEEP, memory=95 * _GIB, bandwidth=2765e9, flops=459e12),
    "v6e": Chip(slices=_FLAT, memory=32 * _GIB, bandwidth=1640e9, flops=918e12),
}


def prepare() -> None:
    """Settings without which libtpu looks for a TPU; before anything is compiled.

    Raises:
      ImportError: libtpu is not installed.
    """
    if importlib.util.find_spec("libtpu") is None:
        raise ImportError("libtpu is not installed here: use `make tpu-check`")
    os.environ["TPU_SKIP_MDS_QUERY"] = "1"
    for name in ("TPU_MIN_LOG_LEVEL", "TPU_STDERR_LOG_LEVEL", "TF_CPP_MIN_LOG_LEVEL"):
        os.environ.setdefault(name, "3")
    jax.config.update("jax_platforms", "cpu")


@functools.cache
def mesh(name: str, model: int = 1) -> jax.sharding.Mesh:
    """Chips that share a model out.

    Args:
      name: of the chip.
      model: how many, the first of the smallest slice that has so many.
    """
    bounds = {"chips_per_host_bounds": (1, 1, 1)} if model == 1 else {}
    slices = CHIPS[name].slices
    slice_ = slices[min(size for size in slices if size >= model)]
    described = topologies.get_topology_desc(
        platform="tpu", topology_name=f"{name}:{slice_}", **bounds
    )
    devices = np.array(described.devices[:model]).reshape(1, model)
    types = (jax.sharding.AxisType.Auto,) * 2
    return jax.sharding.Mesh(devices, (axes.DATA, axes.MODEL), axis_types=types)
