"""How the work of the GPU kernel is cut into programs."""

import dataclasses

_OUTPUTS = 128  # of a program: a line of memory when they are bytes
_PROGRAMS = 256  # that keep all of a large GPU busy
_STEPS = 8  # of 32 inputs, that a program has at least
_BLOCK = 32


@dataclasses.dataclass(frozen=True)
class Tiles:
    """How many outputs a program takes, and how many share its inputs."""

    outputs: int
    shares: int

    def __post_init__(self):
        if self.outputs & (self.outputs - 1) or self.shares < 1:
            raise ValueError(
                f"outputs must be a power of two and shares 1 or more, got {self}"
            )


def choose(inputs: int, outputs: int) -> Tiles:
    """Programs enough for a large GPU, with work enough for each.

    Args:
      inputs: rows of whole numbers.
      outputs: padded to whole vectors, 128.
    """
    programs = outputs // _OUTPUTS
    most = max(1, -(-inputs // _BLOCK) // _STEPS)
    return Tiles(_OUTPUTS, max(1, min(_PROGRAMS // programs, most)))
