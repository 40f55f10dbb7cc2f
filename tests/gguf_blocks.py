"""Rows in the block formats of GGUF, random bit for bit."""

import gguf
import numpy as np

# Where a block has float16 numbers; every other bit may be anything.
HALVES = {
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q8_0": (0,),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "IQ4_NL": (0,),
    "IQ4_XS": (0,),
    "TQ2_0": (64,),
}


def random_rows(kind, outputs, inputs, seed=0, exponents=(0, 31)):
    """Rows u8[outputs, bytes] that hold finite weights.

    Args:
      kind: name of a format; one that is not in ``HALVES`` is all random.
      outputs, inputs: shape of the weights.
      seed: of the bits.
      exponents: range of the float16 numbers' exponent bits; (0, 31) is all of them
        that are finite, and 15 stands for 1.
    """
    weights, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    random = np.random.default_rng(seed)
    blocks = random.integers(0, 256, (outputs, inputs // weights, size), np.uint8)
    for at in HALVES.get(kind, ()):
        shape = blocks.shape[:2]
        sign, fraction = random.integers(0, 2, shape), random.integers(0, 1024, shape)
        bits = sign << 15 | random.integers(*exponents, shape) << 10 | fraction
        blocks[..., at : at + 2] = bits.astype("<u2")[..., None].view(np.uint8)
    return blocks.reshape(outputs, -1)


def dequantize(rows, kind):
    """The weights f32[outputs, inputs] as the package decodes them."""
    return gguf.quants.dequantize(np.asarray(rows), gguf.GGMLQuantizationType[kind])
