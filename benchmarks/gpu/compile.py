"""Does every GPU kernel compile, on a machine without a GPU?

pip install jax-cuda12-plugin==VERSION jax-cuda12-pjrt==VERSION   # that of jaxlib
python -m benchmarks.gpu.compile [--only TEXT] [--json]

The plugin compiles for a GPU that it is told about. What is compiled is not run. Exits
with 2 where the plugin is not installed, with 1 where a kernel does not compile.
"""

import argparse
import dataclasses
import importlib.util
import json
import sys
import time
from collections.abc import Sequence

import jax
import numpy as np
import rich.console
import rich.table
from jax.experimental import topologies

from benchmarks.gpu import cases

_H100 = """
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048
  shared_memory_per_block: 49152 shared_memory_per_block_optin: 232448
  shared_memory_per_core: 233472 registers_per_core_limit: 65536
  registers_per_block_limit: 65536 core_count: 132 fpus_per_core: 128
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  thread_dim_limit_x: 1024 thread_dim_limit_y: 1024 thread_dim_limit_z: 64
  memory_bandwidth: 3350000000000 l2_cache_size: 52428800 clock_rate_ghz: 1.98
  device_memory_size: 85899345920 device_vendor: "NVIDIA Corporation"
  driver_version: "13.0.0" runtime_version: "12.8.0"
  compile_time_toolkit_version: "12.8.0"
  cuda_compute_capability { major: 9 feature_extension: ACCELERATED_FEATURES }
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 10 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
    """What became of a case.

    Attributes:
      case: its name.
      seconds: to lower and compile.
      temporaries: bytes that the program needs besides arguments and results.
      problem: what is wrong, if anything is.
    """

    case: str
    seconds: float
    temporaries: int = 0
    problem: str = ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Compiles and prints; gives the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="cases whose name has this text")
    parser.add_argument("--json", action="store_true", help="print one object instead")
    options = parser.parse_args(arguments)
    if importlib.util.find_spec("jax_cuda12_plugin") is None:
        print(
            "benchmarks.gpu.compile: jax's plugin for CUDA is not installed: pip "
            f"install jax-cuda12-{{plugin,pjrt}}=={jax.__version__}",
            file=sys.stderr,
        )
        return 2
    jax.config.update("jax_platforms", "cpu")
    mesh = h100()
    chosen = [case for case in cases.cases() if options.only in case.name]
    results = [compile_case(case, mesh) for case in chosen]
    if options.json:
        print(json.dumps([dataclasses.asdict(result) for result in results]))
    else:
        rich.console.Console(width=120).print(table(results))
    failed = [result for result in results if result.problem]
    for result in failed:
        print(f"{result.case}: {result.problem}", file=sys.stderr)
    return int(bool(failed))


def h100() -> jax.sharding.Mesh:
    """One H100 that is not there."""
    described = topologies.get_topology_desc(
        platform="cuda", topology_name="h100", topology="1x1x1", target_config=_H100
    )
    automatic = (jax.sharding.AxisType.Auto,)
    return jax.sharding.Mesh(np.array(described.devices), ("data",), automatic)


def compile_case(case: cases.Case, mesh: jax.sharding.Mesh) -> Result:
    """Compiles one case by its kernel."""
    began, temporaries, problem = time.perf_counter(), 0, ""
    lies = jax.sharding.NamedSharding(mesh, jax.P())
    placed = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=lies),
        case.arguments,
    )
    try:
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            made = jax.jit(lambda given: case.program("gpu", **given)).lower(placed)
        compiled = made.compile()
        temporaries = compiled.memory_analysis().temp_size_in_bytes
        if "xla.gpu.triton" not in compiled.as_text():
            problem = "holds no Pallas kernel"
    # Whatever the compiler raises is the finding.
    except Exception as error:
        problem = f"{type(error).__name__}: {str(error).strip()[:600]}"
    spent = round(time.perf_counter() - began, 2)
    return Result(
        case=case.name, seconds=spent, temporaries=temporaries, problem=problem
    )


def table(results: Sequence[Result]) -> rich.table.Table:
    """One line a case."""
    made = rich.table.Table(title="Programs compiled for an H100")
    made.add_column("case")
    made.add_column("temporaries, MB", justify="right")
    made.add_column("s", justify="right")
    for result in results:
        spent = "FAILED" if result.problem else f"{result.seconds:.1f}"
        made.add_row(result.case, f"{result.temporaries / 1e6:.1f}", spent)
    return made


if __name__ == "__main__":
    sys.exit(main())
