"""Checkpoints: names and downloads, GGUF, safetensors, tokenizers, chat templates."""

from specjax.checkpoints.chat import ChatTemplate
from specjax.checkpoints.load import (
    DTYPES,
    WEIGHTS,
    Inspection,
    LanguageModel,
    inspect,
    load,
    settle,
    truncate,
)
from specjax.checkpoints.names import cache_folder, fetch
from specjax.checkpoints.tokenizer import TextStream, Tokenizer

__all__ = [
    "DTYPES",
    "WEIGHTS",
    "ChatTemplate",
    "Inspection",
    "LanguageModel",
    "TextStream",
    "Tokenizer",
    "cache_folder",
    "fetch",
    "inspect",
    "load",
    "settle",
    "truncate",
]
