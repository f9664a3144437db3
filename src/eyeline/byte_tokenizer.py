"""Text as its UTF-8 bytes: a tokenizer without a file, for any language and for no language.

ids 0 … 255    the bytes themselves
256 <bos>      begins a text        257 <eos>    ends it
258 <pad>      fills short rows     259 <mask>   stands for a byte that is to be guessed
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Mapping, Sequence
from typing import ClassVar, NoReturn, final

from eyeline.errors import InvalidArgument, NotSupported

_CONTROL = ("<bos>", "<eos>", "<pad>", "<mask>")
_IDS = {word: 256 + place for place, word in enumerate(_CONTROL)}
_WORDS = re.compile(f"({'|'.join(_CONTROL)})")


@final
class ByteTokenizer:
    """Encode and decode text as bytes; the methods and attributes of ``Tokenizer``.

    Encoding puts nothing before or after a text: what a model wants there, its task adds.
    """

    kind: ClassVar[str] = "bytes"
    bos_id, eos_id, pad_id, mask_id = (_IDS[word] for word in _CONTROL)
    eos_ids: ClassVar[frozenset[int]] = frozenset({eos_id})
    vocabulary_size = 256 + len(_CONTROL)

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """The bytes of ``text``.

        With ``special``, the words ``<bos>``, ``<eos>``, ``<pad>`` and ``<mask>`` in it become
        their one id. Without, everything is ordinary text: so encode what a stranger wrote.
        Raises InvalidArgument for half of a surrogate pair.
        """
        if not isinstance(text, str):
            raise InvalidArgument(f"text: a str is due, not {type(text).__name__}")
        try:
            if not special:
                return list(text.encode())
            parts = _WORDS.split(text) if "<" in text else [text]
            return [i for part in parts for i in ([_IDS[part]] if part in _IDS else part.encode())]
        except UnicodeEncodeError:
            raise InvalidArgument("text: it holds half of a surrogate pair, no UTF-8") from None

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        """The text of ``ids``; control tokens are written only with ``special``.

        Bytes that are no UTF-8 become U+FFFD. Raises InvalidArgument for an id that does not exist.
        """
        return b"".join(_piece(int(i), special=special) for i in ids).decode(errors="replace")

    def stream(self) -> ByteStream:
        """A decoder for ids that come one at a time."""
        return ByteStream()

    def chat(self, messages: Sequence[Mapping[str, str]], *, reply: bool = True) -> NoReturn:
        """Raises NotSupported: bytes have no chat template."""
        raise NotSupported("a model of bytes has no chat template; write plain text")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ByteTokenizer)

    def __hash__(self) -> int:
        return hash(ByteTokenizer)

    def __repr__(self) -> str:
        return "ByteTokenizer()"


@final
class ByteStream:
    """Joins ids into text as they come, and never gives out half a character.

    The pieces of ``push`` and the last one of ``flush`` together are ``decode`` of all the ids.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, index: int) -> str:
        """The text that is complete now; empty while a character's bytes are still coming."""
        return self._decoder.decode(_piece(index, special=False))

    def flush(self) -> str:
        """What is still held back, unfinished bytes as U+FFFD. The decoder is then empty."""
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return rest


def _piece(index: int, *, special: bool) -> bytes:
    if not 0 <= index < ByteTokenizer.vocabulary_size:
        raise InvalidArgument(
            f"ids: {index} is none of the ids 0 to {ByteTokenizer.vocabulary_size - 1}"
        )
    if index < 256:
        return bytes((index,))
    return _CONTROL[index - 256].encode() if special else b""
