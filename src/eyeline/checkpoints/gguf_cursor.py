"""A place in untrusted bytes that never runs past their end. All numbers are little-endian."""

from __future__ import annotations

import struct
import sys
from array import array
from mmap import mmap
from pathlib import Path

from eyeline.checkpoints.base import damaged, shown
from eyeline.errors import CheckpointError

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
