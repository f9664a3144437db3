"""The header of a GGUF file, read strictly: no count and no length in it is believed unchecked.

Layout, all little-endian: magic `GGUF`, version u32, tensor count u64, key count u64; per key its
name, a type u32, a value; per tensor its name, rank u32, sizes u64 (fastest first), type u32,
offset u64; then the data, aligned. A string is its length u64 and that many bytes of UTF-8.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from mmap import mmap
from pathlib import Path
from typing import TypeVar

from eyeline.checkpoints.base import shown
from eyeline.checkpoints.gguf_cursor import Cursor

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
