"""What tests of products with stored weights give them, and how near they must be."""

import jax.numpy as jnp
import numpy as np

from pallas_kernels.linear import reference


def stored(inputs, outputs, kind, seed=0):
    """Random blocks with finite scales."""
    random = np.random.default_rng(seed)
    size, count = {"q8_0": (34, 1), "q4_0": (18, 1), "q4_1": (20, 2)}[kind]
    blocks = random.integers(0, 256, (outputs, inputs // 32, size), np.uint8)
    scales = random.standard_normal((outputs, inputs // 32, count)).astype(np.float16)
    blocks[..., : 2 * count] = scales.view(np.uint8)
    return blocks.reshape(outputs, -1)


def decoded(made, kind):
    """The weights f64[K, M] of stored rows."""
    return np.stack([reference.decode_row(row, kind) for row in made]).T


def check(got, x, weights):
    """Within what so many products are rounded by, in the dtype of x."""
    x, weights = np.asarray(x, np.float64), np.asarray(weights, np.float64)
    unit = float(jnp.finfo(got.dtype).eps)
    bound = 4 * unit * np.sqrt((x**2) @ (weights**2)) + 1e-6
    error = np.abs(np.asarray(got, np.float64) - x @ weights)
    assert (error <= bound * np.log2(x.shape[1])).all(), (error / bound).max()
