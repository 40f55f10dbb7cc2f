"""Does everything compile for TPU, without a copy of anything large?

python -m benchmarks.tpu.check [--json]
"""

import argparse
import dataclasses
import importlib.metadata
import json
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any

import jax
import rich.console
import rich.table

from benchmarks.tpu import chips, hlo, kernels, program, rounds
from specjax.core import axes


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
    """What became of a case on a chip.

    Attributes:
      chip, case: names.
      seconds: to lower and compile.
      facts: of the program, None where it did not compile.
      problems: what is wrong with it; none if it passed.
    """

    chip: str
    case: str
    seconds: float
    facts: hlo.Facts | None
    problems: list[str]


def compile_case(case: kernels.Case, chip: str) -> Result:
    """Compiles one program and looks into it."""
    began = time.perf_counter()
    made = None
    try:
        mesh = case.mesh or chips.mesh(chip)
        with axes.on(mesh):
            jitted = jax.jit(case.function, donate_argnames=case.donated)
            compiled = jitted.lower(**_placed(mesh, case.arguments)).compile()
        made = hlo.facts(compiled)
        problems = list(find_problems(case, made, compiled.as_text(), chip))
    # Whatever the compiler raises is the finding.
    except Exception as error:
        problems = [f"{type(error).__name__}: {str(error).strip()[:600]}"]
    return Result(
        chip=chip,
        case=case.name,
        seconds=round(time.perf_counter() - began, 2),
        facts=made,
        problems=problems,
    )


def _placed(mesh: jax.sharding.Mesh, arguments: dict[str, Any]) -> dict[str, Any]:
    """Shapes as they lie on the chips: whole, where they don't say otherwise."""

    def place(leaf):
        whole = jax.sharding.NamedSharding(mesh, jax.P())
        where = leaf.format if leaf.sharding else whole
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where)

    return jax.tree.map(place, arguments)


def find_problems(
    case: kernels.Case, made: hlo.Facts, text: str, chip: str
) -> Iterator[str]:
    """What a compiled program must not do.

    Args:
      case: what was compiled.
      made: its numbers.
      text: its HLO.
      chip: that it was compiled for.
    """
    yield from hlo.made_by(text, hlo.MOVES, case.kept)
    yield from hlo.made_by(text, hlo.GATHERS, case.split)
    if case.weights:
        for said in program.made_again(program.read(text), case.weights):
            yield f"{said} moves weights about"
    if case.kernel and "tpu_custom_call" not in text:
        yield "holds no Pallas kernel"
    if case.read is not None and made.read > case.read:
        yield f"reads {made.read:.0f} bytes, more than {case.read:.0f}"
    memory = chips.CHIPS[chip].memory
    if made.resident > memory:
        yield f"needs {made.resident} bytes of memory, the chip has {memory}"


def check(names: Iterable[str]) -> Iterator[Result]:
    """Compiles every case for every chip."""
    for chip in names:
        for case in (*kernels.cases(), *rounds.cases(chip)):
            yield compile_case(case, chip)


def table(results: list[Result]) -> rich.table.Table:
    """One line a program, chips beside each other."""
    names = list(dict.fromkeys(result.chip for result in results))
    made = rich.table.Table(title="Programs compiled for TPU, MB")
    made.add_column("program")
    for heading in ("arguments", "temporaries", "read", *(f"{n}, s" for n in names)):
        made.add_column(heading, justify="right")
    for case in dict.fromkeys(result.case for result in results):
        found = {result.chip: result for result in results if result.case == case}
        known = next((r.facts for r in found.values() if r.facts), None)
        sizes = ("arguments", "temporaries", "read")
        numbers = [f"{getattr(known, n) / 1e6:.1f}" if known else "" for n in sizes]
        states = [
            ""
            if n not in found
            else f"{found[n].seconds:.1f}"
            if not found[n].problems
            else "FAILED"
            for n in names
        ]
        made.add_row(case, *numbers, *states)
    return made


def main() -> None:
    """Parses options, compiles, prints; exits with 1 if anything is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chips", default=",".join(chips.CHIPS), help="of these")
    parser.add_argument("--json", action="store_true", help="print one object instead")
    options = parser.parse_args()
    chips.prepare()
    began = time.perf_counter()
    results = list(check(options.chips.split(",")))
    failed = [result for result in results if result.problems]
    if options.json:
        packages = ("jax", "jaxlib", "libtpu")
        summary: dict[str, Any] = {
            "versions": {name: importlib.metadata.version(name) for name in packages},
            "seconds": round(time.perf_counter() - began, 1),
            "failed": len(failed),
            "programs": [dataclasses.asdict(result) for result in results],
        }
        print(json.dumps(summary))
    else:
        rich.console.Console(width=120).print(table(results))
    for result in failed:
        for problem in result.problems:
            print(f"{result.case} on {result.chip}: {problem}", file=sys.stderr)
    spent = time.perf_counter() - began
    print(
        f"tpu-check: {len(results)} programs, {len(failed)} failed, {spent:.0f} s",
        file=sys.stderr,
    )
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
