"""One notation for shapes, checked where users hand arrays in.

``check`` reads the same text that docstrings use (``i32[B, N]``), binds the
letters across arguments and raises a ValueError that names the argument.
"""

import re
from typing import Any

import jax.numpy as jnp

_KINDS = {
    "i32": jnp.int32,
    "u32": jnp.uint32,
    "f32": jnp.float32,
    "bool": jnp.bool_,
}
_SPEC = re.compile(r"^(?P<kind>\w+)\[(?P<axes>[^\]]*)\]$")


def _describe(value: Any) -> str:
    return f"{jnp.result_type(value).name}{list(jnp.shape(value))}"


def check(where: str, **arguments: tuple[Any, str]) -> dict[str, int]:
    """Checks dtypes and shapes of arrays against specs and returns the sizes.

    Args:
      where: name of the calling function, for the message.
      **arguments: name -> (array, spec); a spec is ``kind[axes]`` with kind one
        of i32, u32, f32, bool or f (any float), axes letters or integers.

    Returns:
      The size bound to each letter.

    Raises:
      ValueError: an argument has another dtype, rank or size than its spec.
    """
    sizes: dict[str, int] = {}
    for name, (value, spec) in arguments.items():
        match = _SPEC.match(spec)
        assert match, f"malformed spec {spec!r}"
        kind, axes = match["kind"], [a.strip() for a in match["axes"].split(",")]
        axes = [a for a in axes if a]
        shape, dtype = jnp.shape(value), jnp.result_type(value)
        fits = (
            jnp.issubdtype(dtype, jnp.floating)
            if kind == "f"
            else dtype == _KINDS[kind]
        )
        fits = fits and len(shape) == len(axes)
        if fits:
            for axis, size in zip(axes, shape, strict=True):
                expected = int(axis) if axis.isdigit() else sizes.setdefault(axis, size)
                fits = fits and size == expected
        if not fits:
            bound = ", ".join(f"{k}={v}" for k, v in sizes.items())
            raise ValueError(
                f"{where}: {name} must be {spec}"
                + (f" with {bound}" if bound else "")
                + f", got {_describe(value)}"
            )
    return sizes
