"""Text to token ids and back: by the checkpoint's own rules, or as plain bytes."""

from __future__ import annotations

import codecs
import datetime
import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, final

from eyeline.checkpoints.base import (
    BytePairs,
    Checkpoint,
    TokenizerFile,
    TokenizerSpec,
    damaged,
    optional,
    shown,
)
from eyeline.errors import CheckpointError, InvalidArgument, NotSupported

if TYPE_CHECKING:
    from pathlib import Path

    import tokenizers


# Conversations as text, through the chat template that comes with a model.
#
# A template is a program by a stranger: it runs in jinja2's sandbox, where it can read what it is
# given and nothing else, and change nothing.


def render(
    template: str,
    messages: Sequence[Mapping[str, str]],
    *,
    special: Mapping[str, str],
    reply: bool,
) -> str:
    """The conversation as the template writes it.

    `special`: names such as `bos_token` with their texts; `reply`: end where an answer begins.
    Raises InvalidArgument for a message without role or content, or one the template refuses, and
    CheckpointError for a template that fails.
    """
    jinja2 = optional("jinja2")
    for number, message in enumerate(messages):
        for key in ("role", "content"):
            if not isinstance(message, Mapping) or not isinstance(message.get(key), str):
                raise InvalidArgument(f"messages[{number}]: a text under {key!r} is due")
    try:
        return str(
            _environment()
            .from_string(template)
            .render(messages=list(messages), add_generation_prompt=reply, **special)
        )
    except jinja2.TemplateError as error:
        raise _failed(error) from None
    except (TypeError, ValueError, ArithmeticError, LookupError, RecursionError) as error:
        if isinstance(error, InvalidArgument):
            raise
        raise _failed(error) from None


def _failed(error: Exception) -> CheckpointError:
    return CheckpointError(f"the model's chat template fails: {shown(str(error), limit=160)}")


def _environment() -> Any:
    """The names that published templates use, and no others."""
    optional("jinja2")
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = _now
    return environment


