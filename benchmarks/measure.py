"""What every measurement shares: spread, environment, and one JSON line."""

import json
import os
import platform
import statistics
from collections.abc import Sequence
from importlib import metadata
from typing import Any

import jax

_PACKAGES = ("specjax", "jax", "jaxlib", "flax", "numpy")


def environment() -> dict[str, Any]:
    """Device and versions."""
    versions = {name: _version(name) for name in _PACKAGES}
    return {
        "device": jax.devices()[0].device_kind,
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        **versions,
    }


def spread(seconds: Sequence[float]) -> dict[str, float]:
    """Median, least and most, in milliseconds."""
    return {
        "median_ms": round(1e3 * statistics.median(seconds), 4),
        "min_ms": round(1e3 * min(seconds), 4),
        "max_ms": round(1e3 * max(seconds), 4),
    }


def emit(question: str, settings: dict[str, Any], results: Any) -> None:
    """Prints a measurement as one JSON line."""
    line = {
        "benchmark": question,
        "environment": environment(),
        "settings": settings,
        "results": results,
    }
    print(json.dumps(line), flush=True)


def numbers(text: str) -> tuple[int, ...]:
    """Integers parted by commas, for argparse."""
    return tuple(int(part) for part in text.split(","))


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"
