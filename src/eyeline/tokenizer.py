"""Text to token ids and back, by the checkpoint's own rules.

A GGUF file names how text is cut into words before the merges ("pre-tokenizer"), it does not spell
the rule out. The names known here, each with the rule that llama.cpp gives it:

    gpt-2    GPT-2's pattern: contractions, letters, digits, signs, each with a space before it
    smollm   every digit, \\p{N}, alone; then GPT-2's pattern on what lies between

SmolLM2 was trained with the second, and its own tokenizer.json says so too. transformers 5.24 reads
GGUF files of the Llama family with the first whatever name stands there. The two differ where a
digit follows two or more spaces ("   1" is one token of three spaces and "1", not two tokens and
"1"), and on digits outside ASCII. We follow the file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, final

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
        from eyeline.checkpoints.chat_template import render

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
