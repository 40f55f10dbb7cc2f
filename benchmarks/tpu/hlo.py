"""What a compiled program says of itself."""

import dataclasses
import math
import re
from collections.abc import Collection

# %name = bf16[8,32]{1,0:T(8,128)} copy(...) or, started early, = (bf16[8,32]..., ...)
_MADE = r"%(\S+) = (\(?\w+\[[\d,]*\].*?) ({kinds})\("
_SHAPE = re.compile(r"\w+\[([\d,]*)\]")
MOVES = ("copy", "transpose", "copy-start")
GATHERS = ("all-gather", "all-gather-start")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Facts:
    """Numbers of one compiled program, in bytes where not said otherwise.

    Loop bodies count once in ``read`` and ``flops``.
    """

    arguments: int
    temporaries: int
    resident: int
    read: float
    flops: float


def facts(compiled) -> Facts:
    """Of a ``jax.stages.Compiled``."""
    memory, cost = compiled.memory_analysis(), compiled.cost_analysis()
    arguments = memory.argument_size_in_bytes
    temporaries = memory.temp_size_in_bytes
    made = memory.output_size_in_bytes - memory.alias_size_in_bytes
    return Facts(
        arguments=arguments,
        temporaries=temporaries,
        resident=arguments + temporaries + made,
        read=cost.get("bytes accessed", 0.0),
        flops=cost.get("flops", 0.0),
    )


def made_by(text: str, kinds: Collection[str], sizes: Collection[int]) -> list[str]:
    """Instructions of some kinds that make an array of one of so many elements.

    Args:
      text: of the compiled program.
      kinds: such as ``MOVES`` or ``GATHERS``.
      sizes: numbers of elements.

    Returns:
      "name: kind of shape", one for each.
    """
    found = []
    for name, result, kind in re.findall(_MADE.format(kinds="|".join(kinds)), text):
        for shape in _SHAPE.findall(result):
            elements = math.prod(int(side) for side in shape.split(",") if side)
            if elements in sizes:
                found.append(f"{name}: {kind} of [{shape}]")
                break
    return found
