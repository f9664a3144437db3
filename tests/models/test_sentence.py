"""What a folder says of sentence vectors is honoured or refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from eyeline.errors import CheckpointError, EyelineError, NotSupported
from eyeline.models.sentence import SentenceSettings
from models.small_encoder import FILES, MODULES, write_json
from models.tiny import CONFIG as LLAMA
from models.tiny_bert import CONFIG

POOLING: Any = FILES["1_Pooling/config.json"]
READ = "sentence_bert_config.json"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, value in FILES.items():
        write_json(tmp_path, name, value)
    return tmp_path


def found(folder: Path) -> SentenceSettings:
    return SentenceSettings.of_folder(folder, CONFIG)


def test_what_the_folder_says(folder: Path) -> None:
    assert found(folder) == SentenceSettings("mean", True, 11)
    write_json(folder, "modules.json", MODULES[:2])
    assert found(folder) == SentenceSettings("mean", False, 11)


def test_a_folder_that_says_nothing(tmp_path: Path) -> None:
    assert found(tmp_path) == SentenceSettings("mean", False, 23)
    assert SentenceSettings.of_folder(tmp_path, LLAMA) == SentenceSettings("mean", False, None)


@pytest.mark.parametrize("how", ["mean", "cls", "max"])
def test_each_pooling(how: str, folder: Path) -> None:
    modes = {"mean": "mean_tokens", "cls": "cls_token", "max": "max_tokens"}
    flags = {f"pooling_mode_{word}": name == how for name, word in modes.items()}
    write_json(folder, "1_Pooling/config.json", {**POOLING, **flags})
    assert found(folder).how == how


@pytest.mark.parametrize(("said", "tokens"), [(17, 17), (512, 23), (10**30, 23), (None, 23)])
def test_without_a_longest_text_it_is_what_tokenizer_and_model_take(
    said: int | None, tokens: int, folder: Path
) -> None:
    write_json(folder, READ, {"max_seq_length": None})
    write_json(folder, "tokenizer_config.json", {"model_max_length": said})
    assert found(folder).max_tokens == tokens
    (folder / READ).unlink()
    assert found(folder).max_tokens == tokens


def steps(*kinds: str, path: str = "1_Pooling") -> list[dict[str, str]]:
    return [
        {"type": f"sentence_transformers.models.{kind}", "path": path if kind == "Pooling" else ""}
        for kind in kinds
    ]


@pytest.mark.parametrize(
    ("name", "value", "match"),
    [
        ("modules.json", steps("Transformer"), "the steps .* are not built yet"),
        ("modules.json", steps("Transformer", "Pooling", "Dense"), "Dense"),
        ("modules.json", steps("Transformer", "Pooling", "Pooling"), "the steps .* not built yet"),
        ("modules.json", steps("Pooling", "Transformer"), "the steps .* are not built yet"),
        ("modules.json", [*steps("Transformer"), {"type": "own.Pool", "path": ""}], "own.Pool"),
        ("modules.json", steps("Transformer", "Pooling", path="../other"), "'../other' is not the"),
        ("modules.json", steps("Transformer", "Pooling", path=""), "'' is not the name"),
        ("modules.json", [{**MODULES[0], "path": "0_Transformer"}, *MODULES[1:]], "0_Transformer"),
        ("modules.json", [3], "3 is no step with a path"),
        ("modules.json", {"0": 1}, "a JSON dict where a list is due"),
        ("1_Pooling/config.json", {**POOLING, "word_embedding_dimension": 384}, "dimension=384"),
        (
            "1_Pooling/config.json",
            {**POOLING, "pooling_mode_cls_token": True},
            "2 poolings",
        ),
        ("1_Pooling/config.json", {**POOLING, "pooling_mode_mean_tokens": False}, "0 poolings"),
        ("1_Pooling/config.json", {**POOLING, "pooling_mode_lasttoken": True}, "lasttoken=True"),
        ("1_Pooling/config.json", {**POOLING, "pooling_mode_mean_tokens": 1}, "not true or false"),
        ("1_Pooling/config.json", {**POOLING, "weights": 2}, "not ignored: weights"),
        (READ, {"max_seq_length": 11, "do_lower_case": True}, "do_lower_case=True"),
        (READ, {"max_seq_length": -1}, "max_seq_length=-1"),
        (READ, {"stride": 3}, "not ignored: stride"),
        ("config_sentence_transformers.json", {"default_prompt_name": "query"}, "default_prompt"),
        ("config_sentence_transformers.json", {"similarity_fn_name": "dot"}, "similarity_fn_name"),
        ("config_sentence_transformers.json", {"other": 1}, "not ignored: other"),
    ],
)
def test_what_is_not_understood_is_refused(name: str, value: Any, match: str, folder: Path) -> None:
    write_json(folder, name, value)
    with pytest.raises((NotSupported, CheckpointError), match=match) as error:
        found(folder)
    assert "\n" not in str(error.value) and "json" in str(error.value)


def test_a_pooling_whose_file_is_missing(folder: Path) -> None:
    (folder / "1_Pooling/config.json").unlink()
    with pytest.raises(EyelineError, match="the file is missing"):
        found(folder)
