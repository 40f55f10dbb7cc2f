"""What would a forward pass of a large model take on TPUs that are not there?

python -m benchmarks.tpu.report [--json]

For each model, its weights in bfloat16 and in int8 with a scale for each output, the
smallest slice that holds them and a cache in bfloat16, and on it a forward over trees
of several widths with one row of logits: bytes that each chip holds, and what the
compiler counts of bytes and flops, with the body of the loop over layers counted as
often as it runs. The time is that of a roofline: the greater of flops over the chip's
peak and bytes over its bandwidth, without what chips say to each other.
"""

import argparse
import dataclasses
import itertools
import json
import math
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import rich.console
import rich.table

from benchmarks.tpu import chips, hlo, models, rounds
from specjax.core import axes
from specjax.core import tree as tree_lib
from specjax.models import config as config_lib
from specjax.models import decoder, placement

MODELS = {
    "llama-3-8b": models.LLAMA3_8B,
    "llama-2-70b": models.LLAMA2_70B,
    "qwen3-32b": models.QWEN3_32B,
    "gemma-3-27b": models.GEMMA3_27B,
}
FORMS = ("bfloat16", "int8")
WIDTHS = (1, 16, 64)
_FULL = 0.9  # of a chip's memory that arguments and temporaries may take


@dataclasses.dataclass(frozen=True, kw_only=True)
class Step:
    """One forward on one chip of a slice; sizes in bytes.

    Attributes:
      model, weights: which model, in which form.
      chip, number: on how many of which chips.
      width: nodes of a tree.
      arguments, temporaries: that the chip holds.
      read: from and to its memory.
      flops: of the chip.
      milliseconds: the roofline's.
    """

    model: str
    weights: str
    chip: str
    number: int
    width: int
    arguments: int
    temporaries: int
    read: float
    flops: float
    milliseconds: float


def steps(chip: str, rows: int, capacity: int) -> Iterator[Step]:
    """Every model and width on the smallest slice of such chips that holds it.

    A model that no slice holds is left out.
    """
    for (name, config), form in itertools.product(MODELS.items(), FORMS):
        number = _smallest(config, form, chip, rows, capacity)
        if number is None:
            continue
        mesh = chips.mesh(chip, number)
        for width in WIDTHS:
            sizes = rows, width, capacity
            whole = _compile(config, form, mesh, sizes)
            read, flops = _counted(config, form, mesh, sizes)
            peak = chips.CHIPS[chip]
            yield Step(
                model=name,
                weights=form,
                chip=chip,
                number=mesh.size,
                width=width,
                arguments=whole.arguments,
                temporaries=whole.temporaries,
                read=read,
                flops=flops,
                milliseconds=1e3 * max(read / peak.bandwidth, flops / peak.flops),
            )


def _smallest(config, form: str, chip: str, rows: int, capacity: int) -> int | None:
    for number in chips.CHIPS[chip].slices:
        mesh, memory = chips.mesh(chip, number), chips.CHIPS[chip].memory
        try:
            placement.check(mesh, config)
        except ValueError:
            continue  # It does not divide the model.
        if _weights(config, form, mesh) > _FULL * memory:
            continue
        try:
            made = _compile(config, form, mesh, (rows, max(WIDTHS), capacity))
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" in str(error):
                continue
            raise
        if made.arguments + made.temporaries <= _FULL * memory:
            return number
    return None


def _weights(config, form, mesh) -> int:
    """Bytes of params that a chip holds."""
    return sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf in jax.tree.leaves(rounds.weights(config, mesh, form=form))
    )


def _counted(config, form, mesh, sizes) -> tuple[float, float]:
    """Bytes and flops of all layers: those of one and the rest as often as they run.

    A window makes a layer cheaper; layers with one are counted as such.
    """
    windows = config.windows or (0,) * config.num_layers
    total = {"read": 0.0, "flops": 0.0}
    for at, window in enumerate(sorted(set(windows))):
        one, two = (
            _compile(_cut(config, (window,) * count), form, mesh, sizes, stacked=False)
            for count in (1, 2)
        )
        for key in total:
            layer = getattr(two, key) - getattr(one, key)
            total[key] += windows.count(window) * layer
            if at == 0:  # what stands outside the layers, once
                total[key] += getattr(one, key) - layer
    return total["read"], total["flops"]


def _cut(config: config_lib.ModelConfig, windows: tuple[int, ...]):
    kept = windows if config.windows else ()
    return dataclasses.replace(config, num_layers=len(windows), windows=kept)


def _compile(config, form, mesh, sizes, stacked: bool = True) -> hlo.Facts:
    rows, width, capacity = sizes
    params = rounds.weights(config, mesh, stacked=stacked, form=form)
    tree, start, cache = jax.eval_shape(lambda: _inputs(config, rows, width, capacity))
    cache = rounds.lie(mesh, cache, axes.state_specs(mesh, cache))

    def step(params, tree, start, cache):
        hidden, _, new = decoder.forward(config, params, tree, cache, start)
        logits = decoder.head(config, params, hidden[:, 0])
        return jnp.max(logits, axis=1), new

    with axes.on(mesh):
        lowered = jax.jit(step).lower(params, tree, start, cache)
        return hlo.facts(lowered.compile())


def _inputs(config, rows: int, width: int, capacity: int):
    slots = jnp.zeros((rows, width), jnp.int32)
    count = jnp.full((rows,), width, jnp.int32)
    tree = tree_lib.TokenTree(
        token=slots,
        parent=slots,
        depth=slots,
        tag=slots,
        confidence=slots.astype(jnp.float32),
        num_trunk=count,
        num_nodes=count,
    )
    cache = decoder.init_cache(config, rows, capacity, jnp.dtype("bfloat16"))
    return tree, count, cache


def table(found: list[Step]) -> rich.table.Table:
    """One line a step."""
    made = rich.table.Table(title="A forward pass, on each chip")
    for heading in ("model", "weights", "chips"):
        made.add_column(heading)
    headings = ("width", "arguments, GB", "temporaries, GB", "read, GB", "GFLOP", "ms")
    for heading in headings:
        made.add_column(heading, justify="right")
    for one in found:
        sizes = (one.arguments, one.temporaries, one.read, one.flops)
        made.add_row(
            one.model,
            one.weights,
            f"{one.number} {one.chip}",
            str(one.width),
            *(f"{size / 1e9:.2f}" for size in sizes),
            f"{one.milliseconds:.2f}",
        )
    return made


def main() -> None:
    """Parses options, compiles, prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--chips", default="v5e,v5p", help="kinds of chips")
    parser.add_argument("--rows", type=int, default=1, help="of the batch")
    parser.add_argument("--capacity", type=int, default=4096, help="of the cache")
    parser.add_argument("--json", action="store_true", help="print one object instead")
    options = parser.parse_args()
    chips.prepare()
    found: list[Step] = []
    for chip in options.chips.split(","):
        found += steps(chip, options.rows, options.capacity)
    if options.json:
        settings: dict[str, Any] = {"rows": options.rows, "capacity": options.capacity}
        rows = [dataclasses.asdict(one) for one in found]
        print(json.dumps({"settings": settings, "steps": rows}))
    else:
        rich.console.Console(width=120).print(table(found))


if __name__ == "__main__":
    main()
