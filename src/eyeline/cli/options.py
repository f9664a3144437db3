"""What several verbs are asked, and in which words."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from eyeline.errors import InvalidArgument, NotSupported
from eyeline.reading import lines, plain, read_file, read_stdin

if TYPE_CHECKING:
    import torch

    from eyeline.patterns import Pattern

PATTERN_HELP = (
    'Who may look at whom, such as "streaming(512, 4)" or "causal & window(255, 0)"; or by '
    'layer, "0-9: causal; 10-29: sliding_window(256)".'
)
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
Plot = Annotated[
    Path | None,
    typer.Option("--plot", metavar="FILE.png|svg", help="Draw the result into this file."),
]
_FIGURES = (".png", ".svg", ".pdf")


class ModelDtype(str, Enum):
    """Types that a model is loaded in. auto: bfloat16 where the processor multiplies it."""

    auto = "auto"
    float32 = "float32"
    bfloat16 = "bfloat16"


class AttentionDtype(str, Enum):
    """Types that attention computes in."""

    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"
    float64 = "float64"


def torch_dtype(choice: ModelDtype) -> torch.dtype | Literal["auto"]:
    """The type to load a model in."""
    if choice is ModelDtype.auto:
        return "auto"
    import torch

    dtype: torch.dtype = getattr(torch, choice.value)
    return dtype


def check_plot(path: Path | None, *, option: str = "--plot") -> None:
    """Finds out before the work, not after it, that a figure cannot be drawn or stored."""
    if path is None:
        return
    if path.suffix.lower() not in _FIGURES:
        raise InvalidArgument(f"{option} {path}: a name that ends in {', '.join(_FIGURES)}")
    if not path.absolute().parent.is_dir():
        raise InvalidArgument(f"{option} {path}: there is no folder {path.absolute().parent}")
    from importlib.util import find_spec

    if find_spec("matplotlib") is None:
        raise NotSupported(
            f"{option} needs matplotlib; install it with: pip install 'eyeline[app]'"
        )


# The text of --pattern: one pattern, or one for each range of layers.

_RANGE = re.compile(r"\s*(\d{1,6})\s*(?:-\s*(\d{1,6})\s*)?:(.*)", re.DOTALL)


@dataclass(frozen=True)
class PatternText:
    """What was asked for, parsed: patterns for ranges of layers, or a single one for all."""

    label: str
    ranges: Sequence[tuple[range, Pattern]] = ()
    single: Pattern | None = None

    def of_layers(self, layers: int) -> Pattern | list[Pattern]:
        """The pattern, or a list with one per layer.

        Raises InvalidArgument if a layer has none, has two, or does not exist.
        """
        if self.single is not None:
            return self.single
        chosen: dict[int, Pattern] = {}
        for numbers, pattern in self.ranges:
            for layer in numbers:
                if layer >= layers:
                    raise self._wrong(f"there is no layer {layer}, they are 0 to {layers - 1}")
                if layer in chosen:
                    raise self._wrong(f"layer {layer} is given twice")
                chosen[layer] = pattern
        without = [layer for layer in range(layers) if layer not in chosen]
        if without:
            raise self._wrong(f"layer {without[0]} of 0 to {layers - 1} is given no pattern")
        return [chosen[layer] for layer in range(layers)]

    def _wrong(self, what: str) -> InvalidArgument:
        return InvalidArgument(f"--pattern {self.label!r}: {what}")


def read_pattern(text: str) -> PatternText:
    """Parses the text of one --pattern. Raises PatternSyntaxError with the place of the mistake."""
    from eyeline.patterns import parse

    label = " ".join(text.split())
    if ":" not in text:
        return PatternText(label, single=parse(text))
    ranges = []
    for part in text.split(";"):
        match = _RANGE.fullmatch(part)
        if match is None:
            raise InvalidArgument(
                f"--pattern {label!r}: {part.strip()!r} is not of the form "
                '"first-last: pattern"; by layers it reads "0-9: causal; 10-29: streaming(512, 4)"'
            )
        first, last = int(match[1]), int(match[2] if match[2] is not None else match[1])
        if last < first:
            raise InvalidArgument(f"--pattern {label!r}: {first}-{last} has no layers")
        ranges.append((range(first, last + 1), parse(match[3])))
    return PatternText(label, ranges)


def read_patterns(texts: Sequence[str]) -> dict[str, PatternText]:
    """Several, by label; what is asked twice stands once."""
    read = [read_pattern(text) for text in texts]
    return {each.label: each for each in read}


# The texts that a verb is asked about: words of the command line, the lines of a file, stdin.


def read_texts(words: list[str] | None, file: str | None) -> list[str]:
    """The words; or the lines of a file, or of stdin where "-" stands for either.

    Raises InvalidArgument where neither or both are given, for a file that cannot be read, and
    for a text that is empty, with its place.
    """
    if bool(words) == (file is not None):
        what = "both were" if words else "nothing was"
        raise InvalidArgument(f"give one TEXT or several, or --file; {what} given")
    if words and "-" not in words:
        return _checked([plain(word) for word in words], "text {} of the command line")
    if words and len(words) > 1:
        raise InvalidArgument("- reads the texts from stdin, and stands alone")
    if file is None or file == "-":
        return _checked(lines(read_stdin()), "stdin, line {}")
    return _checked(lines(read_file(file, f"--file {file}")), f"--file {file}, line {{}}")


def _checked(texts: list[str], place: str) -> list[str]:
    if not texts:
        raise InvalidArgument(f"{place.partition(',')[0]}: there is no text in it")
    for number, text in enumerate(texts, 1):
        if not text.strip():
            raise InvalidArgument(f"{place.format(number)}: the text is empty")
    return texts


# Modules of the user's own, which register mechanisms and patterns.

_Imports = Annotated[
    list[str] | None,
    typer.Option(
        "--import", metavar="MODULE",
        help="Import a module first, for its mechanisms and patterns. May be repeated.",
    ),
]  # fmt: skip


def importing(verb: Callable[..., None]) -> Callable[..., None]:
    """The verb with one option more: ``--import MODULE``."""

    @wraps(verb)
    def run(*, imports: list[str] | None, **asked: Any) -> None:
        if imports:
            from eyeline.registry import import_named

            for name in imports:
                import_named(name)
        verb(**asked)

    signature = inspect.signature(verb, eval_str=True)
    option = inspect.Parameter(
        "imports", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_Imports
    )
    run.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[*signature.parameters.values(), option]
    )
    return run
