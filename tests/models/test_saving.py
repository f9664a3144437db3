"""A saved model comes back bit for bit, and nothing is ever half there."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from torch import Tensor

from eyeline.checkpoints.base import TokenizerFile, TokenizerSpec
from eyeline.encodings.rotary_scaling import NTK, Linear, Llama3, YaRN
from eyeline.errors import CheckpointError, EyelineError, InvalidArgument, NotSupported
from eyeline.loading import load, save
from eyeline.loading.native_folder import from_plain, read_description, to_plain
from eyeline.loading.saver import write_whole
from eyeline.mechanisms import recipe
from eyeline.models import (
    FAMILIES,
    Bert,
    BertClassifier,
    BertConfig,
    BertMasked,
    LanguageModel,
    Llama,
    Model,
    Transformer,
    TransformerConfig,
)
from eyeline.patterns import Causal, Explicit, Pattern, Predicate, Window, sliding_window, streaming
from eyeline.tokenizer import ByteTokenizer, Tokenizer
from models import tiny, tiny_gpt2

MIXED = [Causal(), streaming(5, 2), Causal() & ~Window(left=1, right=0)]
RECIPES = [recipe("exact"), recipe("extra_keys(count=3)"), recipe("exact")]
BERT = BertConfig(
    vocabulary=89, width=33, hidden=47, layers=2, heads=3, trained_length=31, classes=5
)
PAIRS = TransformerConfig(vocabulary=89, width=22, hidden=47, layers=2, heads=2, decoder_layers=1)

MODELS: dict[str, Callable[[], Model]] = {
    "llama": tiny.llama,
    "llama tied, recounted, mixed": lambda: tiny.llama(
        replace(tiny.CONFIG, tied=True), MIXED, mechanism=RECIPES, encodings="recounted"
    ),
    "llama scaled": lambda: tiny.llama(
        replace(tiny.CONFIG, rotary_scaling=YaRN(3.0, original_length=11))
    ),
    "gpt2": tiny_gpt2.gpt2,
    "gpt2 untied, mixed": lambda: tiny_gpt2.gpt2(
        replace(tiny_gpt2.CONFIG, tied=False), MIXED, mechanism=RECIPES
    ),
    "gpt2 linear": lambda: tiny_gpt2.gpt2(
        replace(tiny_gpt2.CONFIG, attention_dropout=0.0),
        mechanism=recipe("linear(feature_map=elu)"),
    ),
    "bert": lambda: Bert(BERT, [Window(3, 3), Window(5, 5)]),
    "bert masked": lambda: BertMasked(BERT),
    "bert classifier": lambda: BertClassifier(BERT),
    "transformer": lambda: Transformer(PAIRS, memory_pattern=Window(3, 3)),
}


def stored(model: Model) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


@pytest.mark.parametrize("name", MODELS)
def test_a_saved_model_comes_back(name: str, tmp_path: Path) -> None:
    model = MODELS[name]()
    save(model, tmp_path / "new" / "folder")
    found = load(tmp_path / "new" / "folder", packed=False)
    assert type(found.model) is type(model) and found.config == model.config
    assert found.model.choices() == model.choices()
    before, after = stored(model), stored(found.model)
    assert list(before) == list(after)
    assert all(torch.equal(before[key], after[key]) for key in before)
    assert not found.model.training and found.tokenizer is None
    if isinstance(model, LanguageModel):
        assert torch.equal(found.model(tiny.ids(2, 19)), model.eval()(tiny.ids(2, 19)))
        tied = found.config.tied
        assert (found.model.head.weight is found.model.embedding.weight) is tied


def test_all_files_may_be_read_by_the_same(tmp_path: Path) -> None:
    (tmp_path / "another").touch()
    save(MODELS["bert"](), tmp_path / "model")
    modes = {path.stat().st_mode for path in (tmp_path / "model").iterdir()}
    assert modes == {(tmp_path / "another").stat().st_mode}


def test_every_family_is_saved_here() -> None:
    assert {FAMILIES[name].model for name in FAMILIES} == {type(make()) for make in MODELS.values()}


def test_what_is_packed_is_saved_as_it_was(tmp_path: Path) -> None:
    """Fast layers hold some weights by columns, in another order in memory."""
    from eyeline.layers import pack

    model = tiny_gpt2.gpt2()
    want = stored(model)
    pack(model)
    save(model, tmp_path)
    found = stored(load(tmp_path, packed=True).model)
    assert all(torch.equal(want[key], found[key]) for key in want)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_the_dtype_is_that_of_the_file_unless_asked(dtype: torch.dtype, tmp_path: Path) -> None:
    save(tiny.llama().to(dtype), tmp_path)
    assert {p.dtype for p in load(tmp_path).model.parameters()} == {dtype}
    assert load(tmp_path, dtype=torch.float16).model.norm.dtype == torch.float16


def test_other_choices_when_it_is_loaded(tmp_path: Path) -> None:
    save(tiny.llama(pattern=MIXED), tmp_path)
    found = load(tmp_path, pattern=sliding_window(3), encodings="recounted").model
    assert found.patterns == (sliding_window(3),) and found.encodings == "recounted"
    with pytest.raises(CheckpointError, match=r"'layers.0.attention.mechanism.key'"):
        load(tmp_path, mechanism=recipe("extra_keys(count=3)"))
    with pytest.raises(InvalidArgument, match="2 patterns for 3 layers"):
        load(tmp_path, pattern=[Causal()] * 2)


def test_it_has_to_be_of_the_kind(tmp_path: Path) -> None:
    save(Bert(BERT), tmp_path)
    with pytest.raises(NotSupported, match="holds a Bert, and a LanguageModel is asked for"):
        load(tmp_path, kind=LanguageModel)


# --- Tokenizers ----------------------------------------------------------------------------------


def test_bytes_need_no_file(tmp_path: Path) -> None:
    save(tiny.llama(), tmp_path, tokenizer=ByteTokenizer(), notes={"steps": 7, "told": "ünÿ"})
    assert load(tmp_path).tokenizer == ByteTokenizer()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["eyeline.json", "model.safetensors"]
    assert read_description(tmp_path)["notes"] == {"steps": 7, "told": "ünÿ"}


def words(folder: Path) -> Tokenizer:
    rules = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({"a": 0, "cat": 1, "sat": 2, "?": 3}, unk_token="?")
    )
    rules.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    rules.save(str(folder / "words.json"))
    spec = TokenizerSpec(
        model=TokenizerFile(folder / "words.json"), bos_id=0, eos_ids=(2, 3), pad_id=None,
        add_bos=False, chat_template="{{ messages[0].content }}", special={"eos_token": "sat"},
    )  # fmt: skip
    return Tokenizer(spec, folder)


def test_rules_and_what_is_said_of_them_come_back(tmp_path: Path) -> None:
    tokenizer = words(tmp_path)
    save(tiny.llama(), tmp_path / "model", tokenizer=tokenizer)
    (tmp_path / "words.json").unlink()
    found = load(tmp_path / "model").tokenizer
    assert found.encode("a cat sat down") == [0, 1, 2, 3] == tokenizer.encode("a cat sat down")
    assert (found.bos_id, found.eos_ids, found.pad_id) == (0, {2, 3}, tokenizer.pad_id)
    assert found.chat([{"role": "user", "content": "a"}]) == "a"
    (tmp_path / "model" / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: the file is missing"):
        load(tmp_path / "model")


@pytest.mark.parametrize("entry", ["words", 3, {"eos_ids": "no"}, {"bos_id": 1.5}])
def test_a_tokenizer_that_is_not_known_is_refused(entry: object, tmp_path: Path) -> None:
    save(tiny.llama(), tmp_path, tokenizer=words(tmp_path))
    edit(tmp_path, tokenizer=entry)
    with pytest.raises(CheckpointError, match="tokenizer"):
        load(tmp_path)


# --- Folders that are not right ------------------------------------------------------------------


def edit(folder: Path, **changes: Any) -> None:
    file = folder / "eyeline.json"
    file.write_text(json.dumps({**json.loads(file.read_text("utf-8")), **changes}))


CONFIG = to_plain(tiny.CONFIG)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"format": 2}, NotSupported, "format 2; this version reads format 1"),
        ({"family": "mamba"}, NotSupported, "family 'mamba'; known are llama, gpt2"),
        ({"family": ["llama"]}, NotSupported, "family"),
        ({"family": "gpt2"}, NotSupported, "unknown in the configuration: head_dim, kv_heads, rot"),
        ({"config": [1]}, CheckpointError, "a configuration is an object"),
        ({"config": {**CONFIG, "colour": 3}}, NotSupported, "unknown in the configuration: colour"),
        ({"config": {**CONFIG, "width": "30"}}, CheckpointError, "width='30': int is due"),
        ({"config": {**CONFIG, "width": True}}, CheckpointError, "width=True: int is due"),
        ({"config": {**CONFIG, "norm_eps": None}}, CheckpointError, "norm_eps=None: float"),
        ({"config": {**CONFIG, "layers": 0}}, InvalidArgument, "layers=0"),
        ({"config": {**CONFIG, "layers": 10**12}}, CheckpointError, "1,000,000,000,000 layers"),
        ({"config": {**CONFIG, "width": 31}}, CheckpointError, "the configuration asks for"),
        ({"config": {k: v for k, v in CONFIG.items() if k != "heads"}}, CheckpointError, "lacks h"),
        ({"choices": "causal"}, CheckpointError, "choices are an object"),
        ({"choices": {"colour": 3}}, NotSupported, "Llama has no colour; it has pattern, mech"),
        ({"choices": {"pattern": "cusal"}}, CheckpointError, "pattern: .*causal"),
        ({"choices": {"pattern": 3}}, CheckpointError, "pattern=3: a text"),
        ({"choices": {"pattern": ["causal"]}}, InvalidArgument, "1 patterns for 3 layers"),
        ({"choices": {"mechanism": "magic"}}, CheckpointError, "mechanism: .*'magic'"),
        ({"choices": {"encodings": "none"}}, InvalidArgument, "encodings='none'"),
    ],
)
def test_a_description_that_is_not_right_is_refused(
    changes: dict[str, Any], error: type[EyelineError], message: str, tmp_path: Path
) -> None:
    save(tiny.llama(), tmp_path)
    edit(tmp_path, **changes)
    with pytest.raises(error, match=message) as caught:
        load(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "[]", "{", '"llama"', "[" * 5000])
def test_a_description_that_is_no_object_is_refused(text: str, tmp_path: Path) -> None:
    save(tiny.llama(), tmp_path)
    (tmp_path / "eyeline.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"eyeline\.json: "):
        load(tmp_path)


def test_weights_that_are_not_right_are_refused(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    save(tiny.llama(), tmp_path)
    file = tmp_path / "model.safetensors"
    right = load_file(file)
    for message, wrong in {
        "missing tensors: 'norm'": {k: v for k, v in right.items() if k != "norm"},
        "surplus tensors: 'nerm'": {**right, "nerm": right["norm"].clone()},
        r"norm \(29,\): the configuration asks for \(30,\)": {**right, "norm": torch.ones(29)},
    }.items():
        save_file(wrong, file)
        with pytest.raises(CheckpointError, match=message):
            load(tmp_path)
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="cut short or damaged"):
        load(tmp_path)
    file.unlink()
    with pytest.raises(CheckpointError, match="the file is missing"):
        load(tmp_path)


# --- What cannot be saved ------------------------------------------------------------------------


class Own(Window):
    """Somebody's own class."""


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        (Causal() & Explicit(torch.ones(31, 31, dtype=torch.bool)), "carries a tensor or a call"),
        (Predicate(lambda b, h, i, j: i >= j), "carries a tensor or a callable"),
        (Own(3, 0), "reading its text does not give it back"),
    ],
)
def test_patterns_that_no_text_says_are_refused_before_anything_is_written(
    pattern: Pattern, message: str, tmp_path: Path
) -> None:
    with pytest.raises(NotSupported, match=message):
        save(tiny.llama(pattern=pattern), tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("notes", [{"a": object()}, {"loss": float("nan")}])
def test_notes_are_plain(notes: Any, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="no JSON"):
        save(tiny.llama(), tmp_path / "new", notes=notes)
    assert not (tmp_path / "new").exists()


def test_a_model_of_no_family_is_refused(tmp_path: Path) -> None:
    class Other(Model):
        def choices(self) -> dict[str, Any]:
            return {}

    with pytest.raises(NotSupported, match="Other is of no family"):
        save(Other(), tmp_path)


# --- Nothing is half there -----------------------------------------------------------------------


@pytest.mark.parametrize("moment", range(6))
def test_an_end_at_any_moment_leaves_a_whole_model(
    moment: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each write and each rename is where it ends once; what is read is the old or the new."""
    old, new = tiny.llama(), tiny.llama()
    new.norm.add_(1.0)
    save(old, tmp_path, tokenizer=words(tmp_path), notes={"step": 1})
    die_at(moment, monkeypatch)
    with pytest.raises(Died):
        save(new, tmp_path, tokenizer=words(tmp_path), notes={"step": 2})
    monkeypatch.undo()
    norm = load(tmp_path).model.norm
    assert torch.equal(norm, old.norm) or torch.equal(norm, new.norm)
    assert read_description(tmp_path)["notes"] == {"step": 1}
    assert not list(tmp_path.glob(".*"))


class Died(BaseException):
    """As a signal would end it."""


def die_at(moment: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ends at the moment-th of: synced, about to be renamed, of three files."""
    count = iter(range(100))

    def dying(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            if next(count) == moment:
                raise Died
            return function(*args)

        return call

    monkeypatch.setattr("eyeline.loading.saver.os.replace", dying(os.replace))
    monkeypatch.setattr("eyeline.loading.saver._synchronise_file", dying(lambda path: None))


def test_another_model_takes_the_description_away_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the old description would stand beside the new weights for a moment."""
    save(tiny.llama(), tmp_path)
    die_at(2, monkeypatch)  # the weights are there, the description is not yet
    with pytest.raises(Died):
        save(tiny_gpt2.gpt2(), tmp_path)
    monkeypatch.undo()
    assert not (tmp_path / "eyeline.json").exists()
    with pytest.raises(EyelineError, match=r"config\.json"):
        load(tmp_path)
    save(tiny_gpt2.gpt2(), tmp_path)
    load(tmp_path)


def test_a_write_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def fail(path: Path) -> None:
        path.write_text("half")
        raise OSError("no space")

    (tmp_path / "file").write_text("old")
    with pytest.raises(OSError, match="no space"):
        write_whole(tmp_path / "file", fail)
    assert (tmp_path / "file").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


# --- Configurations as plain values --------------------------------------------------------------


@pytest.mark.parametrize(
    "scaling",
    [
        None,
        Linear(2.0),
        NTK(3.0),
        YaRN(4.0, original_length=11, truncate=False),
        Llama3(8.0, original_length=11),
    ],
)
def test_configurations_are_plain_and_come_back(scaling: Any) -> None:
    config = replace(tiny.CONFIG, rotary_scaling=scaling)
    plain = json.loads(json.dumps(to_plain(config)))
    assert from_plain(type(config), plain, model="here") == config


def test_a_nested_value_is_checked_too() -> None:
    plain = to_plain(replace(tiny.CONFIG, rotary_scaling=Linear(2.0)))
    plain["rotary_scaling"]["speed"] = 3
    with pytest.raises(NotSupported, match=r"here: rotary_scaling: unknown .*: speed"):
        from_plain(type(tiny.CONFIG), plain, model="here")
    plain["rotary_scaling"] = {"kind": "Longer", "factor": 2.0}
    with pytest.raises(CheckpointError, match="rotary_scaling="):
        from_plain(type(tiny.CONFIG), plain, model="here")


def test_llama_refuses_recounted_encodings_without_keys() -> None:
    with pytest.raises(NotSupported, match="recounted encodings turn the keys that are kept"):
        Llama(tiny.CONFIG, mechanism=recipe("linear(feature_map=elu)"), encodings="recounted")
