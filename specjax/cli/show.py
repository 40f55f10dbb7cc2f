"""Results as tables for people."""

import rich.console
import rich.table

from specjax.decoding import result as result_lib


def stats(result: result_lib.Result) -> None:
    """Prints the numbers of one generation to standard error."""
    table = rich.table.Table(show_header=False, title="statistics", title_style="bold")
    table.add_column(style="cyan")
    table.add_column(overflow="fold")
    for name, value in _lines(result):
        table.add_row(name, value)
    rich.console.Console(stderr=True).print(table)


def _lines(result: result_lib.Result) -> list[tuple[str, str]]:
    later = max(result.new_tokens - 1, 0)
    lines = [
        ("model", f"{result.model} on {result.device}"),
        ("drafter", result.drafter),
        ("finish reason", result.finish_reason),
        ("prompt tokens", f"{result.prompt_tokens}"),
        ("new tokens", f"{result.new_tokens}"),
        ("target calls", f"{result.target_calls}"),
        ("tokens per target call", f"{result.tokens_per_target_call:.3f}"),
        ("drafted, accepted", f"{result.drafted}, {result.accepted}"),
    ]
    for source, drafted in result.drafted_per_source.items():
        accepted = result.accepted_per_source[source]
        lines.append((f"  {source}", f"{drafted}, {accepted}"))
    depths = " ".join(str(count) for count in result.accepted_per_depth)
    widths = ", ".join(f"{w}: {n}" for w, n in result.rounds_per_width.items())
    lines += [
        ("accepted per depth", depths or "-"),
        ("rounds per width", widths),
        ("prefill", f"{result.prefill_seconds:.3f} s"),
        ("decoding", f"{result.decode_seconds:.3f} s for {later} tokens"),
        ("tokens per second", f"{result.tokens_per_second:.1f}"),
        ("preparing", f"{result.compile_seconds:.1f} s, {result.programs} programs"),
        ("seed", f"{result.seed}"),
    ]
    if result.choice:
        lines.append(("choice", result.choice))
    return lines
