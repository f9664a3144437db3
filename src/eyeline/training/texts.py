"""Text files as ids, and which stretches of them are held out."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, final

import torch
from torch import Tensor

from eyeline.checkpoints.base import TokenizerFile, TokenizerSpec
from eyeline.checkpoints.folder import tokenizer_spec
from eyeline.errors import InvalidArgument
from eyeline.hashing import generator
from eyeline.reading import content, decoded
from eyeline.tokenizer import BYTES, AnyTokenizer, ByteTokenizer, Tokenizer

# The tokenizer of a run: bytes, or a given one, and what training asks of it.


def tokenizer_of(name: str) -> AnyTokenizer:
    """By the word "bytes", or from a tokenizer.json, or from a folder that has one."""
    if name == BYTES:
        return ByteTokenizer()
    path = Path(name)
    folder = path if path.is_dir() else path.parent
    file = folder / "tokenizer.json" if path.is_dir() else path
    if not file.is_file():
        raise InvalidArgument(
            f"tokenizer {name}: it is {BYTES!r}, a tokenizer.json, or a folder with one"
        )
    spec = tokenizer_spec(folder, {}) if file.name == "tokenizer.json" else None
    if spec is None:
        spec = TokenizerSpec(TokenizerFile(file), None, (), None, False, None, {})
    return Tokenizer(spec, file)


def ids_of(data: bytes, tokenizer: AnyTokenizer, source: str) -> Tensor:
    """The ids of a file's content, as small as they may be stored: (N,), uint8 or int32.

    UTF-8 is read as ``plain`` text. Bytes that are none are taken as they are, whatever they mean,
    where bytes are the tokens; a given tokenizer refuses them.
    """
    if not isinstance(tokenizer, ByteTokenizer):
        ids = tokenizer.encode(decoded(data, source), special=False)
        return torch.tensor(ids, dtype=torch.int32)
    with suppress(InvalidArgument):  # pictures, programs, …
        data = decoded(data, source).encode()
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def mask_id(tokenizer: AnyTokenizer) -> int:
    """The id that stands for a hidden token. Raises InvalidArgument if there is none."""
    known = getattr(tokenizer, "mask_id", None)
    if known is None:
        raise InvalidArgument(
            "the tokenizer has no mask token, and a masked language model needs one; "
            'train with bytes (--tokenizer bytes), or add one ("[MASK]" or "<mask>")'
        )
    return int(known)


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
    tokenizer: AnyTokenizer,
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


def _read(file: str, tokenizer: AnyTokenizer) -> Tensor:
    data = content(file)
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


# Sequences cut out of long texts, anew in each epoch: a pure function of (seed, step).


@final
class Windows:
    """Windows of ``length`` + ``more`` ids, ``rows`` of them a batch.

    In each epoch every stretch is cut into windows side by side, from an offset drawn anew, and
    all of them are read in an order drawn anew; with more=1, each window begins with the last id
    of the one before, so that each id is predicted once an epoch. count: batches per epoch.
    """

    def __init__(
        self, ids: Tensor, stretches: Sequence[Stretch], *, length: int, rows: int, seed: int
    ) -> None:
        self._ids, self._length, self._seed = ids, length, seed
        sizes = torch.tensor([each.stop - each.start for each in stretches])
        self._starts = torch.tensor([each.start for each in stretches])
        self._windows = torch.where(sizes >= 2 * length, (sizes - length) // length, 1)
        self._slack = (sizes - 1 - self._windows * length).clamp(0, length - 1)
        total = int(self._windows.sum())
        self.rows = min(rows, total)
        self.count = total // self.rows
        self._last = (-1, self._starts)

    def at(self, step: int, share: slice = slice(None)) -> Tensor:
        """The batch of step 1, 2, …: int64 (rows, length + 1), or the rows of a share."""
        epoch, index = divmod(step - 1, self.count)
        if epoch != self._last[0]:
            self._last = epoch, self._ordered(epoch)
        starts = self._last[1][index * self.rows : (index + 1) * self.rows][share]
        slots = starts[:, None] + torch.arange(self._length + 1)
        return self._ids[slots].long()

    def _ordered(self, epoch: int) -> Tensor:
        """The first slot of every window of an epoch, in the order in which they are read."""
        drawn = generator(self._seed, "windows", epoch)
        offsets = (torch.rand(len(self._slack), generator=drawn) * (self._slack + 1)).long()
        nth = torch.arange(int(self._windows.max())).repeat(len(self._windows), 1)
        inside = nth < self._windows[:, None]
        starts = ((self._starts + offsets)[:, None] + nth * self._length)[inside]
        return starts[torch.randperm(len(starts), generator=drawn)]


class Measured(NamedTuple):
    """A window for measuring: ``length`` tokens from slot ``start``, and as many targets.

    The first ``seen`` targets do not count: they are those of the window before.
    """

    start: int
    length: int
    seen: int


def half_windows(stretches: Sequence[Stretch], *, length: int, most: int) -> list[Measured]:
    """Windows that advance by half a length, so that a token has half a length of context.

    So it is as far as its stretch has that much before it. Each token but a stretch's first is a
    target that counts, once; or, if there are more than ``most`` windows, those of as many, spread
    evenly.
    """
    found: list[Measured] = []
    for each in stretches:
        final = each.stop - 1 - length
        if final <= each.start:
            found.append(Measured(each.start, each.stop - 1 - each.start, 0))
            continue
        starts = [*range(each.start, final, max(1, length // 2)), final]
        found.append(Measured(starts[0], length, 0))
        for before, start in pairwise(starts):
            found.append(Measured(start, length, before + length - start))
    if len(found) <= most:
        return found
    return [found[i * len(found) // most] for i in range(most)]
