"""Makes the golden files from transformers and torch, the independent source.

    python tests/parity/make_goldens.py            # writes tests/parity/goldens
    python tests/parity/make_goldens.py --check    # makes them anew and compares

Needs the extra `parity`. Each case is a small random checkpoint in the form that
transformers saves (config.json, bfloat16 safetensors) with logits in float32 and
eager attention: without cache at chosen positions of one text, with cache at its
end, and of every node of a small tree, each path run as a text of its own. Windows
and the context that RoPE scaling starts from are shorter than the text.

Weights come from NumPy's frozen `RandomState`, so the files can be made again bit for
bit; logits of another machine or torch are compared to 2e-5.
"""

import argparse
import json
import os
import pathlib
import shutil
import sys
import tempfile
import warnings

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import numpy as np
import ours
import tokenizers
import torch
import transformers
from tokenizers import pre_tokenizers

from specjax import checkpoints
from specjax.checkpoints import names

VOCAB = 128
TEXT = 320
CACHED = 16
POSITIONS = np.concatenate(
    [np.arange(0, 16), np.arange(60, 70), np.arange(250, 262), np.arange(304, 320)]
)
PREFIX = 290
TRUNK = 3
# Slots 0-2 the trunk, then a main path 3-6, a sibling 7-8 and a twig 9 on node 4.
PARENT = np.array([-1, 0, 1, 2, 3, 4, 5, 2, 7, 4])
REMADE = 2e-5

_SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def _rope(kind="default", theta=10000.0, **options):
    return {"rope_type": kind, "rope_theta": theta, **options}


CASES = {
    "llama2": ("llama", {"num_key_value_heads": 4, "rms_norm_eps": 1e-5}),
    "llama3": (
        "llama",
        {
            "rope_parameters": _rope(
                "llama3",
                500000.0,
                factor=8.0,
                low_freq_factor=1.0,
                high_freq_factor=4.0,
                original_max_position_embeddings=64,
            )
        },
    ),
    "llama_linear": ("llama", {"rope_parameters": _rope("linear", factor=4.0)}),
    "llama_biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "smollm2": (
        "llama",
        {
            "hidden_size": 48,
            "num_attention_heads": 3,
            "num_key_value_heads": 1,
            "tie_word_embeddings": True,
            "rope_parameters": _rope(theta=100000.0),
        },
    ),
    "qwen2": ("qwen2", {"rope_parameters": _rope(theta=1e6)}),
    "qwen2_window": (
        "qwen2",
        {
            "use_sliding_window": True,
            "sliding_window": 24,
            "max_window_layers": 1,
            "tie_word_embeddings": True,
        },
    ),
    "qwen3": ("qwen3", {"head_dim": 16, "rope_parameters": _rope(theta=1e6)}),
    "qwen3_yarn": (
        "qwen3",
        {
            "head_dim": 16,
            "rope_parameters": _rope(
                "yarn", 1e4, factor=8.0, original_max_position_embeddings=64
            ),
        },
    ),
    "mistral": ("mistral", {"sliding_window": 24, "head_dim": 16}),
    "gemma2": (
        "gemma2",
        {
            "head_dim": 16,
            "num_hidden_layers": 4,
            "sliding_window": 24,
            "query_pre_attn_scalar": 24,
            "attn_logit_softcapping": 5.0,
            "final_logit_softcapping": 8.0,
        },
    ),
    "gemma3": (
        "gemma3_text",
        {
            "head_dim": 16,
            "sliding_window": 24,
            "query_pre_attn_scalar": 24,
            "layer_types": ["sliding_attention"] * 2 + ["full_attention"],
            "rope_parameters": {
                "sliding_attention": _rope(),
                "full_attention": _rope("linear", 1e6, factor=4.0),
            },
        },
    ),
}

