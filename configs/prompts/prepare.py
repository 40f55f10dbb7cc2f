"""Make the prompt file of this folder from the data sets that it copies.

    python configs/prompts/prepare.py FOLDER

FOLDER holds the sources under the names and with the fields that ATTRIBUTION.md gives.
Each output row has ``prompt``, ``source`` and ``split``. Nothing here runs in tests or
training: the output is kept in the repository.
"""

import gzip
import json
import pathlib
import re
import sys
from typing import Any

from specjax.training.data import prompts

Row = dict[str, Any]
HERE = pathlib.Path(__file__).parent
LONGEST = 1800  # characters of a prompt
PARAGRAPH = range(350, 1300)  # characters of a passage


def evenly_spaced(rows: list[Any], count: int) -> list[Any]:
    """Rows floor(i * len(rows) / count) for i below count."""
    count = min(count, len(rows))
    return [rows[i * len(rows) // count] for i in range(count)]


def instructions(folder: pathlib.Path) -> list[Row]:
    """All prompts with their own split, those that are long left out."""
    return [
        {"prompt": row["prompt"], "source": row["source"], "split": row["split"]}
        for row in read(folder / "instructions.jsonl")
        if len(row["prompt"]) <= LONGEST
    ]


def gsm8k(folder: pathlib.Path) -> list[Row]:
    """2500 evenly spaced questions of the training part."""
    rows = evenly_spaced(read(folder / "gsm8k_train.jsonl.gz"), 2500)
    return [{"prompt": row["question"], "source": "gsm8k-train"} for row in rows]


def mbpp(folder: pathlib.Path) -> list[Row]:
    """Tasks of the training part, with one test."""
    return [
        {
            "prompt": f"{row['text'].strip()} It should pass this test:\n\n"
            f"{row['test_list'][0]}",
            "source": "mbpp-train",
        }
        for row in read(folder / "mbpp.jsonl")
        if row["split"] == "train"
    ]


def pubmedqa(folder: pathlib.Path) -> list[Row]:
    """Questions of the training part behind their passages, as retrieval gives them."""
    made = []
    for row in read(folder / "rag_pubmedqa.jsonl.gz"):
        if row["split"] != "train":
            continue
        passages = "\n\n".join(row["contexts"])
        text = (
            f"Answer the question by the documents below.\n\n{passages}\n\n"
            f"Question: {row['question']}"
        )
        if len(text) <= LONGEST:
            made.append({"prompt": text, "source": "pubmedqa-train"})
    return made


def medquad(folder: pathlib.Path) -> list[Row]:
    """400 evenly spaced health questions."""
    rows = evenly_spaced(read(folder / "health" / "medquad_1200.jsonl.gz"), 400)
    return [{"prompt": row["question"], "source": "medquad"} for row in rows]


def dialogues(folder: pathlib.Path) -> list[Row]:
    """200 conversations of doctor and patient, to be summarised."""
    rows = [
        row
        for row in read(folder / "health" / "mts_dialog_train.jsonl.gz")
        if len(row["dialogue"]) in PARAGRAPH
    ]
    ask = "Summarise this conversation between a doctor and a patient.\n\n"
    return [
        {"prompt": ask + row["dialogue"], "source": "mts-dialog-train"}
        for row in evenly_spaced(rows, 200)
    ]


def passages(folder: pathlib.Path) -> list[Row]:
    """Paragraphs of books and addresses: summarise, go on, translate, reword."""
    made = []
    asks = (
        ("Summarise the text below in a few sentences.\n\n{}", 400),
        ("Continue the story below.\n\n{}", 150),
        ("Translate the text below into French.\n\n{}", 150),
        ("Say the same in simple modern words.\n\n{}", 150),
        ("What is the following text about, and who speaks?\n\n{}", 100),
    )
    found = [p for path in books(folder) for p in paragraphs(path)]
    chosen = iter(evenly_spaced(found, sum(count for _, count in asks)))
    order = [ask for ask, count in asks for _ in range(count)]
    order = [order[i * 7919 % len(order)] for i in range(len(order))]  # mixed
    for ask, text in zip(order, chosen, strict=True):
        made.append({"prompt": ask.format(text), "source": "public-domain-text"})
    return made


def books(folder: pathlib.Path) -> list[str]:
    """Texts in the public domain."""
    names = sorted((folder / "text").glob("gutenberg_*.txt.gz"))
    texts = [gzip.decompress(path.read_bytes()).decode() for path in names]
    addresses = read(folder / "text" / "us_addresses.jsonl.gz")
    return texts + [row["text"] for row in addresses]


def paragraphs(text: str) -> list[str]:
    """Paragraphs of a usual length, each on one line."""
    parts = (" ".join(part.split()) for part in re.split(r"\n\s*\n", text))
    return [part for part in parts if len(part) in PARAGRAPH]


def read(path: pathlib.Path) -> list[Row]:
    """Rows of a file of JSON lines."""
    raw = path.read_bytes()
    raw = gzip.decompress(raw) if path.suffix == ".gz" else raw
    return [json.loads(line) for line in raw.decode().split("\n") if line]


def main() -> None:
    """Writes train.jsonl.gz."""
    folder = pathlib.Path(sys.argv[1])
    kinds = (instructions, gsm8k, mbpp, pubmedqa, medquad, dialogues, passages)
    rows = {row["prompt"]: row for kind in kinds for row in kind(folder)}
    asked = [
        prompts.Prompt(text, row["source"], row.get("split", prompts.split_of(text)))
        for text, row in rows.items()
    ]
    benchmarks = sorted((HERE.parents[1] / "benchmarks" / "data").glob("*.jsonl"))
    held_out = prompts.held_out([*benchmarks, folder / "spec_bench_dev.jsonl"])
    kept = prompts.clean(asked, held_out)
    rows = [
        {"prompt": prompt.text, "source": prompt.source, "split": prompt.split}
        for prompt in kept.prompts
    ]
    text = "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows)
    packed = gzip.compress(text.encode(), compresslevel=9, mtime=0)
    (HERE / "train.jsonl.gz").write_bytes(packed)
    print(f"{len(rows)} prompts, {len(packed)} bytes, dropped {kept.dropped}")


if __name__ == "__main__":
    main()
