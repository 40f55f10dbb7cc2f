"""The text of a compiled program, read into its computations."""

import math
import re
from collections.abc import Collection, Iterator
from typing import NamedTuple

# Their results are no arrays of their own.
CARRIED = ("parameter", "constant", "tuple", "get-tuple-element", "bitcast")
FETCHES = ("copy-start", "slice-start")  # from one memory to the other
LOOPS = ("while", "conditional", "call")

_COMPUTATION = re.compile(r"(ENTRY )?%?(\S+) \(.*\) -> .*\{")
_INSTRUCTION = re.compile(r"  (?:ROOT )?%(\S+) = (.*?) ([a-z][a-z\-]*)\((.*)")
_ARRAY = re.compile(r"\b(pred|[a-z]+(\d+)\w*)\[([\d,]*)\](\{[^}]*\})?")
_REFERENCE = re.compile(r"%([\w.\-]+)")
_CALLS = re.compile(r"(?:calls|body|to_apply)=%([\w.\-]+)")
_BRANCHES = re.compile(
    r"(?:branch_computations=\{([^}]*)\}"
    r"|true_computation=(%[\w.\-]+), false_computation=(%[\w.\-]+))"
)
_ESTIMATE = re.compile(r'"?bytes_accessed"?\s*:\s*"?(\d+)')
_ALIAS = "output_to_operand_aliasing={{}: (0, {})}"  # the operand by another name
_ON_CHIP = re.compile(r"S\([1-9]\)")


class Array(NamedTuple):
    """One array of a result.

    Attributes:
      elements: how many.
      size: bytes.
      on_chip: whether it lies in the memory on the chip, not in the large one.
    """

    elements: int
    size: int
    on_chip: bool


class Instruction(NamedTuple):
    """One line.

    Attributes:
      name: its own.
      kind: such as "fusion".
      made: arrays of its result.
      operands: names.
      calls: computation of a fusion or a call, or body of a loop.
      branches: computations of a conditional.
      number: of a parameter.
      estimate: bytes that a kernel says it moves, None if it does not.
    """

    name: str
    kind: str
    made: tuple[Array, ...]
    operands: tuple[str, ...]
    calls: str
    branches: tuple[str, ...]
    number: int
    estimate: int | None


Computation = dict[str, Instruction]


class Program(NamedTuple):
    """The computation that is run, and all by name."""

    main: Computation
    all_: dict[str, Computation]


def read(text: str) -> Program:
    """Reads an optimised program with its layouts.

    Raises:
      ValueError: it has no entry.
    """
    main, found, now = None, {}, {}
    for line in text.splitlines():
        if opened := _COMPUTATION.match(line):
            now = found[opened[2]] = {}
            main = now if opened[1] else main
        elif matched := _INSTRUCTION.match(line):
            one = _instruction(*matched.groups())
            now[one.name] = one
    if main is None:
        raise ValueError("text: there is no entry")
    return Program(main, found)


def _instruction(name: str, made: str, kind: str, rest: str) -> Instruction:
    inside = rest.split(")", 1)[0]
    kind = "bitcast" if kind == "fusion" and _ALIAS in rest else kind
    calls, estimate = _CALLS.search(rest), _ESTIMATE.search(rest)
    branches = _BRANCHES.search(rest)
    return Instruction(
        name=name,
        kind=kind,
        made=tuple(_arrays(made)),
        operands=tuple(_REFERENCE.findall(inside)),
        calls=calls[1] if calls else "",
        branches=tuple(_REFERENCE.findall(branches[0])) if branches else (),
        number=int(inside) if kind == "parameter" else -1,
        estimate=int(estimate[1]) if estimate and kind == "custom-call" else None,
    )


def _arrays(made: str) -> Iterator[Array]:
    for kind, bits, sides, layout in _ARRAY.findall(made):
        elements = math.prod(int(side) for side in sides.split(",") if side)
        each = 8 if kind == "pred" else int(bits)
        yield Array(elements, elements * each // 8, bool(_ON_CHIP.search(layout)))


def made_again(program: Program, sizes: Collection[int]) -> list[str]:
    """What puts an array of one of so many elements into the large memory.

    That is what a program does to weights that it moves about: to turn them around,
    or to cut a layer out. Fetching them on to the chip is no fault.

    Args:
      program: with loops, branches and calls, whose insides count.
      sizes: numbers of elements.

    Returns:
      "name: kind", one for each.
    """
    inside = {
        name: program.all_[name]
        for where in program.all_.values()
        for one in where.values()
        if one.kind in LOOPS
        for name in (one.calls, *one.branches)
        if name
    }
    found = []
    for where in (program.main, *inside.values()):
        for one in where.values():
            fetched = one.kind in FETCHES and any(a.on_chip for a in one.made)
            if one.kind in (*CARRIED, *LOOPS) or one.kind.endswith("-done") or fetched:
                continue
            if any(a.elements in sizes and not a.on_chip for a in one.made):
                found.append(f"{one.name}: {one.kind}")
    return found
