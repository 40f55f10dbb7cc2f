"""How tests run GPU kernels, and lower them where there is no GPU."""

from collections.abc import Callable
from typing import Any

import jax
import pytest
from jaxlib.mlir import ir
from jaxlib.triton import dialect

# Newer versions of jax say so when they lower a kernel for Triton.
NO_WARNING = pytest.mark.filterwarnings("ignore:The Pallas Triton backend is dep")
HOW = pytest.mark.parametrize(
    "interpret",
    [True, pytest.param(False, marks=[pytest.mark.gpu, NO_WARNING])],
    ids=["interpreted", "compiled"],
)


def kernels(function: Callable[..., Any], **arguments: Any) -> int:
    """Lowers a program for an H100 and verifies its kernels; says how many there are.

    Args:
      function: to be traced, with the public functions' backends for a GPU.
      arguments: their shapes.
    """
    device = jax.sharding.AbstractDevice(
        device_kind="NVIDIA H100 80GB HBM3", num_cores=132, platform="gpu"
    )
    automatic = (jax.sharding.AxisType.Auto,)
    mesh = jax.sharding.AbstractMesh((1,), ("data",), automatic, abstract_device=device)
    with jax.sharding.use_abstract_mesh(mesh):
        traced = jax.jit(function).trace(**arguments)
        lowered = traced.lower(lowering_platforms=("cuda",))
    context = ir.Context()
    dialect.register_dialect(context)
    context.load_all_available_dialects()
    found = list(_stored(lowered.compiler_ir().operation))
    for module in found:  # what does not hold together does not parse
        assert ir.Module.parse(module, context).operation.verify()
    return len(found)


def _stored(operation):
    """The kernels in a lowered program, as Triton reads them."""
    for region in operation.regions:
        for block in region.blocks:
            for inner in block.operations:
                yield from _stored(inner.operation)
    name = "call_target_name"
    if name in operation.attributes and "triton" in str(operation.attributes[name]):
        yield operation.attributes["mhlo.backend_config"]["ir"].value_bytes
