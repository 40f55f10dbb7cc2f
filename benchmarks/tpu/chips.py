"""Chips to compile for on a machine that has none of them."""

import contextlib
import dataclasses
import importlib.util
import os
from collections.abc import Iterator

import jax
import numpy as np
from jax.experimental import topologies

_GIB = 2**30


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chip:
    """One kind of TPU.

    Attributes:
      topology: name of a single one.
      memory: bytes.
      bandwidth: bytes a second, from memory.
      flops: a second, in bfloat16.
    """

    topology: str
    memory: int
    bandwidth: float
    flops: float


CHIPS = {
    "v5e": Chip(topology="v5e:1x1", memory=16 * _GIB, bandwidth=819e9, flops=197e12),
    "v5p": Chip(topology="v5p:1x1x1", memory=95 * _GIB, bandwidth=2765e9, flops=459e12),
    "v6e": Chip(topology="v6e:1x1", memory=32 * _GIB, bandwidth=1640e9, flops=918e12),
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


@contextlib.contextmanager
def compiling_for(chip: Chip) -> Iterator[jax.sharding.Sharding]:
    """Programs lowered within are for one such chip; gives where arguments lie."""
    described = topologies.get_topology_desc(
        platform="tpu", topology_name=chip.topology, chips_per_host_bounds=(1, 1, 1)
    )
    devices = np.array(described.devices[:1])
    mesh = jax.sharding.Mesh(
        devices, ("data",), axis_types=(jax.sharding.AxisType.Auto,)
    )
    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
        yield jax.sharding.NamedSharding(mesh, jax.P())
