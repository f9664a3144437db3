"""GGUF files: the numbers are the gguf library's, and no damage gets past the header."""

from __future__ import annotations

import random
import struct
import tracemalloc
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from checkpoints.sample_files import KINDS, MERGES, QUANTISED, WORDS, numbers, write_gguf
from eyeline import checkpoints
from eyeline.checkpoints.base import BytePairs
from eyeline.errors import CheckpointError, EyelineError
from eyeline.tokenizer import Tokenizer


def reference(path: Path) -> dict[str, np.ndarray]:
    return {
        t.name: gguf.dequantize(t.data, t.tensor_type).reshape(tuple(t.shape[::-1]))
        for t in gguf.GGUFReader(path).tensors
    }


def test_tensors_are_what_the_library_reads(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "all.gguf", kinds=QUANTISED)
    tensors = checkpoints.open(path).tensors
    expected = reference(path)
    assert set(tensors) == set(expected) == {"plain", "half", *QUANTISED}
    for name, values in expected.items():
        assert tensors.info[name].shape == values.shape
        assert np.array_equal(tensors[name].float().numpy(), values), name
    assert torch.equal(tensors["plain"], torch.from_numpy(numbers(3, 5)))


def test_long_tensors_are_expanded_piece_by_piece(tmp_path: Path) -> None:
    path = tmp_path / "long.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    kind = gguf.GGMLQuantizationType.Q4_1
    writer.add_tensor("long", gguf.quants.quantize(numbers(4099, 32), kind), raw_dtype=kind)
    for write in ("header", "kv_data", "tensors"):
        getattr(writer, f"write_{write}_to_file")()
    writer.close()
    tensors = checkpoints.open(path).tensors
    assert np.array_equal(tensors["long"].numpy(), reference(path)["long"])


def test_dtypes(small_gguf: Path) -> None:
    tensors = checkpoints.open(small_gguf).tensors
    assert tensors["Q4_1"].dtype == torch.float32 == tensors.info["Q4_1"].dtype
    assert tensors["half"].dtype == torch.float16
    asked = tensors.read("Q4_1", dtype=torch.bfloat16)
    assert torch.equal(asked, tensors["Q4_1"].bfloat16())
    tensors["plain"].add_(1)
    assert torch.equal(tensors["plain"], torch.from_numpy(numbers(3, 5))), "the file is not written"


def test_unknown_names_are_key_errors(small_gguf: Path) -> None:
    tensors = checkpoints.open(small_gguf).tensors
    assert "none" not in tensors
    with pytest.raises(KeyError):
        tensors["none"]


def test_config_and_tokenizer_stand_apart(small_gguf: Path) -> None:
    checkpoint = checkpoints.open(small_gguf)
    assert checkpoint.format == "gguf"
    assert checkpoint.config["llama.block_count"] == 1
    assert checkpoint.config["llama.rope.freq_base"] == 1e5
    assert not any(key.startswith("tokenizer") for key in checkpoint.config)
    spec = checkpoint.tokenizer
    assert spec is not None
    assert spec.eos_ids == (0,)
    assert isinstance(spec.model, BytePairs)
    assert list(spec.model.tokens) == WORDS
    assert list(spec.model.kinds) == KINDS
    assert list(spec.model.merges) == MERGES


def test_a_folder_with_one_gguf_stands_for_it(small_gguf: Path) -> None:
    assert checkpoints.open(small_gguf.parent).source == small_gguf
    write_gguf(small_gguf.with_name("other.gguf"))
    with pytest.raises(CheckpointError, match=r"2 GGUF files.*other\.gguf, small\.gguf"):
        checkpoints.open(small_gguf.parent)


def use(path: Path) -> None:
    """All that loading does with a file."""
    checkpoint = checkpoints.open(path)
    for name in checkpoint.tensors:
        checkpoint.tensors.read(name)
    if checkpoint.tokenizer is not None:
        Tokenizer.from_checkpoint(checkpoint).encode("ab a")


def test_every_truncation_is_refused_in_one_line(small_gguf: Path) -> None:
    whole = small_gguf.read_bytes()
    use(small_gguf)
    cut = small_gguf.with_name("cut.gguf")
    for size in range(len(whole)):
        cut.write_bytes(whole[:size])
        with pytest.raises(CheckpointError) as error:
            checkpoints.open(cut)
        assert "\n" not in str(error.value)


def test_no_corrupt_byte_gives_another_error(small_gguf: Path) -> None:
    whole = small_gguf.read_bytes()
    header = len(whole) - 1024
    bad = small_gguf.with_name("bad.gguf")
    dice = random.Random(0)
    refused = 0
    for _ in range(1500):
        data = bytearray(whole)
        for _ in range(dice.choice((1, 1, 2, 8))):
            data[dice.randrange(header)] = dice.choice((0, 1, 127, 128, 255, dice.randrange(256)))
        bad.write_bytes(data)
        try:
            use(bad)
        except EyelineError as error:
            refused += 1
            assert "\n" not in str(error)
    assert refused > 500


