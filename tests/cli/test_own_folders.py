"""generate and compare with folders of our own: bytes, learned positions, other families."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from cli.conftest import Command
from eyeline.generation import stream
from eyeline.loading import save
from eyeline.models import Bert, BertConfig, Model
from eyeline.patterns import sliding_window
from eyeline.tokenizer import ByteTokenizer
from models import tiny, tiny_gpt2

GPT2 = replace(tiny_gpt2.CONFIG, vocabulary=260, trained_length=211)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GPT-2 of bytes with 211 learned positions."""
    model = tiny_gpt2.gpt2(GPT2, sliding_window(53))
    return save(model, tmp_path_factory.mktemp("own") / "bytes", tokenizer=ByteTokenizer())


def test_it_writes_what_the_library_writes(eyeline: Command, folder: Path) -> None:
    found = eyeline("generate", folder, "abc", "--max-new-tokens", 13)
    tokenizer, model = ByteTokenizer(), tiny_gpt2.gpt2(GPT2, sliding_window(53))
    ids = list(stream(model, list(b"abc"), max_new_tokens=13, stop=tokenizer.eos_ids))
    assert found.status == 0 and found.out == tokenizer.decode(ids)
    answer = eyeline("generate", folder, "abc", "--max-new-tokens", 5, "--json").json
    assert answer["patterns"] == [str(sliding_window(53))] and answer["dtype"] == "float32"
    narrow = ("--pattern", "0: causal; 1-2: sliding_window(2)", "--json")
    assert len(eyeline("generate", folder, "abc", *narrow).json["patterns"]) == 2


def test_it_says_that_the_positions_ended(eyeline: Command, folder: Path) -> None:
    found = eyeline("generate", folder, "x" * 208, "--seed", 3, "--temperature", 1)
    assert found.status == 0 and "written 4 at" in found.err
    assert found.err.endswith(" · no position is left\n")
    answer = eyeline("generate", folder, "x" * 208, "--json", "--seed", 3, "--temperature", 1).json
    assert (answer["stopped"], answer["new_tokens"]) == ("positions", 4)


def test_a_prompt_longer_than_the_positions(eyeline: Command, folder: Path) -> None:
    found = eyeline("generate", folder, "x" * 212)
    assert found.status == 2 and found.err.count("\n") == 1
    assert "a prompt of 212 tokens: this model has learned 211 positions" in found.err


def test_bytes_cannot_chat_and_learned_positions_are_not_recounted(
    eyeline: Command, folder: Path
) -> None:
    assert "no chat template" in eyeline("generate", folder, "abc", "--chat").err
    found = eyeline("generate", folder, "abc", "--encodings", "recounted")
    assert found.status == 2 and "GPT2 has no encodings" in found.err


def test_a_model_that_does_not_write(eyeline: Command, tmp_path: Path) -> None:
    config = BertConfig(
        vocabulary=260, width=33, hidden=47, layers=1, heads=3, trained_length=31, classes=2
    )
    save(Bert(config), tmp_path, tokenizer=ByteTokenizer())
    for verb in (("generate", tmp_path, "abc"), ("compare", tmp_path)):
        found = eyeline(*verb)
        assert found.status == 2 and "holds a Bert, and a LanguageModel is asked for" in found.err


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_models_of_bytes_are_compared(
    family: str, eyeline: Command, text: Path, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model: Model = tiny_gpt2.gpt2(GPT2)
    if family == "llama":
        model = tiny.llama(replace(tiny.CONFIG, vocabulary=260, tied=True))
    save(model, tmp_path, tokenizer=ByteTokenizer())
    words = ("compare", tmp_path, "--text", text, "--rounds", 1, "--json")
    length = () if family == "gpt2" else ("--length", 311)
    found = eyeline(*words, *length, "--pattern", "sliding_window(31)")
    assert found.status == 0, found.err
    # Without --length, as many as there are positions for with the 25 that are written after them.
    assert found.json["length"] == (186 if family == "gpt2" else 311)
    assert [row["label"] for row in found.json["rows"]] == ["causal", "sliding_window(31)"]
    assert all(row["tokens_per_second"] > 0 for row in found.json["rows"])


def test_a_text_longer_than_the_positions_is_not_compared(
    eyeline: Command, folder: Path, text: Path
) -> None:
    found = eyeline("compare", folder, "--text", text, "--length", 187)
    assert found.status == 2
    assert "187 tokens, and 25 are written after them: this model has learned 211" in found.err
    assert "enough to read 186" in found.err
