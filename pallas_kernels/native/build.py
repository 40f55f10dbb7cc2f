"""Compiles an op's ``cpu.cc`` once for this machine and registers its functions.

What is built is kept in a cache folder under a name that holds everything it depends
on: sources, compiler, flags, the processor's abilities and jaxlib's headers. So a
folder shared by machines holds one build for each kind of them.
"""

import ctypes
import functools
import hashlib
import importlib.metadata
import os
import pathlib
import platform
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Sequence

import jax

from pallas_kernels import backends

_ROOT = pathlib.Path(__file__).parent.parent
_FLAGS = ("-std=c++17", "-O3", "-ffp-contract=off", "-fPIC", "-shared", "-pthread")
_COMPILERS = ("c++", "g++", "clang++")
_SECONDS = 300  # a compiler that takes longer has hung


def version(op: str) -> str:
    """Names the build that is in use, for what was measured with it."""
    opened = library(op)
    return pathlib.Path(opened._name).stem if opened else "none"


def load(op: str, functions: Sequence[str]) -> bool:
    """Whether the op's native functions may be called; builds them if need be.

    Not in a program that the compiler splits over devices. Says once, as a warning,
    why they may not otherwise. ``SPECJAX_NATIVE=0`` turns native code off.

    Args:
      op: folder of ``pallas_kernels`` with a cpu.cc.
      functions: FFI handlers in it, registered under their own names.
    """
    return not backends.partitioned() and _load(op, tuple(functions))


@functools.cache
def library(op: str) -> ctypes.CDLL | None:
    """The op's shared library, or None as `load` says why."""
    if os.environ.get("SPECJAX_NATIVE", "1") == "0":
        return None
    try:
        return _opened(op)
    except (OSError, _NotBuilt) as error:
        warnings.warn(
            f"{op}: no native code, so XLA computes it, more slowly: {error}",
            stacklevel=4,
        )
        return None


@functools.cache
def _load(op: str, functions: tuple[str, ...]) -> bool:
    opened = library(op)
    if opened is None:
        return False
    for name in functions:
        handler = jax.ffi.pycapsule(getattr(opened, name))
        jax.ffi.register_ffi_target(name, handler, platform="cpu")
    return True


def _opened(op: str) -> ctypes.CDLL:
    """The op's library; one that can't be opened is built anew."""
    path = _built(op)
    try:
        return ctypes.CDLL(os.fspath(path))
    except OSError:
        path.unlink()
        return ctypes.CDLL(os.fspath(_built(op)))


class _NotBuilt(Exception):
    """There is no compiler, or it failed."""


def _built(op: str) -> pathlib.Path:
    """The shared library, compiled now if it is not in the cache."""
    compiler = os.environ.get("CXX") or next(
        filter(None, map(shutil.which, _COMPILERS)), ""
    )
    if not compiler:
        raise _NotBuilt(f"found no C++ compiler ({', '.join(_COMPILERS)}, or CXX)")
    source = _ROOT / op / "cpu.cc"
    command = [compiler, *_FLAGS, *_machine_flags()]
    command += [f"-I{_ROOT / 'native'}", "-isystem", jax.ffi.include_dir()]
    folder = _cache_folder()
    kept = folder / f"{op}-{_digest(source, command)}.so"
    if not kept.exists():
        folder.mkdir(parents=True, exist_ok=True)
        _compile([*command, os.fspath(source)], kept)
    return kept


def _compile(command: list[str], kept: pathlib.Path) -> None:
    """Compiles to a file that appears whole or not at all."""
    handle, made = tempfile.mkstemp(dir=kept.parent, suffix=".so")
    os.close(handle)
    try:
        done = subprocess.run(
            [*command, "-o", made],
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
        if done.returncode:
            log = kept.with_suffix(".log")
            log.write_text(" ".join(command) + "\n" + done.stderr, encoding="utf-8")
            raise _NotBuilt(f"the compiler {command[0]} failed, see {log}")
        os.replace(made, kept)
    except subprocess.TimeoutExpired as error:
        raise _NotBuilt(f"{command[0]} ran for more than {_SECONDS} s") from error
    finally:
        pathlib.Path(made).unlink(missing_ok=True)


def _machine_flags() -> tuple[str, ...]:
    """Everything that this processor can do."""
    arm = platform.machine().lower() in ("arm64", "aarch64")
    return ("-mcpu=native",) if arm else ("-march=native",)


def _digest(source: pathlib.Path, command: Sequence[str]) -> str:
    version = subprocess.run(
        [command[0], "--version"], capture_output=True, text=True, check=False
    ).stdout
    headers = importlib.metadata.version("jaxlib")
    facts = [version, *command, headers, platform.machine(), _abilities()]
    headers_of = (source.parent, _ROOT / "native")
    files = [source, *(h for folder in headers_of for h in sorted(folder.glob("*.h")))]
    whole = "\n".join(facts).encode() + b"".join(path.read_bytes() for path in files)
    return hashlib.sha256(whole).hexdigest()[:16]


def _abilities() -> str:
    """What the processor says that it can do."""
    try:
        text = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor()
    wanted = ("flags", "Features", "model name")
    return "\n".join(
        sorted({line for line in text.splitlines() if line.startswith(wanted)})
    )


def _cache_folder() -> pathlib.Path:
    chosen = os.environ.get("SPECJAX_CACHE")
    if chosen:
        return pathlib.Path(chosen).expanduser() / "native"
    base = os.environ.get("XDG_CACHE_HOME")
    home = pathlib.Path(base) if base else pathlib.Path.home() / ".cache"
    return home / "specjax" / "native"
