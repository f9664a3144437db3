"""Sentence vectors: batches, order, padding, cutting, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from eyeline.embedding import cosines, embed, embed_ids, encode_texts
from eyeline.errors import InvalidArgument, NotSupported
from eyeline.loading import Loaded, load
from eyeline.models import BertMasked, Transformer, TransformerConfig
from eyeline.models.pooling import pooled
from eyeline.tokenizer import ByteTokenizer
from models.small_encoder import write_encoder
from models.tiny import llama
from models.tiny_bert import bert

TEXTS = [
    "the cat sleeps", "a very old dog runs and runs and runs", "shares fell on monday",
    "cat", "The Cat sleeps!", "a dog sleeps on the old cat",
]  # fmt: skip


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Loaded[Any]:
    folder = write_encoder(tmp_path_factory.mktemp("encoder") / "m")
    return load(folder, dtype=torch.float64, packed=False)


def alone(encoder: Loaded[Any], text: str, how: Any = "mean") -> torch.Tensor:
    ids = torch.tensor([encoder.tokenizer.encode(text)])
    with torch.no_grad():
        return pooled(encoder.model(ids), how=how)[0]


@pytest.mark.parametrize("how", ["mean", "cls", "max"])
@pytest.mark.parametrize("batch_tokens", [1, 13, 29, 4096])
def test_each_vector_is_that_of_the_text_alone(
    batch_tokens: int, how: Any, encoder: Loaded[Any]
) -> None:
    got = embed(encoder.model, encoder.tokenizer, TEXTS, how=how, batch_tokens=batch_tokens)
    want = torch.stack([alone(encoder, text, how) for text in TEXTS])
    assert got.dtype == torch.float64 and not got.requires_grad
    torch.testing.assert_close(got, want, rtol=0, atol=1e-12)
    unit = embed(encoder.model, encoder.tokenizer, TEXTS, how=how, normalize=True)
    torch.testing.assert_close(unit, functional.normalize(want, dim=-1), rtol=0, atol=1e-12)


def test_batches_are_of_similar_length_and_no_larger_than_asked(encoder: Loaded[Any]) -> None:
    shapes: list[tuple[int, ...]] = []
    hook = encoder.model.embedding.register_forward_hook(
        lambda module, inputs, out: shapes.append(tuple(inputs[0].shape))
    )
    heard: list[tuple[int, int]] = []
    ids = [[2] * length for length in (3, 17, 5, 3, 16, 4)]
    embed_ids(
        encoder.model, ids, batch_tokens=34, progress=lambda w, done, n: heard.append((done, n))
    )
    hook.remove()
    assert shapes == [(2, 17), (4, 5)]
    assert heard == [(2, 6), (6, 6)]


def test_the_tokenizers_own_cutting_and_filling_is_not_used(encoder: Loaded[Any]) -> None:
    assert len(encoder.tokenizer.encode(TEXTS[1])) == 11
    assert encoder.tokenizer.encode("cat") == [2, 7, 3]


def test_a_longer_text_is_cut_and_ends_as_every_text_does(encoder: Loaded[Any]) -> None:
    (one,) = encode_texts(encoder.tokenizer, [TEXTS[1]], max_tokens=5)
    whole = encoder.tokenizer.encode(TEXTS[1])
    assert one == ([*whole[:4], 3], 11)
    (same,) = encode_texts(encoder.tokenizer, [TEXTS[1]], max_tokens=11)
    assert same == (whole, 11)
    got = embed(encoder.model, encoder.tokenizer, [TEXTS[1]], max_tokens=5)
    want = alone(encoder, "a very old")
    torch.testing.assert_close(got[0], want, rtol=0, atol=1e-12)


def test_words_of_control_do_not_confuse_the_cutting(encoder: Loaded[Any]) -> None:
    (one,) = encode_texts(encoder.tokenizer, ["[SEP] [CLS] cat dog"], max_tokens=4)
    assert one.ids == [2, 3, 2, 3]


def test_bytes_have_no_frame() -> None:
    (one,) = encode_texts(ByteTokenizer(), ["naïve"], max_tokens=3)
    assert one == (list("naïve".encode())[:3], 6)


def test_other_models_that_have_vectors_of_tokens() -> None:
    ids = [[1, 2, 3], [4, 5], [6, 7, 8, 9, 10]]
    for model in (bert(BertMasked).double(), llama().double()):
        got = embed_ids(model, ids)
        for row, each in zip(got, ids, strict=True):
            want = model.hidden(torch.tensor([each])).mean(1)[0]
            torch.testing.assert_close(row, want, rtol=0, atol=1e-10)


def test_dropout_is_off_and_the_mode_stays(encoder: Loaded[Any]) -> None:
    ids = [[2, 7, 8, 3]]
    want = embed_ids(encoder.model, ids)
    encoder.model.train()
    assert torch.equal(embed_ids(encoder.model, ids), want)
    assert encoder.model.training
    encoder.model.eval()


def test_half_types_are_pooled_in_float32() -> None:
    assert embed_ids(bert().bfloat16(), [[1, 2, 3]]).dtype == torch.float32


def test_cosines() -> None:
    vectors = torch.tensor([[3.0, 0.0], [1.0, 1.0], [0.0, -2.0]])
    half = 0.5**0.5
    want = torch.tensor([[1.0, half, 0.0], [half, 1.0, -half], [0.0, -half, 1.0]])
    torch.testing.assert_close(cosines(vectors), want)


def test_no_texts() -> None:
    assert embed_ids(bert(), []).shape == (0, 35)


@pytest.mark.parametrize(
    ("texts", "options", "match"),
    [
        (["cat", ""], {}, r"texts\[1\] is empty: ''"),
        (["cat", "dog", " \n"], {}, r"texts\[2\] is empty: ' \\n' has no tokens"),
        (
            ["cat", "cat " * 22],
            {},
            r"texts\[1\] has 24 tokens and the model 23 positions",
        ),
        (["cat"], {"max_tokens": 2}, "max_tokens=2: 2 tokens begin and end each text, so it is 3"),
        (["cat"], {"batch_tokens": 0}, "batch_tokens=0"),
        (["cat"], {"how": "sum"}, "how='sum'"),
        ("cat", {}, "texts is one str"),
    ],
)
def test_what_is_refused(
    texts: Any, options: dict[str, Any], match: str, encoder: Loaded[Any]
) -> None:
    with pytest.raises(InvalidArgument, match=match):
        embed(encoder.model, encoder.tokenizer, texts, **options)


def test_what_does_not_fit_the_model() -> None:
    with pytest.raises(InvalidArgument, match=r"texts\[1\]: id 89 is not in the vocabulary of 89"):
        embed_ids(bert(), [[1], [3, 89]])
    with pytest.raises(InvalidArgument, match=r"texts\[1\] is empty"):
        embed_ids(bert(), [[1], []])
    pairs = Transformer(TransformerConfig(89, 6, 7, 1, 3))
    with pytest.raises(NotSupported, match="Transformer has no vectors of tokens to pool"):
        embed_ids(pairs, [[1]])


def test_a_folder_keeps_its_words(tmp_path: Path, encoder: Loaded[Any]) -> None:
    """Saved as our own, tokenizer and all, it gives the same vectors."""
    from eyeline.loading import save

    save(encoder.model, tmp_path / "own", tokenizer=encoder.tokenizer)
    own = load(tmp_path / "own", packed=False)
    assert own.tokenizer is not None and own.tokenizer.mask_id == 4
    want = embed(encoder.model, encoder.tokenizer, TEXTS)
    assert torch.equal(embed(own.model, own.tokenizer, TEXTS), want)
