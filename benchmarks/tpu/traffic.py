"""Bytes that a compiled program moves from and to a chip's large memory.

The compiler's own count takes a loop's body once, and what is fetched ahead on to the
chip three times: as it is read, as it is kept there, and as it is used. Here loops
count as often as they run, that is one read, and what never leaves the chip is nothing.
"""

from benchmarks.tpu import program as program_lib

_PARTS = ("slice", "dynamic-slice", "gather")  # they read as much as they make
_UPDATES = ("dynamic-update-slice",)  # they write as much as they are given


def moved(program: program_lib.Program, turns: int) -> int:
    """Bytes read from and written to memory.

    A fusion or a kernel reads each operand once, except those of which a fusion takes
    slices, and kernels that say how much they move. Collectives count what they read
    and write on this chip.

    Args:
      program: whose loops are not nested.
      turns: that every loop takes.

    Raises:
      ValueError: loops are nested, or there is a branch or a call.
    """
    total = 0
    for one in program.main.values():
        if one.kind == "while":
            body = program.all_[one.calls]
            total += turns * sum(_of(part, body, program) for part in body.values())
        else:
            total += _of(one, program.main, program)
    return total


def _of(
    one: program_lib.Instruction,
    where: program_lib.Computation,
    program: program_lib.Program,
) -> int:
    if one.kind in program_lib.LOOPS:
        raise ValueError(f"program: how often {one.name} runs, a {one.kind}, is open")
    if one.kind in program_lib.CARRIED or one.kind.endswith("-done"):
        return 0
    if one.estimate is not None:
        return one.estimate
    if one.kind in program_lib.FETCHES:
        ends = one.made[:2]  # behind them a flag
        return min(end.size for end in ends) * sum(not end.on_chip for end in ends)
    read = 0
    for at, name in enumerate(one.operands):
        (given, *_) = where[name].made
        if not given.on_chip:
            read += min(given.size, _taken(one, at, program, given.size))
    written = sum(array.size for array in one.made if not array.on_chip)
    return read + min(written, _put(one, program, written))


def _taken(one, at: int, program, whole: int) -> int:
    """Bytes that an instruction reads of an operand: all, or the slices it takes."""
    if one.kind in _PARTS and at == 0:
        return sum(array.size for array in one.made)
    if one.kind in _UPDATES and at == 0:
        return 0
    if one.kind != "fusion":
        return whole
    inner = program.all_[one.calls]
    (name,) = (
        part.name
        for part in inner.values()
        if part.kind == "parameter" and part.number == at
    )
    found, names = 0, [name]
    for part in inner.values():
        for place, operand in enumerate(part.operands):
            if operand not in names:
                continue
            if part.kind == "bitcast":
                names.append(part.name)
            else:
                found += _taken(part, place, program, whole)
    return found


def _put(one, program, whole: int) -> int:
    """Bytes that an instruction writes: all, or what it puts into an array in place."""
    if one.kind != "fusion":
        return whole
    inner = program.all_[one.calls]
    updates = [part for part in inner.values() if part.kind in _UPDATES]
    if not updates:
        return whole
    put = sum(inner[part.operands[1]].made[0].size for part in updates)
    return put + whole - sum(part.made[0].size for part in updates)