@pytest.mark.parametrize("field", [8, 16])
@pytest.mark.parametrize("count", [1 << 63, (1 << 64) - 1, 1 << 40, 1 << 20])
def test_absurd_counts_allocate_nothing(small_gguf: Path, field: int, count: int) -> None:
    data = bytearray(small_gguf.read_bytes())
    data[field : field + 8] = struct.pack("<Q", count)
    refuse_cheaply(small_gguf, bytes(data), f"{count:,}")


@pytest.mark.parametrize("kind", [4, 8, 9])
def test_absurd_lengths_allocate_nothing(tmp_path: Path, kind: int) -> None:
    key = struct.pack("<Q3s", 3, b"key")
    listed = struct.pack("<IIQ", 9, kind, 1 << 63)
    text = struct.pack("<IQ", 8, 1 << 63)
    for value in (listed, text):
        data = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + key + value + bytes(99)
        refuse_cheaply(tmp_path / "absurd.gguf", data, "list of type 9|9,223,372,036,854,775,808")


def refuse_cheaply(path: Path, data: bytes, told: str) -> None:
    path.write_bytes(data)
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError, match=told):
            checkpoints.open(path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def one_tensor(
    *, sizes: tuple[int, ...] = (4,), kind: int = 0, offset: int = 0, data: int = 64
) -> bytes:
    """A file with one tensor, told as given, and `data` bytes of data."""
    head = b"GGUF" + struct.pack("<IQQ", 3, 1, 0)
    tensor = struct.pack("<Q1sI", 1, b"t", len(sizes))
    tensor += struct.pack(f"<{len(sizes)}QIQ", *sizes, kind, offset)
    start = -(-len(head + tensor) // 32) * 32
    return (head + tensor).ljust(start, b"\0") + bytes(data)


@pytest.mark.parametrize(
    ("told", "match"),
    [
        ({"sizes": (1 << 62, 1 << 62)}, "cut short"),
        ({"sizes": (0, 4)}, "dimension is 0"),
        ({"sizes": (1, 1, 1, 1, 1)}, "5 dimensions"),
        ({"kind": 250}, "type 250, which is unknown"),
        ({"kind": 4}, "type 4, which is unknown"),
        ({"kind": 2}, "rows of 4 do not divide into Q4_0's blocks of 32"),
        ({"offset": 1 << 63}, "cut short"),
        ({"offset": 8}, "alignment 32"),
    ],
)
def test_impossible_tensors_are_refused(tmp_path: Path, told: dict[str, int], match: str) -> None:
    path = tmp_path / "one.gguf"
    path.write_bytes(one_tensor())
    assert checkpoints.open(path).tensors["t"].tolist() == [0, 0, 0, 0]
    path.write_bytes(one_tensor(**told))
    with pytest.raises(CheckpointError, match=match):
        checkpoints.open(path)


def test_names_that_stand_there_twice(tmp_path: Path) -> None:
    key = struct.pack("<Q3sII", 3, b"key", 4, 3)
    tensor = struct.pack("<Q1sIQIQ", 1, b"t", 1, 4, 0, 0)
    path = tmp_path / "twice.gguf"
    for counts, twice in (((0, 2), key * 2), ((2, 0), tensor * 2)):
        path.write_bytes((b"GGUF" + struct.pack("<IQQ", 3, *counts) + twice).ljust(999, b"\0"))
        with pytest.raises(CheckpointError, match="stands there twice"):
            checkpoints.open(path)


@pytest.mark.parametrize(
    ("start", "match"),
    [
        (b"", "not a GGUF file"),
        (b"GGUX", "not a GGUF file"),
        (b"GGUF\x01\0\0\0", "version 1"),
        (b"GGUF\0\0\0\x03", "big-endian"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, start: bytes, match: str) -> None:
    path = tmp_path / "other.gguf"
    path.write_bytes(start)
    with pytest.raises(CheckpointError, match=match):
        checkpoints.open(path)


def test_blocks_that_nobody_expands_are_refused_by_name(
    small_gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(*_: object) -> None:
        raise NotImplementedError

    monkeypatch.setattr(gguf, "dequantize", unknown)
    with pytest.raises(CheckpointError, match="stored as Q4_1"):
        checkpoints.open(small_gguf).tensors["Q4_1"]


def test_a_part_of_a_split_model_is_refused(tmp_path: Path) -> None:
    key = struct.pack("<Q11sII", 11, b"split.count", 4, 3)
    path = tmp_path / "part.gguf"
    path.write_bytes((b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + key).ljust(96, b"\0"))
    with pytest.raises(CheckpointError, match="split into 3 files"):
        checkpoints.open(path)


@pytest.mark.model
def test_the_real_file(model_file: Path) -> None:
    tensors = checkpoints.open(model_file).tensors
    assert len(tensors) == 272
    for tensor in gguf.GGUFReader(model_file).tensors[:12]:
        values = gguf.dequantize(tensor.data, tensor.tensor_type)
        assert np.array_equal(tensors[tensor.name].numpy().ravel(), values.ravel())