TEXTS = [
    "The quick brown fox jumps over the lazy dog.",
    "Once upon a time, in a land far away, there lived a king who'd never laughed.",
    "def fib(n):\n    return n if n < 2 else fib(n - 1) + fib(n - 2)\n",
    'for (int i = 0; i < 10; ++i) {\n\tprintf("%d\\n", i);\n}',
    "3.14159 and 2,718,281 and 1e-10; 0x7fff, 1234567890",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich.",
    "Le cœur déçu mais l'âme plutôt naïve, Louÿs rêva de crapaüter.",
    "人工智能正在改变世界。今天天气很好，我们去公园吧！",  # noqa: RUF001
    "すもももももももものうち。東京タワーは333メートルです。",
    "Привет, как дела? Сегодня 24 февраля.",
    "مرحبا بالعالم، كيف حالك اليوم؟",
    "👩‍👩‍👧‍👦 family, 🇨🇭 flag, thumbs 👍🏽 up 🎉🎉🎉",
    "<|im_start|>user\nHello there<|im_end|>\n<|im_start|>assistant\n",
    "a <|endoftext|> in the middle, and <|not_special|>",
    "   leading spaces,   inner   runs,\t\ttabs and trailing   ",
    "\n\n\nnew lines\r\n\r\nand returns\r",
    "count:    42 items and  7\t9",
    "It's we're I'll they'd HE'S DON'T o'clock",
    "e\u0301 vs \u00e9, ﬁ ligature, ½ ² ٣ Ⅷ, zero\u200bwidth, nbsp\u00a0here",
    "",
]

CHATS = [
    [{"role": "user", "content": "What is the capital of France?"}],
    [
        {"role": "system", "content": "You answer in verse."},
        {"role": "user", "content": "Why is the sky blue?"},
    ],
    [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello! How can I help?"},
        {"role": "user", "content": "Count to 3.\n<b>'quotes' & \"more\"</b>"},
    ],
]

LOGIT_TEXTS = [
    (
        "<|im_start|>user\nWrite a Python function that adds two numbers."
        "<|im_end|>\n<|im_start|>assistant\nHere is the function:\n\n```python\n"
        "def add(a, b):\n    return a + b\n```\n",
        40,
    ),
    (
        "The Rhine rises in the Swiss Alps, flows through Lake Constance and, after "
        "1,230 kilometres, reaches the North Sea near Rotterdam. " * 9,
        24,
    ),
]
TOP, SUBSET = 16, 512


def make_case(name, folder):
    """Writes one small checkpoint with its goldens."""
    model_type, options = CASES[name]
    random = np.random.RandomState(sorted(CASES).index(name) + 1)
    config = transformers.AutoConfig.for_model(model_type, **{**_SIZES, **options})
    config._attn_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for key, value in model.named_parameters():
            drawn = _weight(random, key, value.shape, model_type)
            value.copy_(torch.from_numpy(drawn).to(torch.bfloat16).to(torch.float32))
    model.tie_weights()
    model.eval()
    tokens = random.randint(3, VOCAB, TEXT)
    tree = random.randint(3, VOCAB, len(PARENT))
    logits = _logits(model, tokens)
    golden = {
        "tokens": tokens.astype(np.int32),
        "positions": POSITIONS.astype(np.int32),
        "logits": logits[POSITIONS],
        "cached": _cached_logits(model, tokens),
        "tree_prefix": np.int32(PREFIX),
        "tree_trunk": np.int32(TRUNK),
        "tree_token": tree.astype(np.int32),
        "tree_parent": PARENT.astype(np.int32),
        "tree_logits": _tree_logits(model, tokens[:PREFIX], tree),
    }
    apart = np.max(np.abs(golden["cached"] - logits[-CACHED:]))
    if apart > 1e-4:
        raise RuntimeError(f"{name}: transformers differs from itself by {apart}")
    place = folder / name
    place.mkdir(parents=True)
    model.to(torch.bfloat16).save_pretrained(place)
    (place / "generation_config.json").unlink(missing_ok=True)
    np.savez_compressed(place / "golden.npz", **golden)
    print(f"{name}: logits of order {np.std(logits):.1f}, cached {apart:.1e}")


