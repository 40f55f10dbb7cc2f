"""Options that several commands share, and values that are spelled as text."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

_MODEL = "Models and drafters"
_SAMPLING = "Sampling"
_OUTPUT = "Input and output"


def _option(name: str, help: str, panel: str, **more):
    return typer.Option(name, help=help, rich_help_panel=panel, **more)


Config = Annotated[
    Path | None,
    _option("--config", "TOML recipe; options given here go before it.", _MODEL),
]
Model = Annotated[
    str | None,
    _option(
        "--model",
        "Known name, .gguf file, directory or hf:OWNER/NAME. [smollm2-135m]",
        _MODEL,
    ),
]
Dtype = Annotated[
    str | None,
    _option(
        "--dtype", "float32, bfloat16 or float16. [by device]", _MODEL, metavar="TYPE"
    ),
]
Weights = Annotated[
    str | None,
    _option(
        "--weights",
        "stored (quantised too), decoded (float32), tiled or int8 (for accelerators), "
        "or dense (for XLA). [by device]",
        _MODEL,
        metavar="FORM",
    ),
]
Mesh = Annotated[
    str | None,
    _option(
        "--mesh",
        "Devices to split model and batch over, such as data=2,model=3. [one device]",
        _MODEL,
        metavar="SIZES",
    ),
]
Verifier = Annotated[
    str | None,
    _option(
        "--verifier",
        "Rule that decides which drafts stay: exact, rejection or "
        "without_replacement. [exact]",
        _MODEL,
    ),
]
MaxContext = Annotated[
    int | None,
    _option("--max-context", "Positions to hold. [what the request needs]", _MODEL),
]
NoCache = Annotated[
    bool,
    _option("--no-cache", "Do not keep compiled programs on disk.", _MODEL),
]
Chat = Annotated[
    bool | None,
    _option(
        "--chat/--raw",
        "Put text through the chat template or not. [chat if there is one]",
        _OUTPUT,
    ),
]
MaxNewTokens = Annotated[
    int | None, _option("--max-new-tokens", "Most new tokens. [128]", _SAMPLING)
]
MinNewTokens = Annotated[
    int | None,
    _option("--min-new-tokens", "No stop id before so many. [0]", _SAMPLING),
]
Temperature = Annotated[
    float | None, _option("--temperature", "0 is greedy. [0]", _SAMPLING)
]
TopK = Annotated[int | None, _option("--top-k", "0 is off. [0]", _SAMPLING)]
TopP = Annotated[float | None, _option("--top-p", "1 is off. [1]", _SAMPLING)]
MinP = Annotated[float | None, _option("--min-p", "0 is off. [0]", _SAMPLING)]
RepetitionPenalty = Annotated[
    float | None,
    _option("--repetition-penalty", "Prompt and output; 1 is off. [1]", _SAMPLING),
]
PresencePenalty = Annotated[
    float | None,
    _option("--presence-penalty", "Of the output; 0 is off. [0]", _SAMPLING),
]
FrequencyPenalty = Annotated[
    float | None,
    _option("--frequency-penalty", "Of the output; 0 is off. [0]", _SAMPLING),
]
LogitBias = Annotated[
    list[str] | None,
    _option(
        "--logit-bias",
        "Added to the logit of an id; -inf bans it. Repeatable.",
        _SAMPLING,
        metavar="ID=VALUE",
    ),
]
Stop = Annotated[
    list[str] | None,
    _option("--stop", "Text that ends the output. Repeatable.", _SAMPLING),
]
StopTokenIds = Annotated[
    str | None,
    _option(
        "--stop-token-ids",
        "Further ids that end the output, parted by commas.",
        _SAMPLING,
        metavar="IDS",
    ),
]
IgnoreEos = Annotated[
    bool | None,
    _option("--ignore-eos", "Do not stop at the model's own stop ids.", _SAMPLING),
]
Seed = Annotated[int | None, _option("--seed", "Of the noise. [0]", _SAMPLING)]


def biases(pairs: Sequence[str] | None) -> Mapping[int, float] | None:
    """``ID=VALUE`` texts as a mapping; None stays None.

    Raises:
      ValueError: a text is not of that form.
    """
    if not pairs:
        return None
    found = {}
    for pair in pairs:
        token, _, value = pair.partition("=")
        try:
            found[int(token)] = float(value)
        except ValueError:
            raise ValueError(
                f"--logit-bias must be ID=VALUE such as 42=-1.5, got {pair!r}"
            ) from None
    return found


def ids(text: str | None) -> tuple[int, ...] | None:
    """Ids parted by commas; None stays None.

    Raises:
      ValueError: a part is not an integer.
    """
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ValueError(
            f"--stop-token-ids must be ids parted by commas such as 0,2, got {text!r}"
        ) from None
