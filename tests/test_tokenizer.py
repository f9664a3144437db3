"""The tokenizer: GPT-2's words after single digits, whole characters, control tokens, chat."""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import pytest
import regex
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from eyeline import checkpoints
from eyeline.checkpoints.base import BytePairs, Checkpoint, TokenizerSpec
from eyeline.errors import CheckpointError, InvalidArgument, NotSupported
from eyeline.tokenizer import Tokenizer

MIXED = """\
Ωμέγα – Привет, мир! — 你好，世界。 こんにちは世界 안녕하세요 세계 مرحبا بالعالم नमस्ते दुनिया
שלום עולם สวัสดีชาวโลก ሰላም ልዑል Ḽơᶉëᶆ ȋṕšᶙṁ ℝ→∞ ∑ᵢ xᵢ² ≤ ½ e\u0301 \u200d\ufeff tab\there  two   three
👩‍👩‍👧‍👦 🏳️‍🌈 👍🏽 🇬🇷 🦙.cpp ZWJ\u200d I'll we've 'tis THEY'RE don't #hash @name
a_b-c/d\\e {"k": [1, 2.5e-3]}
def f(x):\n    return x\t# 100 % of 12345\r\n\r\n  trailing   \n\n\n\x00\x07\u2028"""
DIGITS = " ٣٤ ٥ １２３ Ⅷ x² ½ १२ 3.14 2024-01-01 1e9 007"


@pytest.fixture(scope="module")
def real(model_file: Path) -> Tokenizer:
    return Tokenizer.from_checkpoint(checkpoints.open(model_file))


@pytest.fixture
def small(small_gguf: Path) -> Tokenizer:
    return Tokenizer.from_checkpoint(checkpoints.open(small_gguf))


class ByHand:
    """Byte-level BPE from its definition, sharing nothing with the library: words by two regular
    expressions, one after the other, then the merge of lowest rank, leftmost first."""

    GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

    def __init__(self, pairs: BytePairs) -> None:
        self.ids = {token: index for index, token in enumerate(pairs.tokens)}
        self.ranks = {tuple(merge.split(" ")): rank for rank, merge in enumerate(pairs.merges)}
        printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
        others = [byte for byte in range(256) if byte not in printable]
        self.letters = dict(zip(printable, map(chr, printable), strict=True))
        self.letters |= {byte: chr(256 + place) for place, byte in enumerate(others)}
        # SmolLM2 has no token for some rare bytes; its own tokenizer drops them, and so do we.
        self.letters = {b: letter for b, letter in self.letters.items() if letter in self.ids}
        self.known: dict[str, list[int]] = {}

    def words(self, text: str, *, digits: bool) -> Iterator[str]:
        for piece in regex.findall(r"\p{N}|\P{N}+", text) if digits else [text]:
            yield from regex.findall(self.GPT2, piece)

    def encode(self, text: str, *, digits: bool = True) -> list[int]:
        found: list[int] = []
        for word in self.words(text, digits=digits):
            if word not in self.known:
                self.known[word] = self.merge(
                    [self.letters[byte] for byte in word.encode() if byte in self.letters]
                )
            found += self.known[word]
        return found

    def merge(self, parts: list[str]) -> list[int]:
        while len(parts) > 1:
            ranked = [
                (self.ranks[pair], place)
                for place, pair in enumerate(pairwise(parts))
                if pair in self.ranks
            ]
            if not ranked:
                break
            _, place = heapq.nsmallest(1, ranked)[0]
            parts[place : place + 2] = [parts[place] + parts[place + 1]]
        return [self.ids[part] for part in parts]


def pairs_of(checkpoint: Checkpoint) -> BytePairs:
    assert checkpoint.tokenizer is not None
    assert isinstance(checkpoint.tokenizer.model, BytePairs)
    return checkpoint.tokenizer.model


@pytest.fixture(scope="module")
def by_hand(model_file: Path) -> ByHand:
    return ByHand(pairs_of(checkpoints.open(model_file)))


def lines() -> Iterator[str]:
    for text in topics.values():
        yield from text.splitlines()


@pytest.mark.model
def test_every_line_of_the_language_reference(real: Tokenizer, by_hand: ByHand) -> None:
    for line in lines():
        assert real.encode(line) == by_hand.encode(line), line
        assert real.decode(real.encode(line)) == line


@pytest.mark.model
@pytest.mark.parametrize("text", [MIXED, DIGITS, ""])
def test_mixed_scripts_and_emoji(real: Tokenizer, by_hand: ByHand, text: str) -> None:
    assert real.encode(text) == by_hand.encode(text)
    assert real.decode(real.encode(text)) == text