def _to_json(value: object, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _refuse(reason: object) -> NoReturn:
    raise InvalidArgument(f"messages: the chat template refuses them: {shown(reason, limit=160)}")


def _now(form: str) -> str:
    return datetime.datetime.now().strftime(form)


# Text as its UTF-8 bytes: a tokenizer without a file, for any language and for no language.
#
# ids 0 … 255    the bytes themselves
# 256 <bos>      begins a text        257 <eos>    ends it
# 258 <pad>      fills short rows     259 <mask>   stands for a byte that is to be guessed

_CONTROL_BYTES = ("<bos>", "<eos>", "<pad>", "<mask>")
_IDS = {word: 256 + place for place, word in enumerate(_CONTROL_BYTES)}
_WORDS = re.compile(f"({'|'.join(_CONTROL_BYTES)})")


@final
class ByteTokenizer:
    """Encode and decode text as bytes; the methods and attributes of ``Tokenizer``.

    Encoding puts nothing before or after a text: what a model wants there, its task adds.
    """

    kind: ClassVar[str] = "bytes"
    bos_id, eos_id, pad_id, mask_id = (_IDS[word] for word in _CONTROL_BYTES)
    eos_ids: ClassVar[frozenset[int]] = frozenset({eos_id})
    vocabulary_size = 256 + len(_CONTROL_BYTES)

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
    return _CONTROL_BYTES[index - 256].encode() if special else b""


# Text to token ids and back, by the checkpoint's own rules.
#
# A GGUF file names how text is cut into words before the merges ("pre-tokenizer"), it does not
# spell
# the rule out. The names known here, each with the rule that llama.cpp gives it:
#
#     gpt-2    GPT-2's pattern: contractions, letters, digits, signs, each with a space before it
#     smollm   every digit, \p{N}, alone; then GPT-2's pattern on what lies between
#
# SmolLM2 was trained with the second, and its own tokenizer.json says so too. transformers 5.24
# reads
# GGUF files of the Llama family with the first whatever name stands there. The two differ where a
# digit follows two or more spaces ("   1" is one token of three spaces and "1", not two tokens and
# "1"), and on digits outside ASCII. We follow the file.

_CONTROL, _USER_DEFINED = 3, 4


@final
class Tokenizer:
    """Encode and decode text.

    `eos_ids` end a text, `pad_id` fills the short rows of a batch, `bos_id` may begin a text,
    `mask_id` stands for a token that is to be guessed (None where there is none);
    `vocabulary_size` counts the ids, control tokens included.
    """

    def __init__(self, spec: TokenizerSpec, source: Path) -> None:
        self._spec, self._source = spec, source
        self._rules = _build(spec, source)
        self._plain: tokenizers.Tokenizer | None = None
        self.vocabulary_size = int(self._rules.get_vocab_size(with_added_tokens=True))
        self.eos_ids = frozenset(spec.eos_ids)
        self.bos_id = spec.bos_id
        mask: int | None = self._rules.token_to_id(spec.special.get("mask_token", ""))
        self.mask_id = mask
        self.pad_id = spec.pad_id if spec.pad_id is not None else min(spec.eos_ids, default=0)

    @classmethod
    def from_checkpoint(cls, checkpoint: Checkpoint) -> Tokenizer:
        """The checkpoint's tokenizer. Raises CheckpointError where it has none, or a broken one."""
        if checkpoint.tokenizer is None:
            raise CheckpointError(f"{checkpoint.source}: no tokenizer in it (tokenizer.json)")
        return cls(checkpoint.tokenizer, checkpoint.source)

    @property
    def spec(self) -> TokenizerSpec:
        """What the checkpoint said of it."""
        return self._spec

    def to_json(self) -> str:
        """All its rules, in the JSON form of the `tokenizers` library."""
        return str(self._rules.to_str())

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """The ids of `text`.

        With `special`, control tokens that stand in the text, such as `<|im_end|>`, become their
        one id, and the token that begins a text is put first where the model wants it. Without,
        everything is ordinary text: so encode what a stranger wrote. Bytes that the vocabulary
        lacks are dropped, as the model's own tokenizer drops them.
        """
        if not isinstance(text, str):
            raise InvalidArgument(f"text: a str is due, not {type(text).__name__}")
        try:
            rules = self._rules if special else self._without_special()
            return list(rules.encode(text, add_special_tokens=special).ids)
        except (UnicodeEncodeError, TypeError):
            raise InvalidArgument("text: it holds half of a surrogate pair, no UTF-8") from None

    def _without_special(self) -> tokenizers.Tokenizer:
        """The same rules, blind to control tokens. A copy: the switch is one for all threads."""
        if self._plain is None:
            plain = optional("tokenizers").Tokenizer.from_str(self._rules.to_str())
            plain.encode_special_tokens = True
            self._plain = plain
        return self._plain

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        """The text of `ids`; control tokens are written only with `special`.

        Bytes that are no UTF-8 become U+FFFD. Raises InvalidArgument for an id that does not exist.
        """
        for index in ids:
            if not 0 <= index < self.vocabulary_size:
                raise InvalidArgument(
                    f"ids: {index} is none of the ids 0 to {self.vocabulary_size - 1}"
                )
        return str(self._rules.decode(list(ids), skip_special_tokens=not special))

    def stream(self) -> StreamDecoder:
        """A decoder for ids that come one at a time."""
        return StreamDecoder(self)

    def chat(self, messages: Sequence[Mapping[str, str]], *, reply: bool = True) -> str:
        """The text of a conversation by the checkpoint's own chat template.

        `messages`: each with a "role" and a "content". With `reply`, the text ends where the
        model's answer begins. Encode it with `special=True`.
        """
        if self._spec.chat_template is None:
            raise NotSupported(f"{self._source}: the model has no chat template; write plain text")
        return render(self._spec.chat_template, messages, special=self._spec.special, reply=reply)


@final
class StreamDecoder:
    """Joins ids into text as they come, and never gives out half a character.

    The pieces of `push` and the last one of `flush` together are `decode` of all the ids.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        # The last id already written stays as context: some decoders treat a first token apart.
        self._ids: list[int] = []
        self._written = 0

    def push(self, index: int) -> str:
        """The text that is complete now; empty while a character's bytes are still coming."""
        self._ids.append(index)
        text = self._tokenizer.decode(self._ids)
        complete = text.rstrip("\ufffd")
        piece = complete[self._written :]
        self._written = max(self._written, len(complete))
        if complete == text:
            self._ids = self._ids[-1:]
            self._written = len(self._tokenizer.decode(self._ids))
        return piece

    def flush(self) -> str:
        """What is still held back, unfinished bytes as U+FFFD. The decoder is then empty."""
        piece = self._tokenizer.decode(self._ids)[self._written :]
        self._ids, self._written = [], 0
        return piece


def _build(spec: TokenizerSpec, source: Path) -> tokenizers.Tokenizer:
    if isinstance(spec.model, TokenizerFile):
        return _from_file(spec.model)
    return _from_pairs(spec.model, spec, source)


def _from_file(file: TokenizerFile) -> tokenizers.Tokenizer:
    library = optional("tokenizers")
    try:
        rules: tokenizers.Tokenizer = library.Tokenizer.from_str(file.path.read_text("utf-8"))
        # Some files cut every text at a length and fill it up to one: that of a batch long ago.
        rules.no_truncation()
        rules.no_padding()
        return rules
    except Exception as error:  # the library raises bare Exception
        raise damaged(file.path, f"not a tokenizer: {shown(str(error), limit=120)}") from None


def _from_pairs(pairs: BytePairs, spec: TokenizerSpec, source: Path) -> tokenizers.Tokenizer:
    """A byte-level BPE out of a GGUF file's lists."""
    library = optional("tokenizers")
    vocabulary = {token: index for index, token in enumerate(pairs.tokens)}
    if len(vocabulary) != len(pairs.tokens):
        raise damaged(source, f"{len(pairs.tokens) - len(vocabulary):,} tokens stand there twice")
    merges = [tuple(merge.split(" ")) for merge in pairs.merges]
    try:
        rules: tokenizers.Tokenizer = library.Tokenizer(library.models.BPE(vocabulary, merges))
    except Exception as error:  # the library raises bare Exception
        raise damaged(source, f"its merges do not fit: {shown(str(error), limit=120)}") from None
    rules.pre_tokenizer = _pre_tokenizer(pairs.pre, source)
    rules.decoder = library.decoders.ByteLevel()
    _add_special(rules, pairs)
    if spec.add_bos and spec.bos_id is not None:
        bos = pairs.tokens[spec.bos_id]
        rules.post_processor = library.processors.TemplateProcessing(
            single=f"{bos} $A", special_tokens=[(bos, spec.bos_id)]
        )
    return rules


def _add_special(rules: tokenizers.Tokenizer, pairs: BytePairs) -> None:
    added = optional("tokenizers").AddedToken
    for kind, add in ((_CONTROL, rules.add_special_tokens), (_USER_DEFINED, rules.add_tokens)):
        texts = [t for t, k in zip(pairs.tokens, pairs.kinds, strict=True) if k == kind and t]
        add([added(text, normalized=False) for text in texts])


def _pre_tokenizer(name: str, source: Path) -> Any:
    pre = optional("tokenizers").pre_tokenizers
    words = pre.ByteLevel(add_prefix_space=False, use_regex=True)
    known = {
        "gpt-2": lambda: words,
        "smollm": lambda: pre.Sequence([pre.Digits(individual_digits=True), words]),
    }
    if name not in known:
        raise CheckpointError(
            f"{source}: the pre-tokenizer {shown(name)} is not built yet; {' and '.join(known)} are"
        )
    return known[name]()


AnyTokenizer = Tokenizer | ByteTokenizer

BYTES = "bytes"
"""The word for a ``ByteTokenizer``, in folders of our own and in what training is asked."""
