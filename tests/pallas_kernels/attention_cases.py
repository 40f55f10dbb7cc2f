"""What tests of attention kernels give them, and what they must make of it."""

import jax.numpy as jnp
import numpy as np

from pallas_kernels.tree_attention import reference


def arguments(spec, seed, sharpness=1.0):
    """Random arrays and a random tree a row, whose unused slots see themselves."""
    random = np.random.default_rng(seed)
    made = {
        name: random.standard_normal(shape.shape)
        for name, shape in spec.arguments().items()
        if name in ("q", "k", "v", "k_cache", "v_cache")
    }
    made["q"] *= sharpness
    made = {name: jnp.asarray(value, spec.dtype) for name, value in made.items()}
    mask = np.zeros((spec.rows, spec.nodes, spec.nodes), bool)
    depth = np.zeros((spec.rows, spec.nodes), np.int32)
    for row, used in enumerate(random.integers(1, spec.nodes + 1, spec.rows)):
        for node in range(spec.nodes):
            mask[row, node, node] = True
            if 0 < node < used:
                parent = random.integers(0, node)
                mask[row, node] |= mask[row, parent]
                depth[row, node] = depth[row, parent] + 1
    return made | {
        "depth": jnp.asarray(depth),
        "mask": jnp.asarray(mask),
        "layer": jnp.int32(random.integers(0, spec.layers)),
    }


def wanted(arrays, length, **options):
    """By the reference, which has no stacked caches."""
    given = {k: np.asarray(v) for k, v in arrays.items() if k != "layer"}
    for name in ("q", "k", "v", "k_cache", "v_cache"):
        given[name] = np.asarray(arrays[name].astype(jnp.float32))
    for name in ("k_cache", "v_cache"):
        given[name] = given[name][:, int(arrays["layer"])]
    return reference.part(**given, length=np.asarray(length), **options)


def tolerance(spec):
    """Of sums of so many products, in the dtype they are kept in."""
    terms = spec.size + spec.slots + spec.nodes
    unit = float(jnp.finfo(spec.dtype).eps)
    return unit * (4 + terms**0.5 / 4) * (1 if spec.dtype == "float32" else 0.5)
