"""The header of a GGUF file, read strictly: no count and no length in it is believed unchecked.

Layout, all little-endian: magic `GGUF`, version u32, tensor count u64, key count u64; per key its
name, a type u32, a value; per tensor its name, rank u32, sizes u64 (fastest first), type u32,
offset u64; then the data, aligned. A string is its length u64 and that many bytes of UTF-8.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from mmap import mmap
from pathlib import Path
from typing import TypeVar

from eyeline.checkpoints.base import damaged, shown
from eyeline.errors import CheckpointError

# A place in untrusted bytes that never runs past their end. All numbers are little-endian.


HEADER_BYTES = 1 << 27
STRING_BYTES = 1 << 24

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


class Cursor:
    """Reads on from `at`. `inside` says where, for the errors, all of them CheckpointError."""

    def __init__(self, data: mmap | bytes, source: Path) -> None:
        self.data = data
        self.source = source
        self.end = min(len(data), HEADER_BYTES)
        self.at = 0
        self.inside = "its first bytes"

    def error(self, what: str) -> CheckpointError:
        return damaged(self.source, f"in {self.inside}: {what}")

    def ended(self) -> CheckpointError:
        if self.end < len(self.data):
            return self.error(f"the header is longer than {HEADER_BYTES:,} bytes")
        return damaged(
            self.source,
            f"the file ends at byte {self.end:,}, inside {self.inside}: it is cut short",
        )

    def skip(self, size: int) -> int:
        """Pass `size` bytes and return where they began."""
        begin = self.at
        if size > self.end - begin:
            raise self.ended()
        self.at = begin + size
        return begin

    def u32(self) -> int:
        return int(_U32.unpack_from(self.data, self.skip(4))[0])

    def u64(self) -> int:
        return int(_U64.unpack_from(self.data, self.skip(8))[0])

    def count(self, what: str, *, smallest: int) -> int:
        """A count of things that take at least `smallest` bytes each: as many must still fit."""
        count = self.u64()
        if count * smallest > self.end - self.at:
            raise self.error(
                f"it claims {count:,} {what}, for which {self.end - self.at:,} bytes are too few"
            )
        return count

    def string(self, *, limit: int = STRING_BYTES) -> str:
        size = self.u64()
        if size > limit:
            raise self.error(f"a text of {size:,} bytes, more than {limit:,}")
        begin = self.skip(size)
        return self.text(self.data[begin : self.at])

    def text(self, raw: bytes) -> str:
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            raise self.error(f"a text is not UTF-8: {shown(raw)}") from None

    def strings(self, count: int) -> list[str]:
        """`count` strings. The loop is written out: a vocabulary has a hundred thousand."""
        data, at, last = self.data, self.at, self.end - 8
        length = _U64.unpack_from
        texts: list[str] = []
        for _ in range(count):
            if at > last:
                raise self.ended()
            begin = at + 8
            at = begin + int(length(data, at)[0])
            if at > self.end:
                raise self.ended()
            texts.append(self.text(data[begin:at]))
        self.at = at
        return texts

    def numbers(self, letter: str, count: int) -> array[int] | array[float]:
        begin = self.skip(count * struct.calcsize(f"<{letter}"))
        values: array[int] | array[float] = array(letter)
        values.frombytes(self.data[begin : self.at])
        if sys.byteorder == "big":
            values.byteswap()
        return values


T = TypeVar("T")

MAGIC = b"GGUF"
NAME_BYTES = (1 << 16) - 1
MAX_RANK = 4
DEFAULT_ALIGNMENT = 32

_STRING, _ARRAY, _BOOL = 8, 9, 7
# GGUF's type number: struct letter, which `array` shares.
_NUMBERS = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", _BOOL: "B", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
# The fewest bytes that one key or one tensor can take: what a count is checked against.
_SMALLEST_KEY = 8 + 4 + 1
_SMALLEST_TENSOR = 8 + 4 + 8 + 4 + 8


@dataclass(frozen=True)
class StoredTensor:
    """`shape` in torch's order (slowest first), `kind` ggml's type number, `offset` in the data."""

    name: str
    shape: tuple[int, ...]
    kind: int
    offset: int


@dataclass(frozen=True)
class Header:
    """What stands before the data. `data_start` is the byte at which the data begins."""

    metadata: dict[str, object]
    tensors: tuple[StoredTensor, ...]
    alignment: int
    data_start: int


def parse(data: mmap | bytes, source: Path) -> Header:
    """Read the header at the start of `data`. Raises CheckpointError for anything out of order."""
    cursor = Cursor(data, source)
    _check_version(cursor)
    tensor_count = cursor.count("tensors", smallest=_SMALLEST_TENSOR)
    key_count = cursor.count("keys", smallest=_SMALLEST_KEY)
    metadata = _unique(cursor, "key", key_count, _key_and_value)
    alignment = _alignment(cursor, metadata)
    tensors = _unique(cursor, "tensor", tensor_count, _name_and_tensor)
    start = -(-cursor.at // alignment) * alignment
    return Header(metadata, tuple(tensors.values()), alignment, start)


def _check_version(cursor: Cursor) -> None:
    magic = cursor.data[cursor.skip(4) : cursor.at]
    if magic != MAGIC:
        raise cursor.error(f"{magic!r} is not the mark of a GGUF file, {MAGIC!r}")
    version = cursor.u32()
    if version not in (2, 3):
        hint = " (a big-endian file?)" if version and version % (1 << 16) == 0 else ""
        raise cursor.error(f"GGUF version {version}{hint}; versions 2 and 3 can be read")


def _unique(
    cursor: Cursor, what: str, count: int, read: Callable[[Cursor], tuple[str, T]]
) -> dict[str, T]:
    found: dict[str, T] = {}
    for index in range(count):
        cursor.inside = f"{what} {index + 1} of {count}"
        name, value = read(cursor)
        if name in found:
            raise cursor.error(f"the {what} {shown(name)} stands there twice")
        found[name] = value
    return found


def _key_and_value(cursor: Cursor) -> tuple[str, object]:
    name = cursor.string(limit=NAME_BYTES)
    cursor.inside += f", {shown(name)}"
    return name, _value(cursor, cursor.u32())


def _value(cursor: Cursor, kind: int) -> object:
    if kind == _STRING:
        return cursor.string()
    if kind == _ARRAY:
        return _values(cursor, cursor.u32())
    letter = _NUMBERS.get(kind)
    if letter is None:
        raise cursor.error(f"type {kind} is none of GGUF's types 0 to 12")
    value = cursor.numbers(letter, 1)[0]
    if kind != _BOOL:
        return value
    if value not in (0, 1):
        raise cursor.error(f"a truth value is {value}, neither 0 nor 1")
    return bool(value)


def _values(cursor: Cursor, kind: int) -> Sequence[object]:
    if kind == _STRING:
        return cursor.strings(cursor.count("texts", smallest=8))
    letter = _NUMBERS.get(kind)
    if letter is None:
        raise cursor.error(f"a list of type {kind}; lists of numbers and of texts can be read")
    return cursor.numbers(letter, cursor.count("numbers", smallest=struct.calcsize(f"<{letter}")))


def _name_and_tensor(cursor: Cursor) -> tuple[str, StoredTensor]:
    name = cursor.string(limit=NAME_BYTES)
    cursor.inside += f", {shown(name)}"
    rank = cursor.u32()
    if not 1 <= rank <= MAX_RANK:
        raise cursor.error(f"{rank} dimensions; 1 to {MAX_RANK} can be read")
    sizes = tuple(cursor.u64() for _ in range(rank))
    if 0 in sizes:
        raise cursor.error(f"a dimension is 0: {sizes}")
    return name, StoredTensor(name, sizes[::-1], cursor.u32(), cursor.u64())


def _alignment(cursor: Cursor, metadata: dict[str, object]) -> int:
    value = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if not isinstance(value, int) or not 1 <= value <= 1 << 20 or value & (value - 1):
        raise cursor.error(f"general.alignment is {value!r}, not a power of two up to 2^20")
    return value
