"""``specjax generate``: one prompt in, text out as it comes."""

import itertools
import json
import sys
from typing import Annotated, Any

import typer

from specjax.cli import errors, interrupts, options, recipe

_PREPARING = "preparing programs; those not used before are compiled now"
_ROUNDS_UNSEEN = 16  # between two looks at the output when nobody watches it


def generate(
    config: options.Config = None,
    model: options.Model = None,
    drafter: Annotated[
        str | None,
        typer.Option(
            help="NAME or NAME:key=value:key=value, see `specjax drafters`. [auto]",
            rich_help_panel="Models and drafters",
        ),
    ] = None,
    verifier: options.Verifier = None,
    dtype: options.Dtype = None,
    weights: options.Weights = None,
    mesh: options.Mesh = None,
    max_context: options.MaxContext = None,
    no_cache: options.NoCache = False,
    prompt: Annotated[
        str | None,
        typer.Option(
            help="Text; standard input if absent.", rich_help_panel="Input and output"
        ),
    ] = None,
    chat: options.Chat = None,
    system: Annotated[
        str | None,
        typer.Option(
            help="System message before the prompt.", rich_help_panel="Input and output"
        ),
    ] = None,
    max_new_tokens: options.MaxNewTokens = None,
    min_new_tokens: options.MinNewTokens = None,
    temperature: options.Temperature = None,
    top_k: options.TopK = None,
    top_p: options.TopP = None,
    min_p: options.MinP = None,
    repetition_penalty: options.RepetitionPenalty = None,
    presence_penalty: options.PresencePenalty = None,
    frequency_penalty: options.FrequencyPenalty = None,
    logit_bias: options.LogitBias = None,
    stop: options.Stop = None,
    stop_token_ids: options.StopTokenIds = None,
    ignore_eos: options.IgnoreEos = None,
    seed: options.Seed = None,
    num_samples: Annotated[
        int,
        typer.Option(min=1, help="Independent samples.", rich_help_panel="Sampling"),
    ] = 1,
    stats: Annotated[
        bool,
        typer.Option(
            "--stats",
            help="Print counts and times to standard error.",
            rich_help_panel="Input and output",
        ),
    ] = False,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="Print one JSON object, one a line for several samples.",
            rich_help_panel="Input and output",
        ),
    ] = False,
) -> None:
    """Generates text and streams it to standard output.

    Ctrl-C ends the text where it is; the exit status is then 130.
    """
    chosen = recipe.read(config).changed(
        model=model,
        drafter=drafter,
        verifier=verifier,
        dtype=dtype,
        weights=weights,
        mesh=mesh,
        max_context=max_context,
        sampling={
            "max_new_tokens": max_new_tokens,
            "min_new_tokens": min_new_tokens,
            "temperature": temperature,
            "top_k": top_k,
            "top_p": top_p,
            "min_p": min_p,
            "repetition_penalty": repetition_penalty,
            "presence_penalty": presence_penalty,
            "frequency_penalty": frequency_penalty,
            "logit_bias": options.biases(logit_bias),
            "stop": tuple(stop) if stop else None,
            "stop_token_ids": options.ids(stop_token_ids),
            "ignore_eos": ignore_eos,
            "seed": seed,
        },
    )
    if system is not None and chat is False:
        raise ValueError("--system needs the chat template; leave out --raw")
    text = _read_prompt(prompt)

    from specjax.cli import progress, session, show

    arguments = session.sampling_options(chosen.sampling)
    session.check_names(chosen, [chosen.drafter])
    lm = session.load(chosen, cache=not no_cache)
    if lm.chat_template is None and (chat or system is not None):
        raise ValueError(
            f"--chat: model {lm.name!r} has no chat template; use --raw and no --system"
        )
    engine = session.engine(chosen, lm)
    asked: Any = text
    if system is not None:
        asked = [
            {"role": "system", "content": system},
            {"role": "user", "content": text},
        ]
    arguments["chat"] = chat
    if num_samples > 1:
        with progress.waiting(_PREPARING):
            results = engine.generate([asked], num_samples=num_samples, **arguments)
        assert isinstance(results, list)
        _print_samples(results, as_json)
    else:
        results = [_stream(engine, asked, arguments, as_json)]
    if stats:
        for result in results:
            show.stats(result)
    if any(result.finish_reason == "interrupted" for result in results):
        raise typer.Exit(errors.INTERRUPTED)


def _read_prompt(prompt: str | None) -> str:
    """The option's text, or standard input without its last line break."""
    if prompt is None:
        if sys.stdin.isatty():
            errors.complain("reading the prompt; end it with Ctrl-D", label="")
        raw, source = sys.stdin.buffer.read(), "standard input"
    else:
        raw, source = prompt.encode("utf-8", "surrogateescape"), "--prompt"
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{source} is not valid UTF-8 (byte {error.start} is "
            f"0x{raw[error.start]:02x}); convert it first"
        ) from error
    if prompt is None:
        text = text.removesuffix("\n").removesuffix("\r")
    if not text.strip():
        raise ValueError(f"{source} is empty; give at least one word as --prompt")
    return text


def _stream(engine, prompt: Any, arguments: dict[str, Any], as_json: bool):
    """Generates; shows text as it comes unless it is wanted as JSON."""
    from specjax.cli import progress

    # A stop string is seen between rounds only: look after each.
    unseen = as_json and not arguments["stop"]
    rounds = _ROUNDS_UNSEEN if unseen else 1
    with progress.waiting(_PREPARING):
        stream = engine.stream(prompt, rounds=rounds, **arguments)
        pieces = iter(stream)
        # The first round compiles as the prompt does: text comes when both are done.
        first = list(itertools.islice(pieces, 2))
    shown = 0
    with interrupts.notice() as interrupt:
        for piece in itertools.chain(first, pieces):
            if not as_json:
                _write(piece.text)
                shown += len(piece.text)
            if interrupt.noticed:
                break
    result = stream.result()
    if as_json:
        _write(f"{json.dumps(result.to_json())}\n")
    else:
        _write(f"{result.text[shown:]}\n")
    return result


def _print_samples(results, as_json: bool) -> None:
    for result in results:
        if as_json:
            _write(f"{json.dumps(result.to_json())}\n")
        else:
            _write(f"--- sample {result.sample}\n{result.text}\n")


def _write(text: str) -> None:
    """Writes at once; what the terminal's encoding lacks becomes a question mark."""
    try:
        sys.stdout.write(text)
    except UnicodeEncodeError:
        encoding = sys.stdout.encoding
        sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
    sys.stdout.flush()