@pytest.mark.model
@given(text=st.text(max_size=60))
def test_any_text(real: Tokenizer, by_hand: ByHand, text: str) -> None:
    ids = real.encode(text, special=False)
    assert ids == by_hand.encode(text)
    if all(byte in by_hand.letters for byte in text.encode()):
        assert real.decode(ids) == text


@pytest.mark.model
@given(text=st.text(max_size=40), control=st.sampled_from(["", "<|im_end|>"]))
def test_streamed_pieces_are_whole_and_add_up(real: Tokenizer, text: str, control: str) -> None:
    ids = real.encode(text + control + text)
    stream = real.stream()
    pieces = [stream.push(index) for index in ids]
    assert "".join(pieces) + stream.flush() == real.decode(ids)
    if real.decode(ids) == text + text and "\ufffd" not in text:
        assert not any("\ufffd" in piece for piece in pieces)


@pytest.mark.model
@given(st.data())
def test_any_ids_stream_to_what_they_decode_to(real: Tokenizer, data: st.DataObject) -> None:
    ids = data.draw(st.lists(st.integers(0, real.vocabulary_size - 1), max_size=30))
    stream = real.stream()
    assert "".join(map(stream.push, ids)) + stream.flush() == real.decode(ids)


@pytest.mark.model
def test_a_character_comes_when_its_last_byte_does(real: Tokenizer) -> None:
    ids = real.encode("ð🦙!")
    stream = real.stream()
    pieces = [stream.push(index) for index in ids]
    assert [piece for piece in pieces if piece] == ["ð", "🦙", "!"]
    assert len(pieces) > 3
    broken = real.stream()
    assert [broken.push(index) for index in ids[:-2]][-1] == ""
    assert broken.flush() == "\ufffd"
    assert broken.push(ids[-1]) == "!"


@pytest.mark.model
def test_control_tokens_and_chat(real: Tokenizer) -> None:
    text = real.chat([{"role": "user", "content": "Hi {{ 7 }}"}])
    assert text.startswith("<|im_start|>system\n")
    assert text.endswith("user\nHi {{ 7 }}<|im_end|>\n<|im_start|>assistant\n")
    ids = real.encode(text)
    assert ids.count(1) == 3
    assert ids.count(2) == 2
    assert real.decode(ids, special=True) == text
    assert "<|" not in real.decode(ids)
    closed = real.chat([{"role": "user", "content": "Hi"}], reply=False)
    assert closed.endswith("Hi<|im_end|>\n")
    plain = real.encode("<|im_end|>", special=False)
    assert 2 not in plain
    assert real.decode(plain) == "<|im_end|>"
    assert (real.eos_ids, real.pad_id, real.bos_id) == (frozenset({2}), 2, 1)
    assert real.vocabulary_size == 49152


@pytest.mark.model
@pytest.mark.slow
def test_transformers_differs_only_where_it_forgets_the_digits(
    model_file: Path, real: Tokenizer, by_hand: ByHand
) -> None:
    """transformers reads this file with GPT-2's rule, though it names smollm's: with that rule we
    would agree on every line; with the right one only lines with digits after spaces differ."""
    from transformers import AutoTokenizer

    other: Any = AutoTokenizer.from_pretrained(model_file.parent, gguf_file=model_file.name)
    different = []
    for text in [*lines(), MIXED, DIGITS]:
        theirs = other.encode(text, add_special_tokens=False)
        assert theirs == by_hand.encode(text, digits=False), text
        if real.encode(text) != theirs:
            different.append(text)
    assert DIGITS in different
    assert all(regex.search(r"\s{2}\p{N}|[^\x00-\x7f]", text) for text in different)
    assert len(different) < 100
    messages = [{"role": "user", "content": "Who are you?"}]
    theirs = other.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert real.chat(messages) == theirs


def test_small(small: Tokenizer) -> None:
    assert small.encode("ab a") == [5, 6]
    assert small.encode("c<|end|>a") == [3, 0, 1]
    assert small.decode([5, 0, 6]) == "ab a"
    assert small.decode([5, 0, 6], special=True) == "ab<|end|> a"


@pytest.mark.parametrize("ids", [[8], [-1], [0, 99]])
def test_ids_that_do_not_exist(small: Tokenizer, ids: list[int]) -> None:
    with pytest.raises(InvalidArgument, match=f"{ids[-1]} is none of the ids 0 to 7"):
        small.decode(ids)


@pytest.mark.parametrize("text", ["\ud800", b"bytes", None])
def test_what_is_no_text(small: Tokenizer, text: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"a str is due|half of a surrogate"):
        small.encode(text)