def _weight(random, key, shape, model_type):
    """Weights under which every option shows: sharp attention, uneven norms."""
    drawn = random.standard_normal(tuple(shape)).astype(np.float32)
    if "norm" in key:
        return 0.3 * drawn + (0.0 if model_type.startswith("gemma") else 1.0)
    if key.endswith("bias"):
        return 0.3 * drawn
    if "embed" in key or "lm_head" in key:
        return drawn * 3 / np.sqrt(shape[-1])
    gain = 1.5 if ("q_proj" in key or "k_proj" in key) else 1.0
    return drawn * gain / np.sqrt(shape[-1])


@torch.no_grad()
def _logits(model, tokens):
    ids = torch.as_tensor(np.asarray(tokens)[None], dtype=torch.long)
    return model(ids, use_cache=False).logits[0].float().numpy()


@torch.no_grad()
def _cached_logits(model, tokens):
    """The end of the text token by token, through transformers' cache."""
    ids = torch.as_tensor(np.asarray(tokens)[None], dtype=torch.long)
    cache = model(ids[:, :-CACHED], use_cache=True).past_key_values
    rows = []
    for i in range(TEXT - CACHED, TEXT):
        out = model(ids[:, i : i + 1], past_key_values=cache, use_cache=True)
        rows.append(out.logits[0, 0].float().numpy())
    return np.stack(rows)


def _tree_logits(model, prefix, tree):
    """Logits of each node, its path run as a text."""
    rows = []
    for node in range(len(tree)):
        path = [node]
        while PARENT[path[0]] >= 0:
            path.insert(0, PARENT[path[0]])
        rows.append(_logits(model, [*prefix, *tree[path]])[-1])
    return np.stack(rows)


def make_smollm2(folder):
    """Writes the goldens of the real model: ids, chats and logits."""
    path = names.fetch("smollm2-135m")
    source = {"pretrained_model_name_or_path": path.parent, "gguf_file": path.name}
    tokenizer = transformers.AutoTokenizer.from_pretrained(**source)
    as_read = [tokenizer(text).input_ids for text in TEXTS]
    # transformers does not read `tokenizer.ggml.pre` and splits as GPT-2 does; the
    # published tokenizer.json of SmolLM2 takes digits one by one before that.
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    ids = [tokenizer(text).input_ids for text in TEXTS]
    changed = [i for i in range(len(TEXTS)) if ids[i] != as_read[i]]
    golden = {
        "source": f"transformers {transformers.__version__}, "
        f"tokenizers {tokenizers.__version__}",
        "split_digits_changed": changed,
        "texts": [
            {"text": text, "ids": row, "decoded": tokenizer.decode(row)}
            for text, row in zip(TEXTS, ids, strict=True)
        ],
        "chats": [
            {
                "messages": chat,
                "text": tokenizer.apply_chat_template(chat, tokenize=False),
                "prompt": tokenizer.apply_chat_template(
                    chat, tokenize=False, add_generation_prompt=True
                ),
            }
            for chat in CHATS
        ],
    }
    text = json.dumps(golden, ensure_ascii=False, indent=1)
    (folder / "smollm2_text.json").write_text(text + "\n", encoding="utf-8")
    model = transformers.AutoModelForCausalLM.from_pretrained(
        **source, dtype=torch.float32, attn_implementation="eager"
    )
    random = np.random.RandomState(0)
    subset = np.sort(random.permutation(model.config.vocab_size)[:SUBSET])
    arrays = {"subset_ids": subset.astype(np.int32)}
    for i, (text, count) in enumerate(LOGIT_TEXTS):
        tokens = np.asarray(tokenizer(text).input_ids)
        positions = np.arange(len(tokens) - count, len(tokens))
        logits = _logits(model, tokens)[positions]
        top = np.argsort(-logits, axis=-1, kind="stable")[:, :TOP]
        arrays[f"tokens_{i}"] = tokens.astype(np.int32)
        arrays[f"positions_{i}"] = positions.astype(np.int32)
        arrays[f"top_ids_{i}"] = top.astype(np.int32)
        arrays[f"top_{i}"] = np.take_along_axis(logits, top, axis=-1)
        arrays[f"subset_{i}"] = logits[:, subset]
        print(f"smollm2-135m text {i}: {len(tokens)} tokens")
    np.savez_compressed(folder / "smollm2_logits.npz", **arrays)


