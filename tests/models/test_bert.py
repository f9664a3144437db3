"""BERT against one written out plainly; padding, documents, heads, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from eyeline.errors import CheckpointError, InvalidArgument, NotSupported
from eyeline.loading import load
from eyeline.loading import save as save_own
from eyeline.mechanisms import recipe
from eyeline.models import Bert, BertClassifier, BertConfig, BertMasked
from eyeline.models.bert import ACTIVATIONS
from eyeline.models.pooling import pooled
from eyeline.patterns import Full, Window, longformer
from eyeline.tokens import Tokens
from models.tiny import ids, save_hf
from models.tiny_bert import CLASSES, CONFIG, HF, bert, hf_tensors, plainly, save

POOLER = replace(CONFIG, pooler=True)
UNTIED = replace(CONFIG, tied=False)
MODELS = {
    "bert": (Bert, CONFIG), "pooler": (Bert, POOLER), "masked": (BertMasked, CONFIG),
    "masked, pooler": (BertMasked, POOLER), "untied": (BertMasked, UNTIED),
    "classifier": (BertClassifier, CLASSES),
}  # fmt: skip


def close(got: Any, want: Any, atol: float = 1e-10) -> None:
    torch.testing.assert_close(got, want, rtol=0, atol=atol)


# --- The encoder ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "allows"),
    [
        (None, lambda i, j: True),
        (Window(2, 1), lambda i, j: -2 <= j - i <= 1),
        ([Window(3, 3)] * 3, lambda i, j: abs(i - j) <= 3),
    ],
    ids=["full", "window", "list"],
)
def test_it_equals_the_plain_model(pattern: Any, allows: Any) -> None:
    model, text = bert(pattern=pattern).double(), ids(2, 19)
    kinds = torch.randint(0, 3, (2, 19), generator=torch.Generator().manual_seed(3))
    got, zero = model(text, token_types=kinds), model(text)
    for row in range(2):
        close(got[row], plainly(model, text[row].tolist(), allows, kinds[row].tolist()))
        close(zero[row], plainly(model, text[row].tolist(), allows))


@pytest.mark.parametrize("change", ["q and k", "heads", "eps", "layers", "gelu"])
def test_the_comparison_would_notice(change: str) -> None:
    text, wrong = ids(1, 19), bert()
    want = plainly(wrong, text[0].tolist(), lambda i, j: True)
    if change == "q and k":
        block = wrong.blocks[1].attention
        block.k_proj, block.v_proj = block.v_proj, block.k_proj
    elif change == "layers":
        wrong.blocks = wrong.blocks[:2].append(wrong.blocks[0])
    else:
        values = {"heads": {"heads": 7}, "eps": {"norm_eps": 0.1}, "gelu": {"activation": "relu"}}
        wrong = bert(config=replace(CONFIG, **values[change]))
    assert (wrong(text)[0] - want).abs().max() > 1e-3


def test_layers_may_look_in_other_ways() -> None:
    patterns = [Full(), Window(1, 1), longformer(2, 1)]
    model, text = bert(pattern=patterns).double(), ids(2, 17)
    assert model.patterns == tuple(patterns)
    x = model.embeddings(text, Tokens.arange(0, 17), None)
    for block, pattern in zip(model.blocks, patterns, strict=True):
        assert block.attention.pattern == pattern
        x = block(x)
    close(model(text), x)


def test_another_mechanism() -> None:
    model = bert(mechanism=recipe("extra_keys(count=2)"))
    assert "extra_keys" in str(model.choices()["mechanism"][1])
    assert (model(ids(1, 7)) - bert()(ids(1, 7))).abs().max() > 1e-3


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("pattern", [None, Window(2, 3), longformer(2, 2)], ids=str)
def test_a_padded_row_equals_the_text_alone(side: str, pattern: Any) -> None:
    model, text, lengths = bert(pattern=pattern).double(), ids(3, 19), [19, 7, 1]
    tokens = Tokens.padded(lengths, side)
    got = model(text, q_tokens=tokens)
    for row, length in enumerate(lengths):
        own = slice(19 - length, 19) if side == "left" else slice(0, length)
        close(got[row, own], model(text[row : row + 1, own])[0])


def test_packed_documents_equal_the_texts_alone() -> None:
    """Together they are longer than the 23 positions that there are."""
    model, text, lengths = bert(pattern=Full()).double(), ids(1, 31), [17, 3, 11]
    got = model(text, q_tokens=Tokens.packed(lengths))[0]
    for own, piece in zip(got.split(lengths), text.split(lengths, 1), strict=True):
        close(own, model(piece)[0])


def test_documents_of_a_batch_and_nobody_between() -> None:
    model, text = bert(pattern=Full()).double(), ids(2, 7)
    positions = torch.tensor([[0, 1, -1, 0, 1, 2, -1], [0, 1, 2, 3, 0, 1, 2]])
    documents = torch.tensor([[0, 0, -1, 4, 4, 4, 0], [4, 4, 4, 4, 0, 0, 0]])
    got = model(text, q_tokens=Tokens(positions, documents))
    for row, start, stop in ((0, 0, 2), (0, 3, 6), (1, 0, 4), (1, 4, 7)):
        close(got[row, start:stop], model(text[row : row + 1, start:stop])[0])


def test_pads_get_no_gradient() -> None:
    model, text = bert().requires_grad_(True), ids(1, 11)
    text[0, 5:] = 88
    model(text, q_tokens=Tokens.padded([5], "right", length=11))[0, :5].sum().backward()
    assert not model.embedding.weight.grad[88].any()
    assert not model.embeddings.positions.weight.grad[5:].any()


def test_dropout_is_for_training_only() -> None:
    config = replace(CONFIG, dropout=0.3, attention_dropout=0.2)
    model, text = bert(config=config), ids(1, 11)
    assert torch.equal(model(text), bert()(text))
    assert model.blocks[0].attention.mechanism.dropout == 0.2
    model.train()
    assert not torch.equal(model(text), model(text))


def test_weights_begin_as_the_authors_drew_them() -> None:
    torch.manual_seed(1)
    model = BertMasked(replace(CONFIG, width=110, hidden=310, heads=11))
    for name, weight in model.named_parameters():
        if name.endswith("bias"):
            assert not weight.any(), name
        elif "norm" in name:
            assert (weight == 1).all(), name
        else:
            assert 0.015 < weight.std() < 0.025, name
    assert model.head.weight is model.embedding.weight


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations(activation: Any) -> None:
    model = bert(config=replace(CONFIG, activation=activation))
    assert model.blocks[2].feed_forward.activation == activation


# --- What stands on it ---------------------------------------------------------------------------


def test_the_pooler_takes_the_first_real_token() -> None:
    model, text = bert(config=POOLER), ids(2, 11)
    tokens = Tokens.padded([11, 4])
    hidden = model(text, q_tokens=tokens)
    first = torch.stack((hidden[0, 0], hidden[1, 7]))
    close(model.pool(hidden, tokens), torch.tanh(model.pooler(first)), 1e-6)
    with pytest.raises(NotSupported, match="no pooler"):
        bert().pool(hidden)


@pytest.mark.parametrize("config", [CONFIG, UNTIED])
def test_masked_logits_and_losses(config: BertConfig) -> None:
    model, text = bert(BertMasked, config).double(), ids(2, 19)
    hidden = model.hidden(text)
    inner = functional.gelu(hidden @ model.transform.weight.T + model.transform.bias)
    normed = functional.layer_norm(
        inner, (35,), model.transform_norm.weight, model.transform_norm.bias, CONFIG.norm_eps
    )
    table = model.bert.embedding.weight if config.tied else model.head.weight
    want = normed @ table.T + model.head.bias
    close(model(text), want)
    targets = torch.full((2, 19), -100)
    asked = [(0, 3), (0, 17), (1, 0)]
    for row, slot in asked:
        targets[row, slot] = 5 * slot + row
    got = model.losses(text, targets, chunk=2)
    p = want.softmax(-1)
    each = [-p[row, slot, 5 * slot + row].log() for row, slot in asked]
    assert got.dtype == torch.float32
    close(got, torch.stack(each).float(), 1e-5)
    assert model.losses(text, torch.full((2, 19), -100)).shape == (0,)


def test_a_classifier() -> None:
    model, text, tokens = bert(BertClassifier, CLASSES), ids(2, 11), Tokens.padded([11, 4], "right")
    hidden = model.hidden(text, q_tokens=tokens)
    want = model.head(torch.tanh(model.bert.pooler(hidden[:, 0])))
    assert want.shape == (2, 7)
    close(model(text, q_tokens=tokens), want, 1e-6)
    mean = bert(BertClassifier, CLASSES, pooling="mean")
    inner = torch.tanh(mean.bert.pooler(pooled(hidden, tokens, "mean")))
    close(mean(text, q_tokens=tokens), mean.head(inner), 1e-6)
    assert BertClassifier(replace(CLASSES, pooler=False)).config.pooler


# --- Files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_a_folder_of_hugging_face_comes_back(name: str, tmp_path: Path) -> None:
    kind, config = MODELS[name]
    model = bert(kind, config)
    found = load(save(tmp_path / "m", model), dtype=torch.float32, packed=False)
    assert type(found.model) is kind and found.config == config and not found.model.training
    with torch.no_grad():
        assert torch.equal(found.model(ids(2, 19)), model(ids(2, 19)))


@pytest.mark.parametrize("name", MODELS)
def test_our_own_folder_comes_back(name: str, tmp_path: Path) -> None:
    kind, config = MODELS[name]
    options = {"pooling": "max"} if kind is BertClassifier else {}
    model = bert(kind, config, [Full(), Window(2, 1), longformer(2, 1)], **options)
    save_own(model, tmp_path / "m")
    found = load(tmp_path / "m", packed=False)
    assert type(found.model) is kind and found.config == model.config
    assert found.model.choices() == model.choices()
    with torch.no_grad():
        assert torch.equal(found.model(ids(2, 19)), model(ids(2, 19)))


@pytest.mark.parametrize("kind", [Bert, BertMasked])
def test_the_names_of_the_first_files(kind: Any, tmp_path: Path) -> None:
    """gamma and beta; the prefix on a plain encoder; what follows from the rest."""
    model = bert(kind, POOLER)
    tensors = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): tensor
        for name, tensor in hf_tensors(model, prefix="bert.").items()
    }
    tensors["bert.embeddings.position_ids"] = torch.arange(23)[None]
    if kind is BertMasked:
        tensors["cls.seq_relationship.weight"] = torch.zeros(2, 35)
        tensors["cls.predictions.decoder.weight"] = model.embedding.weight
        tensors["cls.predictions.decoder.bias"] = tensors["cls.predictions.bias"]
    architectures = ["BertForPreTraining"] if kind is BertMasked else ["BertModel"]
    folder = save_hf(tmp_path / "m", tensors, {**HF, "architectures": architectures})
    found = load(folder, dtype=torch.float32, packed=False).model
    with torch.no_grad():
        assert torch.equal(found(ids(1, 19)), model(ids(1, 19)))
    if kind is BertMasked:
        tensors["cls.predictions.decoder.weight"] = model.embedding.weight + 1
        with pytest.raises(CheckpointError, match=r"decoder\.weight differs"):
            load(save_hf(folder, tensors, {**HF, "architectures": architectures}))


def test_a_wrong_layout_shows(tmp_path: Path) -> None:
    """Queries in the place of values load without an error, and give another answer."""
    model = bert()
    tensors = hf_tensors(model)
    for layer in range(3):
        at = f"encoder.layer.{layer}.attention.self"
        for kind in ("weight", "bias"):
            q, v = f"{at}.query.{kind}", f"{at}.value.{kind}"
            tensors[q], tensors[v] = tensors[v], tensors[q]
    folder = save_hf(tmp_path / "m", tensors, {**HF, "architectures": ["BertModel"]})
    wrong = load(folder, dtype=torch.float32, packed=False).model(ids(1, 19))
    assert (wrong - model(ids(1, 19))).abs().max() > 0.1


@pytest.mark.parametrize("kind", ["missing", "surplus", "shape"])
def test_every_tensor_is_accounted_for(kind: str, tmp_path: Path) -> None:
    tensors, name = hf_tensors(bert()), "encoder.layer.1.attention.self.key.weight"
    match = f"{kind} tensors: .*1.attention.self.key"
    if kind == "missing":
        del tensors[name]
    elif kind == "surplus":
        tensors["encoder.layer.1.attention.self.key.scale"] = torch.zeros(35)
    else:
        tensors[name], match = tensors[name][:-1], r"key\.weight \(34, 35\).* asks for \(35, 35\)"
    with pytest.raises(CheckpointError, match=match):
        load(save_hf(tmp_path / "m", tensors, {**HF, "architectures": ["BertModel"]}))


@pytest.mark.parametrize("name", ["num_hidden_layers", "max_position_embeddings", "vocab_size"])
def test_a_claim_of_great_size_costs_nothing(name: str, tmp_path: Path) -> None:
    folder = save(tmp_path / "m", bert(), {name: 10**12})
    with pytest.raises(CheckpointError, match=r"1000000000000|1,000,000,000,000"):
        load(folder)


def test_the_config_of_a_folder() -> None:
    assert BertConfig.from_hf(HF) == CONFIG
    more = {"use_cache": True, "directionality": "bidi", "gradient_checkpointing": False}
    assert BertConfig.from_hf({**HF, **more, "classifier_dropout": None}) == CONFIG
    least = {k: v for k, v in HF.items() if k.endswith(("_size", "_layers", "_heads", "_type"))}
    found = BertConfig.from_hf({k: v for k, v in least.items() if not k.startswith("position")})
    assert (found.trained_length, found.norm_eps, found.dropout) == (512, 1e-12, 0.1)
    assert BertConfig.from_hf({**HF, "hidden_act": "gelu_new"}).activation == "gelu_tanh"
    assert BertConfig.from_hf(HF, ["bert.pooler.dense.weight"]).pooler
    head = ["classifier.weight"]
    assert BertConfig.from_hf(HF, head).classes == 2
    assert BertConfig.from_hf({**HF, "id2label": {"0": "a"}}, head).classes == 1


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"position_embedding_type": "relative_key"}, "position_embedding_type='relative_key'"),
        ({"is_decoder": True}, "is_decoder=True"),
        ({"add_cross_attention": True}, "add_cross_attention=True"),
        ({"hidden_act": "mish"}, "hidden_act='mish' is not built yet; gelu"),
        ({"hidden_act": ["gelu"]}, "hidden_act="),
        ({"architectures": ["BertForTokenClassification"]}, "BertForTokenClassification"),
        ({"architectures": "BertModel"}, "architectures='BertModel'"),
        ({"classifier_dropout": 0.5}, "classifier_dropout=0.5"),
        ({"pruned_heads": {"1": [2]}}, "pruned_heads="),
        ({"embedding_size": 128}, "unknown in the configuration, and not ignored: embedding_size"),
        ({"hidden_dropout_prob": 1.0}, "hidden_dropout_prob=1.0, not a probability below 1"),
        ({"attention_probs_dropout_prob": "0"}, "attention_probs_dropout_prob='0'"),
        ({"layer_norm_eps": 0}, "layer_norm_eps=0, not a number above 0"),
        ({"num_hidden_layers": 0}, "num_hidden_layers=0"),
        ({"vocab_size": None}, "lacks vocab_size"),
        ({"num_attention_heads": 6}, "width=35 is no multiple of heads=6"),
    ],
)
def test_a_config_that_is_not_known_in_full_is_refused(changes: Any, match: str) -> None:
    with pytest.raises((NotSupported, CheckpointError, InvalidArgument), match=match):
        BertConfig.from_hf({**HF, **changes})


# --- What is given -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda m: m(ids(1, 24)), "position 23: they go from -1 to 22; this table has 23"),
        (lambda m: m(torch.tensor([[89]])), "id 89: they go from 0 to 88; the vocabulary has 89"),
        (lambda m: m(torch.tensor([[-1]])), "id -1"),
        (lambda m: m(torch.zeros(1, 3)), r"whole numbers \(B, L\), got torch.float32"),
        (lambda m: m(torch.tensor([1, 2])), r"whole numbers \(B, L\)"),
        (lambda m: m(ids(2, 3), q_tokens=Tokens.arange(0, 4)), r"q_tokens has shape \(4,\)"),
        (lambda m: m(ids(1, 3), token_types=torch.zeros(1, 2).long()), r"token_types \(1, 2\)"),
        (lambda m: m(ids(1, 1), token_types=torch.tensor([[3]])), "token type 3: .* are 3 token"),
        (lambda m: bert(pattern=[Full()] * 2), "2 patterns for 3 layers"),
        (lambda m: bert(mechanism=[recipe("exact")] * 4), "4 mechanisms for 3 layers"),
        (lambda m: bert(BertClassifier), "a classifier needs config.classes"),
        (lambda m: bert(BertMasked).losses(ids(1, 3), ids(1, 2)), r"targets \(1, 2\) for ids"),
        (lambda m: bert(BertMasked).losses(ids(1, 1), torch.tensor([[89]])), "target 89"),
        (lambda m: replace(CONFIG, dropout=1.0), "dropout"),
        (lambda m: replace(CONFIG, attention_dropout=-0.1), "attention_dropout"),
        (lambda m: replace(CONFIG, classes=0), "classes=0"),
    ],
)
def test_what_does_not_fit_is_refused_in_words(call: Any, match: str) -> None:
    with pytest.raises(InvalidArgument, match=match):
        call(bert())
