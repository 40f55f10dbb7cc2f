"""The persistent compilation cache: a second process starts fast."""

import pathlib

import jax

from specjax import checkpoints


def enable_compilation_cache(folder: str | pathlib.Path | None = None) -> pathlib.Path:
    """Keeps compiled programs on disk from now on, for this process and later ones.

    Args:
      folder: where; by default ``compiled`` in specjax's cache folder.

    Returns:
      The folder.

    Raises:
      ValueError: the folder can't be made.
    """
    path = pathlib.Path(folder or checkpoints.cache_folder() / "compiled")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(
            f"compilation cache: can't make {path} ({error.strerror}); set "
            "SPECJAX_CACHE to a folder that you may write to"
        ) from error
    jax.config.update("jax_compilation_cache_dir", str(path))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
    return path