def changed(small_gguf: Path, *, pairs: dict[str, Any] | None = None, **spec: Any) -> Tokenizer:
    """The small file's tokenizer with some fields replaced."""
    checkpoint = checkpoints.open(small_gguf)
    assert checkpoint.tokenizer is not None
    model = replace(pairs_of(checkpoint), **(pairs if pairs is not None else {}))
    return Tokenizer(replace(checkpoint.tokenizer, model=model, **spec), small_gguf)


@pytest.mark.parametrize(
    ("pairs", "match"),
    [
        ({"pre": "llama-bpe"}, "pre-tokenizer 'llama-bpe' is not built yet; gpt-2 and smollm are"),
        ({"merges": ["a x"]}, "merges do not fit"),
        ({"merges": ["a b c"]}, "merges do not fit"),
        ({"merges": ["ab"]}, "merges do not fit"),
        ({"tokens": ["a"] * 8}, "7 tokens stand there twice"),
    ],
)
def test_broken_lists_are_refused(small_gguf: Path, pairs: dict[str, Any], match: str) -> None:
    with pytest.raises(CheckpointError, match=match) as error:
        changed(small_gguf, pairs=pairs)
    assert "\n" not in str(error.value)


def test_a_text_begins_with_bos_where_the_model_wants_it(small_gguf: Path) -> None:
    tokenizer = changed(small_gguf, bos_id=0, add_bos=True)
    assert tokenizer.encode("ab") == [0, 5]
    assert tokenizer.encode("ab", special=False) == [5]


def test_each_digit_is_a_word_of_its_own(small_gguf: Path) -> None:
    digits = {"tokens": ["<|end|>", "1", "2", "12", "Ġ", "ĠĠ", "Ġ1", "x"], "merges": []}
    digits["merges"] = ["1 2", "Ġ Ġ", "Ġ 1"]
    smollm = changed(small_gguf, pairs=digits)
    assert smollm.encode("12  1") == [1, 2, 5, 1]
    gpt2 = changed(small_gguf, pairs=digits | {"pre": "gpt-2"})
    assert gpt2.encode("12  1") == [3, 4, 6]


def test_a_stream_keeps_the_spaces_of_words(small: Tokenizer, tmp_path: Path) -> None:
    """Some decoders drop the space before the first word they are given."""
    rules = tokenizers.Tokenizer(tokenizers.models.BPE({"▁hey": 0, "▁you": 1, "!": 2}, []))
    rules.decoder = tokenizers.decoders.Metaspace()
    file = tmp_path / "tokenizer.json"
    file.write_text(rules.to_str())
    read = Tokenizer(replace(small._spec, model=checkpoints.TokenizerFile(file)), tmp_path)
    stream = read.stream()
    pieces = [stream.push(index) for index in (0, 1, 2, 1)]
    assert pieces == ["hey", " you", "!", " you"]
    assert read.decode([0, 1, 2, 1]) == "hey you! you"


def test_user_defined_tokens_are_text(small_gguf: Path) -> None:
    tokenizer = changed(small_gguf, pairs={"kinds": [3, 1, 1, 1, 1, 4, 1, 1], "merges": []})
    assert tokenizer.encode("abb") == [5, 2]
    assert tokenizer.decode([5, 2]) == "abb"


def test_a_model_without_tokenizer_or_template(small_gguf: Path) -> None:
    with pytest.raises(NotSupported, match="no chat template"):
        changed(small_gguf, chat_template=None).chat([])
    none = replace(checkpoints.open(small_gguf), tokenizer=None)
    with pytest.raises(CheckpointError, match="no tokenizer in it"):
        Tokenizer.from_checkpoint(none)


def test_a_tokenizer_file(small: Tokenizer, tmp_path: Path) -> None:
    text = small._rules.to_str()
    spec: TokenizerSpec = small._spec
    file = tmp_path / "tokenizer.json"
    file.write_text(text)
    read = Tokenizer(replace(spec, model=checkpoints.TokenizerFile(file)), tmp_path)
    assert read.encode("ab a<|end|>") == small.encode("ab a<|end|>") == [5, 6, 0]
    broken = json.loads(text)
    broken["model"]["merges"] = [["a", "x"]]
    for bad in ("", "{}", text[:-1], "[" * 9999, json.dumps(broken), "\x00"):
        file.write_text(bad)
        with pytest.raises(CheckpointError, match="not a tokenizer") as error:
            Tokenizer(replace(spec, model=checkpoints.TokenizerFile(file)), tmp_path)
        assert "\n" not in str(error.value)
