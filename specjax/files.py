"""Files that others see whole, or not at all."""

import contextlib
import os
import pathlib


def write(path: pathlib.Path, raw: bytes) -> None:
    """Writes a file in one step, as others see it; what was there stays until then.

    Args:
      path: the file; its folder must exist.
      raw: all of it.

    Raises:
      OSError: it can't be written.
    """
    # Each process has a name of its own: several may write the same file at once.
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            file.write(raw)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:  # Ctrl-C too
        with contextlib.suppress(OSError):
            part.unlink()
        raise
