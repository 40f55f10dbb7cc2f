"""What would a forward pass of a large model take on TPUs that are not there?

python -m benchmarks.tpu.report [--models llama-3-8b] [--numbers 1,2,4,8] [--json]

For each model, its weights in bfloat16 and in int8 with a scale for each output, the
smallest slice that holds them and a cache in bfloat16 (or the numbers of chips asked
for), and on it a forward over trees
of several widths with one row of logits: bytes that each chip holds, those that it
moves from and to memory (`traffic.py`), and the compiler's count of flops, with the
body of the loop over layers counted as often as it runs and attention over a full
cache. The time is that of a roofline: the greater of flops over the chip's peak and
bytes over its bandwidth, without what chips say to each other.
"""

import argparse
import dataclasses
import itertools
import json
import math
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import rich.console
import rich.table

from benchmarks import measure
from benchmarks.tpu import chips, hlo, models, program, rounds, traffic
from specjax.core import axes
from specjax.core import tree as tree_lib
from specjax.models import cache as cache_lib
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
      moved: from and to its memory.
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
    moved: int
    flops: float
    milliseconds: float


def steps(
    chip: str,
    rows: int,
    capacity: int,
    *,
    names: Sequence[str] = tuple(MODELS),
    numbers: Sequence[int] = (),
) -> Iterator[Step]:
    """Models in both forms and every width.

    Args:
      chip: kind.
      rows: B.
      capacity: S.
      names: of models.
      numbers: of chips; by default, for each model, that of the smallest slice that
        holds it, and a model that none holds is left out.
    """
    for name, form in itertools.product(names, FORMS):
        config = MODELS[name]
        smallest = () if numbers else (_smallest(config, form, chip, rows, capacity),)
        for number, width in itertools.product(numbers or smallest, WIDTHS):
            if number is None:
                continue
            mesh = chips.mesh(chip, number)
            sizes = rows, width, capacity
            whole = _compile(config, form, mesh, sizes)
            facts, text = hlo.facts(whole), whole.as_text()
            moved = traffic.moved(program.read(text), config.num_layers)
            flops = _flops(config, form, mesh, sizes)
            peak = chips.CHIPS[chip]
            yield Step(
                model=name,
                weights=form,
                chip=chip,
                number=mesh.size,
                width=width,
                arguments=facts.arguments,
                temporaries=facts.temporaries,
                moved=moved,
                flops=flops,
                milliseconds=1e3 * max(moved / peak.bandwidth, flops / peak.flops),
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
            made = hlo.facts(
                _compile(config, form, mesh, (rows, max(WIDTHS), capacity))
            )
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


def _flops(config, form, mesh, sizes) -> float:
    """Of all layers: those of one as often as there are layers, and of the rest."""
    one, two = (
        hlo.facts(_compile(_cut(config, count), form, mesh, sizes, stacked=False)).flops
        for count in (1, 2)
    )
    return one + (config.num_layers - 1) * (two - one)


def _cut(config: config_lib.ModelConfig, layers: int) -> config_lib.ModelConfig:
    windows = config.windows[:layers]
    return dataclasses.replace(config, num_layers=layers, windows=windows)


def _compile(config, form, mesh, sizes, stacked: bool = True) -> jax.stages.Compiled:
    rows, width, capacity = sizes
    params = rounds.weights(config, mesh, stacked=stacked, form=form)
    tree, start, cache = jax.eval_shape(lambda: _inputs(config, rows, width, capacity))
    cache = rounds.lie(mesh, cache, axes.state_specs(mesh, cache))

    def step(params, tree, start, cache):
        hidden, _, new = decoder.forward(config, params, tree, cache, start)
        logits = decoder.head(config, params, hidden[:, 0])
        return jnp.max(logits, axis=1), new

    with axes.on(mesh):
        return jax.jit(step).lower(params, tree, start, cache).compile()


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
    cache = cache_lib.init(config, rows, capacity, jnp.dtype("bfloat16"))
    return tree, count, cache


def table(found: list[Step]) -> rich.table.Table:
    """One line a step."""
    made = rich.table.Table(title="A forward pass, on each chip")
    for heading in ("model", "weights", "chips"):
        made.add_column(heading)
    headings = ("width", "arguments, GB", "temporaries, GB", "moved, GB", "GFLOP", "ms")
    for heading in headings:
        made.add_column(heading, justify="right")
    for one in found:
        sizes = (one.arguments, one.temporaries, one.moved, one.flops)
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
    parser.add_argument("--models", default=",".join(MODELS), help="of these")
    parser.add_argument(
        "--numbers",
        type=measure.numbers,
        default=(),
        help="of chips [the smallest slice]",
    )
    parser.add_argument("--rows", type=int, default=1, help="of the batch")
    parser.add_argument("--capacity", type=int, default=4096, help="of the cache")
    parser.add_argument("--json", action="store_true", help="print one object instead")
    options = parser.parse_args()
    wanted, names = options.chips.split(","), options.models.split(",")
    for option, given, known in (
        ("chips", wanted, chips.CHIPS),
        ("models", names, MODELS),
    ):
        if not set(given) <= set(known):
            parser.error(
                f"--{option} must be of {','.join(known)}, got {','.join(given)}"
            )
    most = min(max(chips.CHIPS[name].slices) for name in wanted)
    if not all(1 <= number <= most for number in options.numbers):
        parser.error(f"--numbers must be 1 to {most} for these chips")
    chips.prepare()
    found: list[Step] = []
    for chip in wanted:
        sizes = options.rows, options.capacity
        found += steps(chip, *sizes, names=names, numbers=options.numbers)
    if options.json:
        settings: dict[str, Any] = {"rows": options.rows, "capacity": options.capacity}
        rows = [dataclasses.asdict(one) for one in found]
        print(json.dumps({"settings": settings, "steps": rows}))
    else:
        rich.console.Console(width=120).print(table(found))


if __name__ == "__main__":
    main()
