"""Runs our decoder on the golden cases, in every way that it is used.

Needs no torch. Used by `test_parity.py` and by `make_goldens.py --check`.
"""

import functools
import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np

from specjax.checkpoints import fuse, huggingface, layout
from specjax.core import tree as tree_lib
from specjax.models import families
from specjax.models import model as model_lib

GOLDENS = pathlib.Path(__file__).with_name("goldens")
CAPACITY = 512
CHUNK = 64
TOLERANCE = 2e-4


def cases(folder=GOLDENS):
    """Names of the small checkpoints."""
    return sorted(path.parent.name for path in folder.glob("*/golden.npz"))


def load_case(name, *, scanned=False, stored=False, folder=GOLDENS):
    """(model, params, golden) of a small checkpoint, maybe as it is stored."""
    opened = huggingface.open_directory(folder / name)
    config = families.from_hf(opened.config)
    naming = layout.hf_naming(config)
    found = layout.problems(config, naming, opened.shapes)
    if found:
        raise ValueError(f"{name}: {found}")
    params = fuse.read_params(
        config,
        naming,
        families.hf_storage(config),
        opened.read,
        dtype=np.dtype("float32"),
        scanned=scanned,
        stored=opened.stored if stored else None,
    )
    with np.load(folder / name / "golden.npz") as golden:
        arrays = dict(golden)
    return model_lib.Model(config=config), params, arrays


def load_json(name, folder=GOLDENS):
    """A golden file of text."""
    return json.loads((folder / name).read_text(encoding="utf-8"))


def chain(tokens):
    """A tree that is one trunk."""
    return branches(tokens, np.arange(-1, len(tokens) - 1), len(tokens))


def branches(tokens, parents, num_trunk):
    """A tree of given parents, its first slots the trunk."""
    depths = []
    for parent in parents:
        depths.append(0 if parent < 0 else depths[parent] + 1)
    slots = len(tokens)

    def row(values):
        return jnp.asarray(np.asarray(values, np.int32)[None])

    return tree_lib.TokenTree(
        token=row(tokens),
        parent=row(parents),
        depth=row(depths),
        tag=row([tree_lib.NO_TAG] * slots),
        confidence=jnp.ones((1, slots), jnp.float32),
        num_trunk=row(num_trunk)[0, None],
        num_nodes=row(slots)[0, None],
    )


@functools.partial(jax.jit, static_argnames=("model", "commit"))
def score(model, params, tree, cache, start, commit=True):
    """Logits f32[N, V] of every node, and the cache with the trunk committed."""
    target = model.target
    out = target.forward(params, tree, cache, start, ())
    if commit:
        cache = target.commit(cache, out.rows, None, start, tree.num_trunk)
    return target.head(params, out.hidden[0]), cache


def run(model, params, tokens, widths):
    """Logits f32[sum of widths, V] of a text fed in pieces of these widths."""
    cache, at, logits = model.target.init(1, CAPACITY), 0, []
    for width in widths:
        piece = chain(tokens[at : at + width])
        start = jnp.asarray([at], jnp.int32)
        scored, cache = score(model, params, piece, cache, start)
        logits.append(np.asarray(scored))
        at += width
    return np.concatenate(logits), cache


def whole(model, params, golden):
    """Max abs difference, the text as one trunk."""
    tokens = golden["tokens"]
    logits, _ = run(model, params, tokens, [len(tokens)])
    return difference(logits[golden["positions"]], golden["logits"])


def chunked_then_stepped(model, params, golden):
    """The text in chunks through the cache, its end token by token."""
    tokens, steps = golden["tokens"], len(golden["cached"])
    chunks = (len(tokens) - steps) // CHUNK
    rest = len(tokens) - chunks * CHUNK
    logits, _ = run(model, params, tokens, [CHUNK] * chunks + [1] * rest)
    first = golden["positions"] < chunks * CHUNK
    at = golden["positions"][first]
    return max(
        difference(logits[at], golden["logits"][first]),
        difference(logits[-steps:], golden["cached"]),
    )


def stepped(model, params, golden, count=40):
    """The head of the text token by token from an empty cache."""
    logits, _ = run(model, params, golden["tokens"], [1] * count)
    first = golden["positions"] < count
    return difference(logits[golden["positions"][first]], golden["logits"][first])


def branched(model, params, golden):
    """A tree with branches on a cached prefix."""
    prefix = int(golden["tree_prefix"])
    chunks = [CHUNK] * (prefix // CHUNK)
    widths = chunks + [1] * (prefix - sum(chunks))
    _, cache = run(model, params, golden["tokens"], widths)
    tree = branches(
        golden["tree_token"], golden["tree_parent"], int(golden["tree_trunk"])
    )
    start = jnp.asarray([prefix], jnp.int32)
    logits, _ = score(model, params, tree, cache, start, commit=False)
    return difference(np.asarray(logits), golden["tree_logits"])


def difference(ours, golden):
    """Largest absolute difference."""
    return float(np.max(np.abs(np.asarray(ours, np.float64) - golden)))


WAYS = {
    "whole": whole,
    "chunked_then_stepped": chunked_then_stepped,
    "stepped": stepped,
    "branched": branched,
}


def smollm2_logits(lm, golden, index):
    """Max abs difference on one real text: top logits and a subset of the rest."""
    tokens = golden[f"tokens_{index}"]
    logits, _ = run(lm.model, lm.params, tokens, [len(tokens)])
    at = golden[f"positions_{index}"][:, None]
    top = difference(logits[at, golden[f"top_ids_{index}"]], golden[f"top_{index}"])
    subset = golden["subset_ids"][None]
    return max(top, difference(logits[at, subset], golden[f"subset_{index}"]))
