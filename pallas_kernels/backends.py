"""Which implementation of an op a program that is traced now may use."""

from collections.abc import Mapping

import jax


def platform() -> str:
    """What a program traced now is for: "cpu", "gpu", "tpu".

    That of the mesh in use, so that a program can be compiled for a machine that is not
    there (``jax.sharding.use_abstract_mesh``), or else jax's default.
    """
    device = jax.sharding.get_abstract_mesh().abstract_device
    return device.platform if device else jax.default_backend()


def partitioned() -> bool:
    """Whether the compiler is to split the program over several devices.

    It cannot split a kernel; inside ``jax.shard_map`` it does not have to.
    """
    mesh = jax.sharding.get_abstract_mesh()
    return any(mesh.shape[axis] > 1 for axis in (*mesh.auto_axes, *mesh.explicit_axes))


def choose(op: str, asked: str | None, there: Mapping[str, bool]) -> str:
    """The name of a backend that serves these arguments here.

    Args:
      op: its name, for the message.
      asked: a name, or None for the best.
      there: by name, whether it serves; the best first.

    Raises:
      ValueError: the one asked for does not.
    """
    served = [name for name, serves in there.items() if serves]
    if asked is None:
        return served[0]
    if asked not in served:
        raise ValueError(
            f"{op}: backend must be one of {', '.join(served)} for these arguments on "
            f"{platform()}, got {asked!r}"
        )
    return asked
