"""Text on stdout, numbers in one line on stderr, and an end that can be asked for."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from cli.conftest import Command
from cli.small_model import END, write_model
from eyeline.generation import stream
from eyeline.loading import load
from eyeline.patterns import Causal, sliding_window, streaming

FIXED = ("--dtype", "float32")


def written(model: Path, prompt: str, count: int, pattern: Any = None, **options: Any) -> str:
    """What the library writes, without the command."""
    found = load(model, pattern=pattern, dtype=torch.float32, **options)
    assert found.tokenizer is not None
    ids = found.tokenizer.encode(prompt)
    stop = found.tokenizer.eos_ids
    return found.tokenizer.decode(list(stream(found.model, ids, max_new_tokens=count, stop=stop)))


def test_it_writes_what_the_library_writes_and_closes_with_numbers(
    eyeline: Command, model: Path
) -> None:
    found = eyeline("generate", model, "abc def", "--max-new-tokens", 13, *FIXED)
    assert found.status == 0
    assert found.out == written(model, "abc def", 13)
    line = r"prompt 7 tokens at [\d,]+/s · written 13 at [\d,.]+/s · cache 13.7 kB · pairs looked "
    assert re.fullmatch(rf"\n{line}at 100 % of causal\n", found.err), found.err


@pytest.mark.parametrize(
    ("text", "pattern"),
    [
        ("streaming(3, 1)", streaming(3, 1)),
        ("0: causal; 1-2: sliding_window(2)", [Causal(), sliding_window(2), sliding_window(2)]),
    ],
)
def test_under_a_pattern(text: str, pattern: Any, eyeline: Command, model: Path) -> None:
    words = ("generate", model, "abc def", "--max-new-tokens", 13, *FIXED, "--json")
    found = eyeline(*words, "--pattern", text).json
    assert found["text"] == written(model, "abc def", 13, pattern) != eyeline(*words).json["text"]


def test_json_says_all_there_is_to_say(eyeline: Command, model: Path) -> None:
    words = ("generate", model, "abc def", "--max-new-tokens", 13, "--pattern", "sliding_window(3)")
    found = eyeline(*words, *FIXED, "--json")
    assert found.err == ""
    answer = found.json
    speeds = (answer.pop("prompt_tokens_per_second"), answer.pop("tokens_per_second"))
    assert all(speed > 0 for speed in speeds)
    assert answer.pop("environment")["torch"] == torch.__version__
    assert answer == {
        "text": answer["text"], "stopped": "length", "prompt_tokens": 7, "new_tokens": 13,
        # The last token is written and not read.
        "pairs": 54.0, "causal_pairs": 190, "share": 54 / 190, "cache_bytes": 3 * 3 * 3 * 20 * 4,
        "model": str(model), "source": str(model), "dtype": "float32",
        "patterns": ["causal & window(left=2, right=0)"], "encodings": "absolute",
    }  # fmt: skip


def test_chance_can_be_repeated(eyeline: Command, model: Path) -> None:
    words = ("generate", model, "abc", "--temperature", 2, "--top-k", 40, "--top-p", 0.9, *FIXED)
    first, again, other = (eyeline(*words, "--seed", seed).out for seed in (1, 1, 2))
    assert first == again != other


def test_recounted_encodings(eyeline: Command, model: Path) -> None:
    words = ("--pattern", "streaming(5, 2)", "--encodings", "recounted", "--max-new-tokens", 40)
    found = eyeline("generate", model, "abc def", *words, *FIXED)
    pattern = streaming(5, 2)
    assert found.out == written(model, "abc def", 40, pattern, encodings="recounted")


def test_a_prompt_from_stdin(
    eyeline: Command, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("abc def"))
    words = ("generate", model, "-", "--max-new-tokens", 5, *FIXED)
    assert eyeline(*words).out == written(model, "abc def", 5)


def test_chat_writes_by_the_models_own_template(eyeline: Command, model: Path) -> None:
    words = ("generate", model, "hello", "--chat", "--max-new-tokens", 5, *FIXED)
    assert eyeline(*words).out == written(model, "[user] hello\n", 5)


def test_a_model_without_template_cannot_chat(eyeline: Command, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "small")
    (folder / "tokenizer_config.json").unlink()
    found = eyeline("generate", folder, "hello", "--chat")
    assert found.status == 2 and "no chat template" in found.err


def test_a_model_without_tokenizer_cannot_write(eyeline: Command, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "small")
    (folder / "tokenizer.json").unlink()
    found = eyeline("generate", folder, "hello")
    assert found.status == 2 and "no tokenizer" in found.err


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("0-3: causal", "there is no layer 3, they are 0 to 2"),
        ("0-1: causal; 1-2: causal", "layer 1 is given twice"),
        ("0-1: causal", "layer 2 of 0 to 2 is given no pattern"),
    ],
)
def test_layers_must_be_those_of_the_model(
    pattern: str, message: str, eyeline: Command, model: Path
) -> None:
    found = eyeline("generate", model, "hello", "--pattern", pattern)
    assert found.status == 2 and message in found.err and found.out == ""


def test_the_end_of_the_text_is_told(eyeline: Command, model: Path) -> None:
    """The model is made to end the text: after the prompt nothing but the end is likely."""
    config = model / "config.json"
    before = config.read_text()
    letter = written(model, "abc", 1)
    try:
        config.write_text(
            before.replace('"eos_token_id": 96', f'"eos_token_id": {ord(letter) - 31}')
        )
        found = eyeline("generate", model, "abc", *FIXED, "--json").json
    finally:
        config.write_text(before)
    assert (found["text"], found["new_tokens"], found["stopped"]) == ("", 0, "end")
    assert END not in found["text"]


def test_an_interrupt_leaves_the_text_so_far(model: Path) -> None:
    """Ctrl-C, as a terminal sends it, in the middle of the writing."""
    command = [sys.executable, "-m", "eyeline", "generate", str(model), "abc"]
    with subprocess.Popen(
        [*command, "--max-new-tokens", "1000000", "--pattern", "streaming(5, 2)", *FIXED],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        # A test run in the background may have been told to ignore interrupts.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as process:
        assert process.stdout is not None
        start = process.stdout.read(20)
        process.send_signal(signal.SIGINT)
        rest, told = process.communicate(timeout=60)
    text, line = (start + rest).decode(), told.decode().strip()
    assert process.returncode == 130
    assert re.match(r"prompt 3 tokens at .* interrupted$", line) and "\n" not in line
    count = int(re.search(r"written ([\d,]+)", line)[1].replace(",", ""))  # type: ignore[index]
    assert len(text) - 1 <= count <= len(text) + 1
    assert text.startswith(written(model, "abc", 20, streaming(5, 2)))


def test_an_interrupt_while_the_prompt_is_read(
    eyeline: Command, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("eyeline.models.llama.Block.forward", interrupted)
    found = eyeline("generate", model, "abc")
    assert (found.status, found.out) == (130, "")
    assert found.err == "\ninterrupted while reading the prompt of 3 tokens\n"
    answer = eyeline("generate", model, "abc", "--json")
    assert answer.status == 130
    assert (answer.json["stopped"], answer.json["prompt_tokens_per_second"]) == ("interrupt", None)


@pytest.mark.model
def test_the_real_model_writes_english(eyeline: Command, model_file: Path) -> None:
    found = eyeline("generate", model_file, "The capital of France is", "--max-new-tokens", 1)
    assert found.out == " Paris"
