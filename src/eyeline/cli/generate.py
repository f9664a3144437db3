"""`eyeline generate`: a text, written on."""

from __future__ import annotations

import sys
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from eyeline.cli.options import PATTERN_HELP, Json, ModelDtype, read_pattern
from eyeline.cli.output import Ready, data_size, environment, load_model, percent, print_json
from eyeline.errors import InvalidArgument
from eyeline.reading import plain, read_stdin

if TYPE_CHECKING:
    from eyeline.generation import Stream
    from eyeline.models import LanguageModel
    from eyeline.sampling import Sampler


class EncodingChoice(str, Enum):
    """Where a key stands for the rotary encoding: in the text, or among the keys that are kept."""

    absolute = "absolute"
    recounted = "recounted"


def generate(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[MODEL] PROMPT", help="A model and a prompt, or a prompt; - reads stdin."
        ),
    ],
    pattern: Annotated[str | None, typer.Option("--pattern", help=PATTERN_HELP)] = None,
    chat: Annotated[
        bool, typer.Option("--chat", help="The prompt is a message; the model answers it.")
    ] = False,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Write no more than this.")] = 128,
    temperature: Annotated[float, typer.Option(help="0 always takes the likeliest token.")] = 0.0,
    top_k: Annotated[int | None, typer.Option(help="Draw from the k likeliest tokens.")] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Draw from the likeliest that together have p.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Draw the same again.")] = None,
    encodings: Annotated[
        EncodingChoice | None, typer.Option(help="recounted writes on past the trained length.")
    ] = None,
    dtype: Annotated[ModelDtype, typer.Option(help="The type of the weights.")] = ModelDtype.auto,
    as_json: Json = False,
) -> None:
    """Write a text on, token by token."""
    name, prompt = _model_and_prompt(words)
    chosen = read_pattern(pattern) if pattern is not None else None
    sampler = _sampler(temperature, top_k=top_k, top_p=top_p, seed=seed)
    ready = load_model(
        name, dtype=dtype, encodings=encodings.value if encodings is not None else None
    )
    if chosen is not None:
        from eyeline.measuring import under

        layers = ready.model.config.layers
        ready = ready._replace(model=under(ready.model, chosen.of_layers(layers)))
    writer = _writer(ready, prompt, chat=chat, sampler=sampler, max_new_tokens=max_new_tokens)
    show = _silent if as_json else _show
    written = _write(ready, writer, show=show)
    if as_json:
        print_json(_answer(ready, writer, written))
    else:
        print(f"\n{_summary(ready.model, writer, written)}", file=sys.stderr)
    if written.stopped == "interrupt":
        raise typer.Exit(130)


class Written(NamedTuple):
    """What came, and why it ended: "end" of the text, "length", "positions", or "interrupt"."""

    text: str
    tokens: int
    stopped: str


def _model_and_prompt(words: list[str]) -> tuple[str | None, str]:
    if len(words) > 2:
        raise InvalidArgument(
            f"a model and a prompt were expected, or a prompt alone, not {len(words)} words; "
            "put the prompt in quotes"
        )
    prompt = read_stdin() if words[-1] == "-" else plain(words[-1])
    if not prompt:
        raise InvalidArgument("the prompt is empty; give some text for the model to go on from")
    return (words[0] if len(words) == 2 else None), prompt


def _sampler(
    temperature: float, *, top_k: int | None, top_p: float | None, seed: int | None
) -> Sampler:
    from eyeline.sampling import Sampler

    sampler = Sampler(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
    given = {"--top-k": top_k, "--top-p": top_p, "--seed": seed}
    idle = [name for name, value in given.items() if value is not None]
    if temperature == 0 and idle:
        raise InvalidArgument(
            f"{idle[0]} changes nothing at temperature 0, where the likeliest token is always "
            "taken; add --temperature 0.7, say"
        )
    return sampler


def _writer(
    ready: Ready, prompt: str, *, chat: bool, sampler: Sampler, max_new_tokens: int
) -> Stream:
    from eyeline.generation import stream

    tokenizer = ready.tokenizer
    text = tokenizer.chat([{"role": "user", "content": prompt}]) if chat else prompt
    ids = tokenizer.encode(text)
    if chat and ids[:2] == [tokenizer.bos_id] * 2:
        del ids[0]  # the template has begun the text, and so has the tokenizer
    return stream(
        ready.model,
        ids,
        max_new_tokens=max_new_tokens,
        sampler=sampler,
        stop=tokenizer.eos_ids,
    )


def _write(ready: Ready, writer: Stream, *, show: Callable[[str], None]) -> Written:
    """Runs the writer to its end. Ctrl-C ends it too, and what has come by then stays."""
    decoder, tokens, stopped = ready.tokenizer.stream(), 0, "interrupt"
    pieces: list[str] = []
    try:
        for index in writer:
            tokens += 1
            pieces.append(decoder.push(index))
            show(pieces[-1])
        stopped = writer.stopped if writer.stopped is not None else stopped
    except KeyboardInterrupt:
        pass  # stopped says it
    pieces.append(decoder.flush())
    show(pieces[-1])
    return Written("".join(pieces), tokens, stopped)


def _show(piece: str) -> None:
    print(piece, end="", flush=True)


def _silent(piece: str) -> None:
    """JSON comes in one piece, at the end."""


def _numbers(model: LanguageModel, writer: Stream) -> dict[str, Any]:
    from eyeline.measuring.comparison import pairs_per_layer

    position = writer.caches[0].position
    read = position if isinstance(position, int) else int(position.max())
    looked, causal = pairs_per_layer(model, read), read * (read + 1) // 2
    seconds = writer.prompt_seconds
    return {
        "prompt_tokens": writer.prompt_tokens,
        "prompt_tokens_per_second": writer.prompt_tokens / seconds if seconds else None,
        "tokens_per_second": writer.tokens_per_second if writer.written else None,
        "cache_bytes": sum(cache.nbytes for cache in writer.caches),
        "pairs": looked,
        "causal_pairs": causal,
        "share": looked / causal if causal else None,
    }


def _answer(ready: Ready, writer: Stream, written: Written) -> dict[str, Any]:
    return {
        "text": written.text,
        "stopped": written.stopped,
        "new_tokens": written.tokens,
        **_numbers(ready.model, writer),
        "model": ready.name,
        "source": str(ready.source),
        "dtype": ready.dtype,
        "patterns": [str(pattern) for pattern in ready.model.patterns],
        "encodings": ready.model.encodings,
        "environment": environment(),
    }


def _summary(model: LanguageModel, writer: Stream, written: Written) -> str:
    if not writer.prompt_seconds:
        return f"interrupted while reading the prompt of {writer.prompt_tokens:,} tokens"
    numbers = _numbers(model, writer)
    speed = numbers["tokens_per_second"]
    return " · ".join((
        f"prompt {writer.prompt_tokens:,} tokens at {numbers['prompt_tokens_per_second']:,.0f}/s",
        f"written {written.tokens:,}" + (f" at {speed:,.1f}/s" if speed is not None else ""),
        f"cache {data_size(numbers['cache_bytes'])}",
        f"pairs looked at {percent(numbers['share'])} of causal",
        *(["interrupted"] if written.stopped == "interrupt" else []),
        *(["no position is left"] if written.stopped == "positions" else []),
    ))  # fmt: skip
