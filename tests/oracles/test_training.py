"""Training under a pattern is training with the same dense mask; in bfloat16 it stays finite."""

from __future__ import annotations

from pydoc_data.topics import topics

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

from eyeline import dense_mask, streaming
from eyeline.encodings import Rotary
from eyeline.layers import Block, FeedForward, MultiHeadAttention, Stack
from eyeline.mechanisms import Exact, Mechanism
from eyeline.tokens import Tokens

WIDTH, HEADS, LAYERS = 48, 3, 4
# Too many pairs for a dense mask to be chosen: these are tiles, with their own backward pass.
LENGTH, BATCH, STEPS = 613, 2, 200
PATTERN = streaming(61, 3)

pytestmark = pytest.mark.slow


class Dense(Mechanism):
    """What a user would write: torch's attention with a bool mask."""

    def __init__(self) -> None:
        super().__init__()
        self.mask = dense_mask(PATTERN, LENGTH)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        q_tokens: Tokens | None = None,
        k_tokens: Tokens | None = None,
    ) -> Tensor:
        return scaled_dot_product_attention(query, key, value, attn_mask=self.mask)


class Model(nn.Module):
    """A causal model of bytes."""

    def __init__(self, *, dense: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, WIDTH)
        blocks = [
            Block(
                MultiHeadAttention(
                    WIDTH,
                    HEADS,
                    mechanism=Dense() if dense else Exact(PATTERN),
                    position=Rotary(WIDTH // HEADS),
                ),
                FeedForward(WIDTH, 4 * WIDTH, activation="gelu"),
                norm="pre",
            )
            for _ in range(LAYERS)
        ]
        self.stack = Stack(blocks, final_norm=nn.LayerNorm(WIDTH))

    def forward(self, ids: Tensor) -> Tensor:
        logits: Tensor = self.stack(self.embedding(ids)) @ self.embedding.weight.T
        return logits


def batches(steps: int) -> list[Tensor]:
    """Pieces of the language reference, as bytes."""
    text = torch.frombuffer(bytearray("".join(topics.values()).encode()), dtype=torch.uint8)
    generator = torch.Generator().manual_seed(0)
    starts = torch.randint(len(text) - LENGTH - 1, (steps, BATCH), generator=generator)
    return [torch.stack([text[s : s + LENGTH + 1] for s in row]).long() for row in starts.tolist()]


def losses(*, dense: bool, dtype: torch.dtype, steps: int) -> list[float]:
    torch.manual_seed(1)
    model = Model(dense=dense).to(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    found = []
    for ids in batches(steps):
        logits = model(ids[:, :-1]).float()
        loss = cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(float(loss.detach()))
    return found


def test_the_loss_curve_is_that_of_a_dense_mask() -> None:
    ours, theirs = (losses(dense=x, dtype=torch.float32, steps=STEPS) for x in (False, True))
    assert ours[-1] < ours[0] - 1.0, "it does not learn"
    assert max(abs(a - b) for a, b in zip(ours, theirs, strict=True)) <= 1e-3


def test_a_run_in_bfloat16_stays_finite() -> None:
    found = torch.tensor(losses(dense=False, dtype=torch.bfloat16, steps=60))
    assert found.isfinite().all()
    assert found[-10:].mean() < found[:10].mean() - 0.5
