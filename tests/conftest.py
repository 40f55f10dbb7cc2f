"""Settings of every test run: CPU unless asked, eight devices, strict promotion."""

import dataclasses
import importlib.metadata
import os
import pathlib

# Tests marked `gpu` may be asked for with TEST_PLATFORMS=cuda,cpu.
os.environ["JAX_PLATFORMS"] = os.environ.get("TEST_PLATFORMS", "cpu")
# Eight devices for sharding; compiling takes most of the tests' time, so the
# optimiser and the slower way to make fused loops are off.
_FLAGS = [
    "--xla_force_host_platform_device_count=8",
    "--xla_backend_optimization_level=0",
    "--xla_llvm_disable_expensive_passes=true",
]
if importlib.metadata.version("jaxlib").startswith("0.10."):
    _FLAGS.append("--xla_cpu_use_fusion_emitters=false")  # unknown to later ones
for _flag in _FLAGS:
    if _flag.split("=")[0] not in os.environ.get("XLA_FLAGS", ""):
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_flag}".strip()

import hypothesis  # noqa: E402
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import pytest  # noqa: E402

from pallas_kernels import linear  # noqa: E402
from specjax import checkpoints  # noqa: E402
from specjax.core import contracts, noise, processors  # noqa: E402
from specjax.core import history as history_lib  # noqa: E402
from specjax.core import sampling as sampling_lib  # noqa: E402

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_debug_key_reuse", True)

hypothesis.settings.register_profile(
    "specjax",
    deadline=None,
    derandomize=True,
    max_examples=30,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("specjax")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """One worker for a file, or for a drafter of the contract suite.

    What tests native code is skipped where there is no compiler, and what runs kernels
    of a GPU where there is none.
    """
    bare = pytest.mark.skip(reason="no compiler for native code")
    without = pytest.mark.skip(reason="no GPU, or TEST_PLATFORMS=cuda,cpu is not set")
    for item in items:
        if item.get_closest_marker("native") and not linear.available():
            item.add_marker(bare)
        if item.get_closest_marker("gpu") and jax.default_backend() != "gpu":
            item.add_marker(without)
        params = item.callspec.params if hasattr(item, "callspec") else {}
        contract = "tests/contract/" in item.nodeid
        group = params["name"] if contract and "name" in params else item.location[0]
        item.add_marker(pytest.mark.xdist_group(group))


@pytest.fixture(autouse=True, scope="module")
def _few_memory_maps():
    """Drops compiled programs before there are more memory maps than Linux allows."""
    yield
    maps = pathlib.Path("/proc/self/maps")  # dozens a program; the limit is 65,530
    if maps.exists() and maps.read_text().count("\n") > 20_000:
        jax.clear_caches()


@pytest.fixture(scope="session")
def smollm2():
    """SmolLM2-135M-Instruct, which `make setup` has fetched."""
    return checkpoints.load("smollm2-135m")


@pytest.fixture(scope="session")
def make_sampling():
    """(rows, **options) -> Sampling of that many rows, each with its own seed."""
    return _sampling


@pytest.fixture(scope="session")
def make_view():
    """(rows, vocab_size, **options) -> View after a prompt of three tokens."""
    return _view


def _sampling(rows, first_seed=0, **options):
    one = sampling_lib.pack([sampling_lib.SamplingOptions(**options)], [0])
    many = jax.tree.map(lambda x: jnp.broadcast_to(x, (rows, *x.shape[1:])), one)
    seeds = first_seed + jnp.arange(rows, dtype=jnp.uint32)
    key = noise.row_keys(seeds, jnp.zeros_like(seeds))
    return dataclasses.replace(many, key=key)


def _view(rows, vocab_size, *, room=100, first_seed=0, **options):
    sampling = _sampling(rows, first_seed, **options)
    prompt = jnp.broadcast_to(jnp.arange(3, dtype=jnp.int32)[None], (rows, 3))
    lengths = jnp.full((rows,), 3, jnp.int32)
    history = history_lib.create(prompt % vocab_size, lengths, 16)
    return contracts.View(
        history=history,
        sampling=sampling,
        processors=processors.start(history, sampling, vocab_size),
        start=jnp.maximum(history.length - 1, 0),
        room=jnp.full((rows,), room, jnp.int32),
        rounds=jnp.zeros((rows,), jnp.int32),
    )
