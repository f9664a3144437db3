"""Hugging Face folders: exact tensors, and no damage that goes unseen."""

from __future__ import annotations

import json
import pickle
import random
import struct
from pathlib import Path

import pytest
import torch

from checkpoints.sample_files import TENSORS, write_folder
from eyeline import checkpoints
from eyeline.checkpoints.base import TokenizerFile, optional
from eyeline.errors import CheckpointError, NotSupported

INDEX = "model.safetensors.index.json"
SHARD = "model-00002-of-00003.safetensors"


@pytest.mark.parametrize("shards", [1, 2, 3])
def test_tensors_come_as_they_were_saved(tmp_path: Path, shards: int) -> None:
    checkpoint = checkpoints.open(write_folder(tmp_path / "m", shards=shards))
    assert checkpoint.format == "huggingface"
    assert checkpoint.config["model_type"] == "llama"
    assert checkpoint.tokenizer is None
    assert set(checkpoint.tensors) == set(TENSORS)
    for name, tensor in TENSORS.items():
        info = checkpoint.tensors.info[name]
        assert (info.shape, info.dtype) == (tuple(tensor.shape), tensor.dtype)
        assert info.nbytes == tensor.nbytes
        assert torch.equal(checkpoint.tensors[name], tensor)
        asked = checkpoint.tensors.read(name, dtype=torch.float64)
        assert torch.equal(asked, tensor.double())


def refused(folder: Path, match: str) -> None:
    with pytest.raises(CheckpointError, match=match) as error:
        checkpoints.open(folder)
    assert "\n" not in str(error.value)


def test_every_truncation_is_refused_in_one_line(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m")
    file = folder / "model.safetensors"
    whole = file.read_bytes()
    for size in range(len(whole)):
        file.write_bytes(whole[:size])
        refused(folder, "cut short or damaged")


def test_no_corrupt_header_gives_another_error(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m")
    file = folder / "model.safetensors"
    whole = file.read_bytes()
    header = 8 + struct.unpack("<Q", whole[:8])[0]
    dice = random.Random(0)
    refusals = 0
    for _ in range(1000):
        data = bytearray(whole)
        data[dice.randrange(header)] = dice.randrange(256)
        file.write_bytes(data)
        try:
            tensors = checkpoints.open(folder).tensors
            for name in tensors:
                tensors.read(name)
        except CheckpointError as error:
            refusals += 1
            assert "\n" not in str(error)
    assert refusals > 300


@pytest.mark.parametrize("size", [1 << 63, (1 << 64) - 1, 1 << 40])
def test_absurd_header_sizes_are_refused(tmp_path: Path, size: int) -> None:
    folder = write_folder(tmp_path / "m")
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", size) + bytes(99))
    refused(folder, "cut short or damaged")


def test_a_missing_shard(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", shards=3)
    (folder / SHARD).unlink()
    refused(folder, f"1 of its shards missing: {SHARD}")


def test_a_surplus_shard(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", shards=3)
    (folder / "model-00004-of-00004.safetensors").write_bytes((folder / SHARD).read_bytes())
    refused(folder, "1 of its shards not in the index: model-00004-of-00004.safetensors")


def test_shards_without_an_index(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", shards=3)
    (folder / INDEX).unlink()
    refused(folder, f"3 shards, but {INDEX} is missing")


def test_one_file_and_shards(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", shards=3)
    (folder / "model.safetensors").write_bytes((folder / SHARD).read_bytes())
    refused(folder, "keep one set")


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"none.weight": SHARD}, "lacks 'none.weight'"),
        ({"second.weight": "model-00001-of-00003.safetensors"}, f"not in the index: {SHARD}"),
        ({"first.weight": "../secret.safetensors"}, "'../secret.safetensors' is not the name"),
        ({"first.weight": "/etc/passwd"}, "'/etc/passwd' is not the name"),
        ({"first.weight": 3}, "3 is not the name"),
    ],
)
def test_an_index_that_does_not_fit(tmp_path: Path, change: dict[str, str], match: str) -> None:
    folder = write_folder(tmp_path / "m", shards=3)
    index = json.loads((folder / INDEX).read_text())
    index["weight_map"] |= change
    (folder / INDEX).write_text(json.dumps(index))
    refused(folder, match)


def test_a_shard_with_more_than_the_index_says(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", shards=2)
    index = json.loads((folder / INDEX).read_text())
    del index["weight_map"]["third.weight"]
    (folder / INDEX).write_text(json.dumps(index))
    refused(folder, "also holds 'third.weight'")


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON: nested too deeply"),
        ("[]", "a JSON list where an object is due"),
        ("\xff", "not UTF-8 at byte 0"),
    ],
)
def test_a_broken_config(tmp_path: Path, text: str, match: str) -> None:
    folder = write_folder(tmp_path / "m")
    (folder / "config.json").write_text(text, encoding="latin-1")
    refused(folder, match)
    (folder / "config.json").unlink()
    refused(folder, "config.json: the file is missing")


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.pth", "model.ckpt"])
def test_pickles_are_never_opened(tmp_path: Path, name: str) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return pytest.fail, ("the pickle ran",)

    folder = tmp_path / "m"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / name).write_bytes(pickle.dumps(Bomb()))
    for path in (folder, folder / name):
        refused(path, rf"{name}: pickled weights can run code .* convert them to safetensors")


def test_nothing_there(tmp_path: Path) -> None:
    refused(tmp_path / "none", "No such file")
    (tmp_path / "config.json").write_text("{}")
    refused(tmp_path, "no model.safetensors")
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"12345678")
    refused(file, "give its folder")


def test_what_is_said_of_the_tokenizer(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m")
    (folder / "tokenizer.json").write_text("{}")
    told = {"bos_token": {"content": "<s>"}, "eos_token": "</s>", "chat_template": "{{ 1 }}"}
    (folder / "tokenizer_config.json").write_text(json.dumps(told))
    spec = checkpoints.open(folder).tokenizer
    assert spec is not None
    assert spec.model == TokenizerFile(folder / "tokenizer.json")
    assert spec.eos_ids == (0, 2)
    assert spec.special == {"bos_token": "<s>", "eos_token": "</s>"}
    assert spec.chat_template == "{{ 1 }}"
    (folder / "generation_config.json").write_text('{"eos_token_id": 7}')
    (folder / "chat_template.jinja").write_text("{{ 2 }}")
    spec = checkpoints.open(folder).tokenizer
    assert spec is not None
    assert (spec.eos_ids, spec.chat_template) == ((7,), "{{ 2 }}")
    (folder / "generation_config.json").write_text('{"eos_token_id": "seven"}')
    refused(folder, "'seven' is not a token id")


def test_the_package_to_install_is_named() -> None:
    with pytest.raises(NotSupported, match=r"no_such_package; .* 'eyeline\[app\]'"):
        optional("no_such_package")