def compare(kept, made):
    """Differences between two folders of goldens, as lines of text."""
    lines = []
    both = [
        {path.relative_to(root) for path in root.rglob("*") if path.is_file()}
        for root in (kept, made)
    ]
    for path in sorted(both[0] ^ both[1]):
        lines.append(f"{path}: only {'kept' if path in both[0] else 'made anew'}")
    for path in sorted(both[0] & both[1]):
        if path.suffix == ".npz":
            lines += _compare_arrays(path, kept / path, made / path)
        elif path.suffix == ".safetensors":
            if (kept / path).read_bytes() != (made / path).read_bytes():
                lines.append(f"{path}: weights differ")
        elif _settled(kept / path) != _settled(made / path):
            lines.append(f"{path}: text differs")
    return lines


def _settled(path):
    """A JSON file without what depends on the version of a library."""
    parsed = json.loads(path.read_text(encoding="utf-8"))
    return {
        k: v for k, v in parsed.items() if k not in ("source", "transformers_version")
    }


def _compare_arrays(path, kept, made):
    lines = []
    with np.load(kept) as old, np.load(made) as new:
        for key in sorted(set(old) | set(new)):
            if key not in old or key not in new or old[key].shape != new[key].shape:
                lines.append(f"{path}: {key} differs in shape")
            elif key.startswith("top_ids"):
                continue  # near ties may swap; the logits are compared
            elif (apart := ours.difference(new[key], old[key])) > REMADE:
                lines.append(f"{path}: {key} differs by {apart:.1e}")
    return lines


def check_ours(folder):
    """Compares our decoder with a folder of goldens; lines for what is too far."""
    lines = []
    for name in ours.cases(folder):
        model, params, golden = ours.load_case(name, folder=folder)
        apart = {way: f(model, params, golden) for way, f in ours.WAYS.items()}
        print(name, {way: f"{value:.1e}" for way, value in apart.items()})
        lines += [
            f"{name}: {way} differs from transformers by {value:.1e}"
            for way, value in apart.items()
            if value > ours.TOLERANCE
        ]
    lm = checkpoints.load("smollm2-135m", dtype="float32")
    with np.load(folder / "smollm2_logits.npz") as golden:
        for i in range(len(LOGIT_TEXTS)):
            apart = ours.smollm2_logits(lm, golden, i)
            print(f"smollm2-135m text {i}: {apart:.1e}")
            if apart > ours.TOLERANCE:
                lines.append(f"smollm2-135m: text {i} differs by {apart:.1e}")
    for entry in ours.load_json("smollm2_text.json", folder)["texts"]:
        if lm.tokenizer.encode(entry["text"]) != entry["ids"]:
            lines.append(f"smollm2-135m: ids of {entry['text']!r} differ")
    return lines


def make(folder):
    """Writes all goldens into an empty folder."""
    for name in CASES:
        make_case(name, folder)
    make_smollm2(folder)


def main():
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    check = parser.parse_args().check
    torch.set_num_threads(2)
    warnings.simplefilter("ignore", FutureWarning)  # of arguments that 4.57 needs
    with tempfile.TemporaryDirectory() as place:
        folder = pathlib.Path(place) / "goldens"
        folder.mkdir()
        make(folder)
        if not check:
            shutil.rmtree(ours.GOLDENS, ignore_errors=True)
            shutil.copytree(folder, ours.GOLDENS)
            return 0
        lines = compare(ours.GOLDENS, folder) + check_ours(folder)
    print("\n".join(lines) or "parity: all as kept, all within tolerance")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
