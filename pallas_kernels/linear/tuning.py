"""How the work of the TPU kernel is cut into tiles."""

import dataclasses

_LANES = 128
_INPUTS, _OUTPUTS = 1024, 512  # of a tile at most: 2 MiB when decoded to float32
_SCALED = 256  # inputs whose scales, one for 32 of them, fill the sublanes


@dataclasses.dataclass(frozen=True)
class Tiles:
    """The tile of weights of one grid step: inputs by outputs."""

    inputs: int
    outputs: int

    def __post_init__(self):
        if self.inputs % 32:
            raise ValueError(f"inputs must be a multiple of 32, got {self.inputs}")


def choose(inputs: int, outputs: int) -> Tiles:
    """Tiles that divide a matrix and are as large as VMEM likes.

    An axis that none divides is not cut.

    Args:
      inputs: rows of the whole numbers, K, or K / 2 where a byte holds two.
      outputs: M, padded to whole vectors.
    """
    return Tiles(
        inputs=_divisor(inputs, _SCALED, _INPUTS),
        outputs=_divisor(outputs, _LANES, _OUTPUTS),
    )


def _divisor(whole: int, unit: int, most: int) -> int:
    """The largest multiple of ``unit`` up to ``most`` that divides, else the whole."""
    fits = [n for n in range(unit, most + 1, unit) if whole % n == 0]
    return max(fits, default=whole)
