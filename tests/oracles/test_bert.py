"""BERT against transformers: tiny random models, and the real sentence encoder."""

from __future__ import annotations

import pydoc_data.topics
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from eyeline.embedding import embed
from eyeline.loading import Loaded, load
from eyeline.models.sentence import SentenceSettings
from eyeline.tokens import Tokens
from models.tiny import ids
from models.tiny_bert import HF

pytestmark = pytest.mark.slow
transformers = pytest.importorskip("transformers")

LENGTHS = [19, 11, 2]


def theirs(kind: str, **changes: Any) -> Any:
    torch.manual_seed(0)
    left_out = ("model_type", "torch_dtype", "position_embedding_type")
    values = {k: v for k, v in HF.items() if k not in left_out}
    model = getattr(transformers, kind)(transformers.BertConfig(**{**values, **changes})).eval()
    for name, parameter in model.named_parameters():
        mean = 1.0 if name.endswith("LayerNorm.weight") else 0.0
        torch.nn.init.normal_(parameter, mean=mean, std=0.2)
    return model


def answers(model: Any, **inputs: Tensor) -> Tensor:
    """What a model of theirs is for."""
    out = model(**inputs)
    for name in ("logits", "prediction_logits", "last_hidden_state"):
        if name in out:
            found: Tensor = out[name]
            return found
    raise AssertionError(out.keys())


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"hidden_act": "gelu_new", "layer_norm_eps": 1e-2},
        {"hidden_act": "relu", "num_attention_heads": 7, "type_vocab_size": 1},
        {"tie_word_embeddings": False},
        {"num_labels": 5},
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "kind",
    ["BertModel", "BertForMaskedLM", "BertForPreTraining", "BertForSequenceClassification"],
)
def test_tiny_models_saved_by_transformers(
    kind: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    model = theirs(kind, **changes)
    model.save_pretrained(tmp_path)
    mine = load(tmp_path, dtype=torch.float32, packed=False).model
    text, tokens = ids(3, 19), Tokens.padded(LENGTHS, "right")
    real = tokens.positions >= 0
    kinds = ids(3, 19) % model.config.type_vocab_size
    with torch.no_grad():
        want = answers(model, input_ids=text, attention_mask=real.long(), token_type_ids=kinds)
        got = mine(text, q_tokens=tokens, token_types=kinds)
    assert got.shape == want.shape
    if want.dim() == 3:
        got, want = got[real], want[real]
    torch.testing.assert_close(got, want, rtol=0, atol=1e-5)


def test_the_pooler(tmp_path: Path) -> None:
    model = theirs("BertModel")
    model.save_pretrained(tmp_path)
    mine = load(tmp_path, dtype=torch.float32, packed=False).model
    with torch.no_grad():
        want = model(ids(3, 19)).pooler_output
        torch.testing.assert_close(mine.pool(mine(ids(3, 19))), want, rtol=0, atol=1e-5)


def test_a_model_without_a_pooler(tmp_path: Path) -> None:
    torch.manual_seed(0)
    values = {k: v for k, v in HF.items() if k != "torch_dtype"}
    config = transformers.BertConfig(**values)
    transformers.BertModel(config, add_pooling_layer=False).save_pretrained(tmp_path)
    assert load(tmp_path, packed=False).model.pooler is None


@pytest.mark.parametrize("fault", ["key and value", "a layer", "transposed"])
def test_a_wrong_layout_would_fail(fault: str, tmp_path: Path) -> None:
    model, text = theirs("BertModel"), ids(1, 19)
    with torch.no_grad():
        right = model(text).last_hidden_state
    first, last = model.encoder.layer[0], model.encoder.layer[2]
    looks = first.attention.self
    if fault == "key and value":
        looks.key, looks.value = looks.value, looks.key
    elif fault == "a layer":
        first.intermediate, last.intermediate = last.intermediate, first.intermediate
    else:
        looks.query.weight.data = looks.query.weight.data.T.contiguous()
    model.save_pretrained(tmp_path)
    with torch.no_grad():
        wrong = load(tmp_path, dtype=torch.float32, packed=False).model(text)
    assert (wrong - right).abs().max() > 0.01


def test_masked_losses_are_cross_entropies(tmp_path: Path) -> None:
    model = theirs("BertForMaskedLM")
    model.save_pretrained(tmp_path)
    mine = load(tmp_path, dtype=torch.float32, packed=False).model
    text, targets = ids(3, 19), ids(3, 19).flip(1)
    targets[ids(3, 19) % 5 > 0] = -100
    with torch.no_grad():
        want = model(text, labels=targets).loss
        torch.testing.assert_close(mine.losses(text, targets).mean(), want)


# --- The real encoder ----------------------------------------------------------------------------

TEXTS = [
    "A cat sleeps on the warm stones.",
    "Ein Kätzchen döst in der Sonne; naïve café, 東京, 🙂!",
    "x",
    "[CLS] and [MASK] stand in the text.",
    pydoc_data.topics.topics["assignment"],
    "Shares fell sharply on Monday.",
    " ".join(["word"] * 254),
    " ".join(["word"] * 255),
]


@pytest.fixture(scope="module")
def mine(encoder_folder: Path) -> Loaded[Any]:
    return load(encoder_folder, dtype=torch.float32, packed=False)


@pytest.fixture(scope="module")
def want(encoder_folder: Path) -> Tensor:
    """The folder's own recipe, by transformers: cut to 256, the mean of tokens, length 1."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(encoder_folder))
    model = transformers.BertModel.from_pretrained(str(encoder_folder)).eval()
    batch = tokenizer(TEXTS, padding=True, truncation=True, max_length=256, return_tensors="pt")
    with torch.no_grad():
        hidden = model(**batch).last_hidden_state
    mask = batch["attention_mask"][:, :, None].float()
    mean = (hidden * mask).sum(1) / mask.sum(1)
    return functional.normalize(mean, dim=-1)


@pytest.mark.model
@pytest.mark.parametrize("batch_tokens", [1, 600, 100_000])
def test_sentence_vectors(batch_tokens: int, mine: Loaded[Any], want: Tensor) -> None:
    settings = asdict(SentenceSettings.of_folder(mine.source, mine.config))
    assert settings == {"how": "mean", "normalize": True, "max_tokens": 256}
    assert mine.tokenizer is not None
    got = embed(mine.model, mine.tokenizer, TEXTS, batch_tokens=batch_tokens, **settings)
    assert (got * want).sum(1).min() >= 0.99999
    torch.testing.assert_close(got, want, rtol=0, atol=1e-5)


@pytest.mark.model
@pytest.mark.parametrize(
    ("change", "texts"),
    [({"how": "cls"}, TEXTS), ({"how": "max"}, TEXTS), ({"max_tokens": 128}, TEXTS[4:5])],
)
def test_a_wrong_pooling_would_fail(
    change: dict[str, Any], texts: list[str], mine: Loaded[Any], want: Tensor
) -> None:
    settings = asdict(SentenceSettings.of_folder(mine.source, mine.config)) | change
    assert mine.tokenizer is not None
    got = embed(mine.model, mine.tokenizer, texts, **settings)
    rows = torch.tensor([TEXTS.index(text) for text in texts])
    assert (got * want[rows]).sum(1).max() < 0.999


@pytest.mark.model
def test_the_ids_are_transformers_ids(mine: Loaded[Any], encoder_folder: Path) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(encoder_folder))
    assert mine.tokenizer is not None
    for text in TEXTS:
        assert mine.tokenizer.encode(text) == tokenizer(text)["input_ids"]
    assert mine.tokenizer.mask_id == tokenizer.mask_token_id
    assert mine.tokenizer.pad_id == tokenizer.pad_token_id
