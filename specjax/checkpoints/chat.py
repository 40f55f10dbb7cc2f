"""Chat messages to one text, by the template that a model was trained with.

Templates come with checkpoints and are programs in jinja2: they run in its sandbox,
which lets them read what they are given and change nothing.
"""

import dataclasses
import datetime
import functools
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2
from jinja2 import ext, sandbox

Messages = Sequence[Mapping[str, Any]]


@dataclasses.dataclass(frozen=True)
class ChatTemplate:
    """A chat template.

    Attributes:
      source: the template in jinja2.
      bos_token, eos_token: spellings that it may use, "" for none.
    """

    source: str
    bos_token: str = ""
    eos_token: str = ""

    def render(
        self, messages: Messages, *, add_generation_prompt: bool = True, **extra: Any
    ) -> str:
        """The text of a conversation.

        Args:
          messages: mappings with ``role`` and ``content``, both str.
          add_generation_prompt: whether to open the assistant's answer.
          **extra: further variables of the template, such as ``tools``.

        Raises:
          ValueError: the messages are not of that shape, or the template refuses
            them or does what the sandbox forbids.
        """
        _check(messages)
        variables = {
            **extra,
            "messages": [dict(message) for message in messages],
            "add_generation_prompt": add_generation_prompt,
            "bos_token": self.bos_token,
            "eos_token": self.eos_token,
        }
        template = _compile(self.source)
        try:
            return template.render(**variables)
        except jinja2.exceptions.SecurityError as error:
            raise ValueError(
                f"chat template: does what its sandbox forbids ({error}); use a "
                "template that you trust"
            ) from error
        except Exception as error:  # a template may fail in any way
            raise ValueError(
                f"chat template: can't render these messages ({error}); their roles "
                f"are {[message['role'] for message in messages]}"
            ) from error


def from_gguf(
    metadata: Mapping[str, Any], bos_token: str, eos_token: str
) -> ChatTemplate | None:
    """The template of a GGUF file, None if it has none."""
    source = metadata.get("tokenizer.chat_template")
    return ChatTemplate(source, bos_token, eos_token) if source else None


def from_directory(
    path: pathlib.Path, tokenizer_config: Mapping[str, Any]
) -> ChatTemplate | None:
    """The template of a Hugging Face directory, None if it has none.

    Args:
      path: the directory; its `chat_template.jinja` goes before its config.
      tokenizer_config: its parsed `tokenizer_config.json`.
    """
    file = path / "chat_template.jinja"
    if file.is_file():
        source = file.read_text(encoding="utf-8")
    else:
        source = tokenizer_config.get("chat_template")
    if isinstance(source, list):  # named ones
        named = {entry.get("name"): entry.get("template") for entry in source}
        source = named.get("default")
    if not source:
        return None
    return ChatTemplate(
        source,
        token_text(tokenizer_config.get("bos_token")),
        token_text(tokenizer_config.get("eos_token")),
    )


def token_text(entry: Any) -> str:
    """Spelling of a token in `tokenizer_config.json`: a str or a dict with one."""
    if isinstance(entry, Mapping):
        entry = entry.get("content")
    return entry if isinstance(entry, str) else ""


def _check(messages: Messages) -> None:
    if isinstance(messages, str | Mapping) or not isinstance(messages, Sequence):
        raise ValueError(
            "messages: expected a list of {'role': ..., 'content': ...}, got "
            f"{type(messages).__name__}"
        )
    if not messages:
        raise ValueError("messages: expected one or more, got an empty list")
    for i, message in enumerate(messages):
        for key in ("role", "content"):
            got = message.get(key) if isinstance(message, Mapping) else None
            if not isinstance(got, str):
                raise ValueError(
                    f"messages[{i}]: expected a mapping with 'role' and 'content' "
                    f"as str, got {message!r}"
                )


@functools.lru_cache(maxsize=16)
def _compile(source: str) -> jinja2.Template:
    def raise_exception(message: str) -> None:
        raise jinja2.exceptions.TemplateError(message)

    def tojson(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, **options)

    def strftime_now(pattern: str) -> str:
        return datetime.datetime.now().strftime(pattern)

    environment = sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[ext.loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = strftime_now
    try:
        return environment.from_string(source)
    except jinja2.TemplateSyntaxError as error:
        raise ValueError(
            f"chat template: not valid jinja2 (line {error.lineno}: {error.message})"
        ) from error
