"""Make the prompt files of this folder from the data sets that they copy.

    python benchmarks/data/prepare.py FOLDER

FOLDER holds the sources under the names and with the fields that ATTRIBUTION.md
gives. Each output row has Spec-Bench's shape: `question_id`, `category`, `turns`.
Nothing here runs in tests or benchmarks: the outputs are kept in the repository.
"""

import json
import pathlib
import sys
from collections.abc import Iterable
from typing import Any

Row = dict[str, Any]


def evenly_spaced(rows: list[Row], count: int) -> list[Row]:
    """Rows floor(i * len(rows) / count) for i below count, as `bench --limit`."""
    return [rows[i * len(rows) // count] for i in range(count)]


def mt_bench(rows: list[Row]) -> list[Row]:
    """Odd question ids; `turns` and `reference` as they are."""
    return [row for row in rows if row["question_id"] % 2 == 1]


def gsm8k(rows: list[Row]) -> list[Row]:
    """200 evenly spaced questions; the id is the row of the source, from 0."""
    numbered = [
        prompt_row(index, "math_reasoning", row["question"])
        for index, row in enumerate(rows)
    ]
    return evenly_spaced(numbered, 200)


def human_eval(rows: list[Row]) -> list[Row]:
    """HumanEval/0 to HumanEval/81, asked for in words around the source's prompt."""
    numbers = [int(row["task_id"].removeprefix("HumanEval/")) for row in rows]
    return [
        prompt_row(
            number,
            "humaneval",
            "Complete this Python function. Answer with the whole function.\n\n"
            f"```python\n{row['prompt'].strip()}\n```",
        )
        for number, row in zip(numbers, rows, strict=True)
        if number < 82
    ]


def mbpp(rows: list[Row]) -> list[Row]:
    """200 evenly spaced tasks of the test part (11 to 510), tests in the prompt."""
    tasks = [
        prompt_row(
            row["task_id"],
            "mbpp",
            f"{row['text'].strip()} Your code should pass these tests:\n\n"
            + "\n".join(row["test_list"]),
        )
        for row in rows
        if 11 <= row["task_id"] <= 510
    ]
    return evenly_spaced(tasks, 200)


def prompt_row(question_id: int, category: str, text: str) -> Row:
    """A row of one turn."""
    return {"question_id": question_id, "category": category, "turns": [text]}


def read(path: pathlib.Path) -> list[Row]:
    """Rows of a file of JSON lines."""
    lines = path.read_text(encoding="utf-8").split("\n")
    return [json.loads(line) for line in lines if line]


def write(path: pathlib.Path, rows: Iterable[Row]) -> None:
    """Writes a file of JSON lines."""
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
    path.write_text("".join(lines), encoding="utf-8", newline="\n")


def main() -> None:
    """Reads the sources of a folder and writes the files beside this one."""
    if len(sys.argv) != 2:
        raise SystemExit("usage: python benchmarks/data/prepare.py FOLDER")
    source, here = pathlib.Path(sys.argv[1]), pathlib.Path(__file__).parent
    write(here / "mt_bench.jsonl", mt_bench(read(source / "mt_bench_dev.jsonl")))
    write(here / "gsm8k.jsonl", gsm8k(read(source / "gsm8k_test_dev.jsonl")))
    write(here / "humaneval.jsonl", human_eval(read(source / "humaneval_dev.jsonl")))
    write(here / "mbpp.jsonl", mbpp(read(source / "mbpp.jsonl")))


if __name__ == "__main__":
    main()
