"""From a run to its task: the data read, the model drawn, and both checked against each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from eyeline.errors import InvalidArgument, NotSupported
from eyeline.hashing import mixed
from eyeline.mechanisms.recipes import Recipe, recipe
from eyeline.models.base import LanguageModel
from eyeline.models.bert import BertClassifier, BertConfig, BertMasked
from eyeline.models.gpt2 import GPT2, GPT2Config
from eyeline.models.llama import Llama, LlamaConfig
from eyeline.models.transformer import Transformer, TransformerConfig
from eyeline.patterns import Pattern, parse
from eyeline.tokenizer import AnyTokenizer
from eyeline.training.classification import Classification, classes_of
from eyeline.training.language import Language, check_causal, draw
from eyeline.training.masked import MaskedLanguage
from eyeline.training.pairs import SequencePairs
from eyeline.training.rows import Row, read_folders, read_table, split_rows
from eyeline.training.run import FAMILIES, Run, Shape
from eyeline.training.task import Task
from eyeline.training.texts import Texts, mask_id, read_texts


def make_task(run: Run, tokenizer: AnyTokenizer) -> Task[Any]:
    """The task of a run, with a model whose weights the seed has drawn.

    Raises InvalidArgument for data, patterns and sizes that do not serve it.
    """
    known = FAMILIES[run.task]
    if run.shape.family not in known:
        raise InvalidArgument(f"model {run.shape.family}: {run.task} trains {' or '.join(known)}")
    if not run.source.files:
        raise InvalidArgument("there are no files to train on")
    torch.manual_seed(mixed(run.course.seed, "weights"))
    return _MAKERS[run.task](run, tokenizer)


def _language(run: Run, tokenizer: AnyTokenizer) -> Task[Any]:
    texts = _texts(run, tokenizer)
    model = _decoder(run.shape, _vocabulary(tokenizer))
    draw(model)
    check_causal(model, run.shape.length)
    return Language(
        model, texts, tokenizer, length=run.shape.length, batch_tokens=run.course.batch_tokens,
        seed=run.course.seed,
    )  # fmt: skip


def _masked(run: Run, tokenizer: AnyTokenizer) -> Task[Any]:
    hidden = mask_id(tokenizer)
    texts = _texts(run, tokenizer)
    model = BertMasked(_bert(run.shape, _vocabulary(tokenizer)), **_looks(run.shape))
    return MaskedLanguage(
        model, texts, mask_id=hidden, length=run.shape.length,
        batch_tokens=run.course.batch_tokens, seed=run.course.seed,
    )  # fmt: skip


def _classifier(run: Run, tokenizer: AnyTokenizer) -> Task[Any]:
    every = _rows(run)
    classes = classes_of(every)
    rows, held = _held_out(run, every)
    config = _bert(run.shape, _vocabulary(tokenizer), classes=len(classes))
    model = BertClassifier(config, **_looks(run.shape), pooling="mean")
    return Classification(
        model, rows, held, tokenizer, classes=classes, length=run.shape.length,
        batch_tokens=run.course.batch_tokens, seed=run.course.seed,
    )  # fmt: skip


def _pairs(run: Run, tokenizer: AnyTokenizer) -> Task[Any]:
    rows, held = _held_out(run, _rows(run))
    shape, looks = run.shape, _looks(run.shape)
    config = TransformerConfig(
        vocabulary=_vocabulary(tokenizer), width=shape.width, hidden=4 * shape.width,
        layers=shape.layers, heads=shape.heads, norm="pre", activation="gelu",
        dropout=shape.dropout,
    )  # fmt: skip
    model = Transformer(
        config, looks["pattern"], mechanism=looks["mechanism"],
        encoder_mechanism=looks["mechanism"],
    )  # fmt: skip
    return SequencePairs(
        model, rows, held, tokenizer, length=shape.length, batch_tokens=run.course.batch_tokens,
        seed=run.course.seed,
    )  # fmt: skip


_MAKERS: Mapping[str, Callable[[Run, AnyTokenizer], Task[Any]]] = {
    "lm": _language, "mlm": _masked, "classify": _classifier, "seq2seq": _pairs,
}  # fmt: skip


def _decoder(shape: Shape, vocabulary: int) -> LanguageModel:
    sizes: dict[str, Any] = {
        "vocabulary": vocabulary, "width": shape.width, "layers": shape.layers,
        "heads": shape.heads, "trained_length": shape.length,
    }  # fmt: skip
    if shape.family == "gpt2":
        config = GPT2Config(**sizes, hidden=4 * shape.width, dropout=shape.dropout)
        return GPT2(config, **_looks(shape))
    if shape.dropout:
        raise NotSupported("a Llama has no dropout; --model gpt2 has, or leave it out")
    # Three matrices instead of two: two thirds of 4 · width, in rows that fill vector registers.
    hidden = -(-8 * shape.width // (3 * 32)) * 32
    return Llama(
        LlamaConfig(
            **sizes, hidden=hidden, kv_heads=shape.heads, head_dim=shape.width // shape.heads,
            tied=True,
        ),
        **_looks(shape),
    )  # fmt: skip


def _bert(shape: Shape, vocabulary: int, *, classes: int | None = None) -> BertConfig:
    return BertConfig(
        vocabulary=vocabulary, width=shape.width, hidden=4 * shape.width, layers=shape.layers,
        heads=shape.heads, trained_length=shape.length, dropout=shape.dropout, classes=classes,
    )  # fmt: skip


def _looks(shape: Shape) -> dict[str, Any]:
    """Pattern and mechanism, as models take them; None is the family's own."""
    patterns: list[Pattern] = [parse(text) for text in shape.pattern]
    pattern = patterns[0] if len(patterns) == 1 else patterns
    asked: Recipe = recipe(shape.mechanism)
    return {"pattern": pattern if patterns else None, "mechanism": asked}


def _vocabulary(tokenizer: AnyTokenizer) -> int:
    return tokenizer.vocabulary_size


def _texts(run: Run, tokenizer: AnyTokenizer) -> Texts:
    source = run.source
    return read_texts(
        source.files, tokenizer, length=run.shape.length, held_out=source.held_out,
        validation=source.validation, seed=run.course.seed,
    )  # fmt: skip


def _rows(run: Run) -> list[Row]:
    """The rows of all files."""

    def read(file: str) -> list[Row]:
        if run.task == "classify" and Path(file).is_dir():
            return read_folders(file)
        return read_table(file, run.source.columns)

    return [row for file in run.source.files for row in read(file)]


def _held_out(run: Run, rows: list[Row]) -> tuple[list[Row], list[Row]]:
    """Rows to train on, and rows held out."""
    source = run.source
    if source.held_out is None:
        return split_rows(rows, source.validation, run.course.seed)
    return rows, _rows(replace(run, source=replace(source, files=(source.held_out,))))
