"""Text files as ids, and which stretches of them are held out."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor

from eyeline.errors import InvalidArgument
from eyeline.hashing import generator
from eyeline.training.words import TextTokenizer, ids_of

_STRETCHES = 100


@dataclass(frozen=True)
class Stretch:
    """A part of a text that is read without a gap: slots start … stop - 1."""

    start: int
    stop: int


@dataclass(frozen=True)
class Texts:
    """All ids in one row (N,), those to train on and those held out. digest: of all ids."""

    ids: Tensor
    training: Sequence[Stretch]
    held_out: Sequence[Stretch]
    digest: str


def read_texts(
    files: Sequence[str],
    tokenizer: TextTokenizer,
    *,
    length: int,
    held_out: str | None,
    validation: float,
    seed: int,
) -> Texts:
    """Files, one after the other, and their split.

    With a file of held-out text, that; else every text is cut into a hundred stretches (fewer
    where they would be shorter than two lengths), and by the seed some of them are held out,
    about the share ``validation`` of all. No sequence crosses from one file, or from one stretch
    into a held-out one.

    Raises InvalidArgument for a file that cannot be read or is empty, and for too little text.
    """
    pieces = [_read(file, tokenizer) for file in files]
    split = held_out is None and validation > 0
    training: list[Stretch] = []
    held: list[Stretch] = []
    start = 0
    for place, piece in enumerate(pieces):
        whole = Stretch(start, start + len(piece))
        part = _split(whole, validation, length, seed, place) if split else ([whole], [])
        training, held, start = training + part[0], held + part[1], whole.stop
    if held_out is not None:
        piece = _read(held_out, tokenizer)
        held, pieces = [Stretch(start, start + len(piece))], [*pieces, piece]
    ids = torch.cat(pieces)
    digest = hashlib.sha256(ids.numpy().tobytes()).hexdigest()
    return Texts(ids, _long(training, length, "to train on"), _held(held, length), digest)


def _read(file: str, tokenizer: TextTokenizer) -> Tensor:
    try:
        data = Path(file).read_bytes()
    except OSError as error:
        raise InvalidArgument(f"{file}: {(error.strerror or 'unreadable').lower()}") from None
    if not data.strip():
        raise InvalidArgument(f"{file}: it is empty; there is nothing to learn from")
    return ids_of(data, tokenizer, file)


def _split(
    whole: Stretch, share: float, length: int, seed: int, place: int
) -> tuple[list[Stretch], list[Stretch]]:
    size = whole.stop - whole.start
    count = min(_STRETCHES, size // (2 * (length + 1)))
    if count < 2:
        raise InvalidArgument(
            f"a text of {size:,} tokens is too short to hold some of it out at length {length}: "
            f"{4 * (length + 1):,} tokens, a smaller length, or held-out text of its own would do"
        )
    edges = [whole.start + size * i // count for i in range(count + 1)]
    chosen = torch.randperm(count, generator=generator(seed, "split", place))
    taken = set(chosen[: min(count - 1, max(1, round(share * count)))].tolist())
    parts: tuple[list[Stretch], list[Stretch]] = ([], [])
    for index, (start, stop) in enumerate(pairwise(edges)):
        mine = parts[index in taken]
        if mine and mine[-1].stop == start:  # neighbours are one stretch
            mine[-1] = Stretch(mine[-1].start, stop)
        else:
            mine.append(Stretch(start, stop))
    return parts


def _long(stretches: list[Stretch], length: int, what: str) -> list[Stretch]:
    long = [each for each in stretches if each.stop - each.start > length]
    if not long:
        most = max(each.stop - each.start for each in stretches)
        raise InvalidArgument(
            f"there is no text {what} that is longer than the length of {length}: the longest "
            f"stretch has {most:,} tokens; take more text or a smaller length"
        )
    return long


def _held(stretches: list[Stretch], length: int) -> list[Stretch]:
    """Held-out text may be short: then it is one window."""
    return [each for each in stretches if each.stop - each.start > 1]
