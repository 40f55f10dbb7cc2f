"""How long kernels take, and how long their bytes take at least."""

import dataclasses
import functools
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.gpu import cases

_READ = 1 << 30  # bytes, to measure how fast memory is read
_TURNS = 30


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """One case, times in microseconds a call.

    Attributes:
      case: its name.
      kernel, xla: medians.
      floor: of reading what must be read.
      differs: greatest difference of the two results, over the greatest result.
      problem: why there is no measurement, if there is none.
    """

    case: str
    kernel: float = 0.0
    xla: float = 0.0
    floor: float = 0.0
    differs: float = 0.0
    problem: str = ""


def bandwidth() -> float:
    """Bytes a second that a sum over a large array reads."""
    array = jnp.ones((_READ // 4,), jnp.float32)
    return _READ / seconds(jax.jit(jnp.sum), array)


def measure(case: cases.Case, bytes_a_second: float) -> Row:
    """Times a case; what cannot be compiled or run is a problem, not the end."""
    try:
        values = case.values()
        made, spent = {}, {}
        for backend in ("gpu", "xla"):
            program = jax.jit(functools.partial(case.program, backend))
            made[backend] = program(**values)[0].astype(jnp.float32)
            spent[backend] = 1e6 * seconds(program, **values) / case.calls
        error = jnp.max(jnp.abs(made["gpu"] - made["xla"]))
        return Row(
            case=case.name,
            kernel=spent["gpu"],
            xla=spent["xla"],
            floor=1e6 * case.read / bytes_a_second,
            differs=float(error / jnp.max(jnp.abs(made["xla"]))),
        )
    # Whatever the compiler or the device raises is the finding.
    except Exception as error:
        text = f"{type(error).__name__}: {str(error).strip()[:300]}"
        return Row(case=case.name, problem=text)


def seconds(function: Callable[..., Any], *args: Any, **kwargs: Any) -> float:
    """Median time of a call, after one that compiles and warms up."""
    jax.block_until_ready(function(*args, **kwargs))
    spent = []
    for _ in range(_TURNS):
        began = time.perf_counter()
        jax.block_until_ready(function(*args, **kwargs))
        spent.append(time.perf_counter() - began)
    return statistics.median(spent)
