"""The text of --pattern: one pattern, or one for each range of layers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from eyeline.errors import InvalidArgument

if TYPE_CHECKING:
    from eyeline.patterns import Pattern

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
