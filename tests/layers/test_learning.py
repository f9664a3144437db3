"""Each ancestor and rival learns a small task that only its own way of looking can solve."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from eyeline.layers.ancestors import (
    LSTMN,
    Decomposable,
    IntraDecoder,
    IntraTemporal,
    StructuredAttention,
)
from eyeline.layers.rivals import Convolution, Recurrent

BATCH, L, WIDTH, WORDS = 32, 9, 16, 6


def learn(parts: list[nn.Module], loss: Callable[[], Tensor], steps: int) -> float:
    """Trains on a new batch each step; the mean loss of the last ones."""
    parameters = [p for part in parts for p in part.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=0.01)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        now = loss()
        now.backward()
        optimizer.step()
        losses.append(float(now.detach()))
    return sum(losses[-10:]) / 10


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def words(length: int = L) -> Tensor:
    return torch.randint(WORDS, (BATCH, length))


@pytest.mark.slow
def test_structured_attention_finds_the_word_before_a_label() -> None:
    """Which word has the mark, wherever it stands: a mean of all words does not tell."""
    embedding, layer = nn.Embedding(2 * WORDS, WIDTH), StructuredAttention(WIDTH, WIDTH, 2)
    classify = nn.Linear(2 * WIDTH, WORDS)

    def loss() -> Tensor:
        ids, place = words(), torch.randint(L, (BATCH, 1))
        marked = ids.gather(1, place)
        found = layer(embedding(ids.scatter(1, place, marked + WORDS)))
        scores = classify(found.embedding.flatten(1))
        return cross_entropy(scores, marked[:, 0]) + 0.01 * found.penalty.mean()

    assert learn([embedding, layer, classify], loss, 120) < 0.3


@pytest.mark.slow
def test_lstmn_looks_back() -> None:
    """The last word asks for the second one."""
    embedding, layer, classify = nn.Embedding(WORDS, WIDTH), LSTMN(WIDTH), nn.Linear(WIDTH, WORDS)

    def loss() -> Tensor:
        ids = words(6)
        return cross_entropy(classify(layer(embedding(ids))[:, -1]), ids[:, 1])

    assert learn([embedding, layer, classify], loss, 180) < 0.5


@pytest.mark.slow
def test_decomposable_attention_compares() -> None:
    """Whether some word of one sentence stands in the other."""
    embedding, layer = nn.Embedding(12, WIDTH), Decomposable(WIDTH, 32, classes=2)

    def loss() -> Tensor:
        a, b = (torch.randint(12, (2 * BATCH, 2)) for _ in range(2))
        shared = (a[:, :, None] == b[:, None]).any(-1).any(-1)
        return cross_entropy(layer(embedding(a), embedding(b)), shared.long())

    assert learn([embedding, layer], loss, 250) < 0.25


def test_intra_temporal_attention_finds_what_is_asked_for() -> None:
    """A decoder state is a turned picture of one memory vector; the layer learns to turn back."""
    layer, turn = IntraTemporal(WIDTH, memory_width=8), torch.randn(8, WIDTH)

    def loss() -> Tensor:
        memory = torch.randn(BATCH, L, 8)
        order = torch.rand(BATCH, L).argsort(1)
        asked = memory.gather(1, order[..., None].expand(-1, -1, 8)) @ turn
        return -layer(asked, memory).weights.gather(2, order[..., None]).log().mean()

    assert learn([layer], loss, 150) < 0.4


def test_intra_decoder_attention_finds_what_was_written() -> None:
    """A state asks, with its second half, for the one of the states before it that has its key."""
    layer = IntraDecoder(WIDTH)

    def loss() -> Tensor:
        key, ask = torch.randn(BATCH, L, 8), torch.zeros(BATCH, L, 8)
        target = (torch.rand(BATCH, L - 1) * torch.arange(1, L)).long()[..., None]
        ask[:, 1:] = key.gather(1, target.expand(-1, -1, 8))
        weight = layer.weights(torch.cat((key, ask), -1))[:, 1:]
        return -weight.gather(2, target).log().mean()

    assert learn([layer], loss, 150) < 0.25


@pytest.mark.parametrize("layer", [
    lambda: Convolution(WIDTH, 3), lambda: Convolution(WIDTH, 2, causal=True),
    lambda: Recurrent(WIDTH), lambda: Recurrent(WIDTH, cell="elman"),
], ids=["centred", "causal", "gru", "elman"])  # fmt: skip
def test_rivals_tell_what_came_before(layer: Callable[[], nn.Module]) -> None:
    embedding, made, classify = nn.Embedding(WORDS, WIDTH), layer(), nn.Linear(WIDTH, WORDS)

    def loss() -> Tensor:
        ids = words()
        scores = classify(made(embedding(ids)).relu())[:, 1:]
        return cross_entropy(scores.flatten(0, 1), ids[:, :-1].flatten())

    assert learn([embedding, made, classify], loss, 120) < 0.2
