"""Text to ids and back.

A thin face on the `tokenizers` library, made from a `tokenizer.json` or from the
metadata of a GGUF file.
"""

import hashlib
import json
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

_REPLACEMENT = "\ufffd"  # what half a character decodes to
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_GGUF_PRE = ("smollm", "llama-bpe", "qwen2", "gpt-2", "default")
_CONTROL, _USER_DEFINED, _UNUSED = 3, 4, 5
_MOST_HELD = 16  # A character has at most four bytes, so this is no character.
_PADDING = re.compile(r"\[PAD\d+\]")


class Tokenizer:
    """Encodes and decodes text; immutable.

    Attributes:
      vocab_size: one more than the highest id. Below the model's V where the
        embedding is padded.
    """

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        backend.no_padding()
        backend.no_truncation()
        self._backend = backend
        self._literal: tokenizers.Tokenizer | None = None
        self._vocab = backend.get_vocab(with_added_tokens=True)
        self.vocab_size = max(self._vocab.values(), default=-1) + 1

    def encode(
        self, text: str, *, add_special_tokens: bool = True, parse_special: bool = True
    ) -> list[int]:
        """Ids of a text.

        Args:
          text: any text.
          add_special_tokens: whether to put in what the model wants around a text,
            such as a BOS; leave out for text from a chat template.
          parse_special: whether ``<|im_end|>`` and its like in the text are special
            tokens; False takes them as plain characters.
        """
        if not isinstance(text, str):
            raise TypeError(f"encode: text must be str, got {type(text).__name__}")
        try:
            text.encode()  # the library says TypeError
        except UnicodeEncodeError as error:
            raise ValueError(
                f"encode: text holds half a surrogate pair ({error}); decode bytes "
                "as UTF-8 before"
            ) from error
        backend = self._backend if parse_special else self._without_special()
        return backend.encode(text, add_special_tokens=add_special_tokens).ids

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of ids; ids of padding rows of the embedding give nothing."""
        ids = [int(i) for i in ids]
        if ids and min(ids) < 0:
            raise ValueError(f"decode: ids must be 0 or more, got {min(ids)}")
        return self._backend.decode(ids, skip_special_tokens=skip_special_tokens)

    def stream(self, *, skip_special_tokens: bool = True) -> "TextStream":
        """A decoder for ids that come a few at a time."""
        return TextStream(self, skip_special_tokens)

    def token_id(self, token: str) -> int | None:
        """Id of a token by its spelling in the vocabulary, None if absent."""
        return self._vocab.get(token)

    def token(self, token_id: int) -> str | None:
        """Spelling of an id in the vocabulary, None if absent."""
        return self._backend.id_to_token(token_id)

    def fingerprint(self) -> str:
        """A sha256 over the vocabulary and merges.

        Two tokenizers with the same fingerprint give ids the same meaning, whatever
        file they come from and whatever they put around a text.
        """
        digest = hashlib.sha256()
        for token, index in sorted(self._vocab.items(), key=lambda item: item[1]):
            digest.update(f"{index}\0{token}\0".encode("utf-8", "surrogatepass"))
        model = json.loads(self._backend.to_str())["model"]
        for merge in model.get("merges") or ():
            pair = merge if isinstance(merge, str) else " ".join(merge)
            digest.update(f"{pair}\0".encode())
        return digest.hexdigest()

    def _without_special(self) -> tokenizers.Tokenizer:
        if self._literal is None:
            self._literal = tokenizers.Tokenizer.from_str(self._backend.to_str())
            self._literal.encode_special_tokens = True
        return self._literal


class TextStream:
    """Decodes ids as they come, never half a character.

    Text is held back while it ends in an unfinished character, for at most 16 ids:
    longer runs are no text. All pieces together are the text of all ids.
    """

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        # Ids whose text is out but decides how the next is spelt (a leading space),
        # then ids whose text is held back.
        self._context: list[int] = []
        self._held: list[int] = []

    def push(self, ids: Sequence[int]) -> str:
        """The text that these ids complete, maybe none."""
        return "".join(self._push_one(int(i)) for i in ids)

    def finish(self) -> str:
        """What is still held back; half a character becomes U+FFFD."""
        text = self._new_text()
        self._context, self._held = [], []
        return text

    def _push_one(self, token_id: int) -> str:
        self._held.append(token_id)
        text = self._new_text()
        unfinished = not text or text.endswith(_REPLACEMENT)
        if unfinished and len(self._held) < _MOST_HELD:
            return ""
        self._context, self._held = self._held, []
        return text

    def _new_text(self) -> str:
        before = self._decode(self._context)
        return self._decode(self._context + self._held)[len(before) :]

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=self._skip)


def from_json(path: str | pathlib.Path) -> Tokenizer:
    """Reads a `tokenizer.json`.

    Raises:
      ValueError: there is none, or it is not well-formed.
    """
    path = pathlib.Path(path)
    if not path.is_file():
        raise ValueError(
            f"{path}: expected a tokenizer.json, found no such file; save the model's "
            "fast tokenizer beside it"
        )
    try:
        return Tokenizer(tokenizers.Tokenizer.from_file(str(path)))
    except Exception as error:  # the library raises bare Exception
        raise ValueError(f"{path}: not a tokenizer.json ({error})") from error


def from_gguf(metadata: Mapping[str, Any]) -> Tokenizer:
    """Builds the byte-level BPE tokenizer that a GGUF file describes.

    Args:
      metadata: keys and values of the file.

    Raises:
      ValueError: the file has another kind of tokenizer, or a part is missing.
    """
    kind = metadata.get("tokenizer.ggml.model")
    if kind != "gpt2":
        raise ValueError(
            f"GGUF: tokenizer.ggml.model must be 'gpt2' (byte-level BPE), got "
            f"{kind!r}; a SentencePiece vocabulary in GGUF is not read: load the "
            "model from its directory with tokenizer.json instead"
        )
    pre = metadata.get("tokenizer.ggml.pre", "default")
    if pre not in _GGUF_PRE:
        raise ValueError(
            f"GGUF: tokenizer.ggml.pre must be one of {', '.join(_GGUF_PRE)}, got "
            f"{pre!r}; load the model from its directory with tokenizer.json instead"
        )
    tokens = _required(metadata, "tokenizer.ggml.tokens")
    kinds = metadata.get("tokenizer.ggml.token_type") or [1] * len(tokens)
    if len(kinds) != len(tokens):
        raise ValueError(
            f"GGUF: tokenizer.ggml.token_type must have {len(tokens)} entries, one a "
            f"token, got {len(kinds)}"
        )
    vocab = {
        token: i
        for i, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
        if not (kind == _UNUSED and _PADDING.fullmatch(token))
    }
    backend = _byte_bpe(vocab, _required(metadata, "tokenizer.ggml.merges"), pre)
    for token, kind in zip(tokens, kinds, strict=True):
        if kind == _CONTROL:
            added = tokenizers.AddedToken(token, special=True, normalized=False)
            backend.add_special_tokens([added])
        elif kind == _USER_DEFINED:
            added = tokenizers.AddedToken(token, special=False, normalized=False)
            backend.add_tokens([added])
    if metadata.get("tokenizer.ggml.add_bos_token", pre == "llama-bpe"):
        index = _required(metadata, "tokenizer.ggml.bos_token_id")
        bos = backend.id_to_token(index)
        if bos is None:
            raise ValueError(
                f"GGUF: tokenizer.ggml.bos_token_id {index} is not in the vocabulary"
            )
        backend.post_processor = processors.Sequence(
            [
                backend.post_processor,
                processors.TemplateProcessing(
                    single=[bos, "$A"], pair=None, special_tokens=[(bos, index)]
                ),
            ]
        )
    return Tokenizer(backend)


def _required(metadata: Mapping[str, Any], key: str) -> Any:
    if key not in metadata:
        raise ValueError(f"GGUF: metadata {key} is missing; convert the model again")
    return metadata[key]


def _byte_bpe(
    vocab: dict[str, int], merges: Sequence[str], pre: str
) -> tokenizers.Tokenizer:
    """A byte-level BPE with the splitting rule of a family."""
    try:
        # A merge is two tokens parted by the first space after its first character.
        pairs = []
        for merge in merges:
            at = merge.index(" ", 1)
            pairs.append((merge[:at], merge[at + 1 :]))
        backend = tokenizers.Tokenizer(
            models.BPE(vocab=vocab, merges=pairs, ignore_merges=pre == "llama-bpe")
        )
    except Exception as error:  # the library raises bare Exception
        raise ValueError(
            f"GGUF: tokenizer.ggml.merges do not fit the tokens ({error})"
        ) from error
    whole = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if pre in ("llama-bpe", "qwen2"):
        pattern = tokenizers.Regex(_LLAMA3 if pre == "llama-bpe" else _QWEN2)
        split = pre_tokenizers.Split(pattern, behavior="isolated")
        plain = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        backend.pre_tokenizer = pre_tokenizers.Sequence([split, plain])
    elif pre == "smollm":
        digits = pre_tokenizers.Digits(individual_digits=True)
        backend.pre_tokenizer = pre_tokenizers.Sequence([digits, whole])
    else:
        backend.pre_tokenizer = whole
    if pre == "qwen2":
        backend.normalizer = normalizers.NFC()
    backend.decoder = decoders.ByteLevel()
    backend.post_processor = processors.ByteLevel(trim_offsets=False)
    return backend
