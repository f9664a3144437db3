"""transformers' Longformer self-attention with copied weights: outputs and gradients equal ours."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from eyeline import Full, Pattern, Tokens, attention
from eyeline.patterns import longformer

pytestmark = pytest.mark.slow
modeling = pytest.importorskip("transformers.models.longformer.modeling_longformer")

HEADS, WIDTH, BATCH = 3, 7, 2
# window (4 at least: theirs fails with 2), length in windows, positions of the global tokens
CASES = [(4, 5, ()), (4, 11, (0,)), (6, 1, (3,)), (6, 7, (0, 1, 17, 41)), (14, 5, tuple(range(16)))]


def layer(window: int, *, own_globals: bool) -> Any:
    """own_globals: with projections of their own for global tokens, as checkpoints have them."""
    from transformers import LongformerConfig

    config = LongformerConfig(
        hidden_size=HEADS * WIDTH,
        num_attention_heads=HEADS,
        attention_window=[window],
        attention_probs_dropout_prob=0.0,
        num_hidden_layers=1,
    )
    torch.manual_seed(0)
    found = modeling.LongformerSelfAttention(config, 0).eval()
    for parameter in found.parameters():
        nn.init.normal_(parameter, std=0.3)
    if not own_globals:
        for name in ("query", "key", "value"):
            given = getattr(found, name).state_dict()
            getattr(found, f"{name}_global").load_state_dict(given)
    return found


def theirs(found: Any, hidden: Tensor, positions: tuple[int, ...], lengths: list[int]) -> Tensor:
    """transformers' call: 0 is local, above it global, below it padding."""
    slot = torch.arange(hidden.shape[1])
    mask = torch.zeros(hidden.shape[:2])
    mask[:, list(positions)] = 10000.0
    mask[slot >= torch.tensor(lengths)[:, None]] = -10000.0
    out: Tensor = found(
        hidden,
        attention_mask=mask,
        is_index_masked=mask < 0,
        is_index_global_attn=mask > 0,
        is_global_attn=bool((mask > 0).any()),
    )[0]
    return out


def project(hidden: Tensor, *linears: nn.Linear) -> list[Tensor]:
    every = (linear(hidden) for linear in linears)
    return [x.unflatten(2, (HEADS, WIDTH)).transpose(1, 2) for x in every]


def ours(
    found: Any,
    hidden: Tensor,
    pattern: Pattern,
    tokens: Tokens | None = None,
    *,
    backend: str = "tiles",
) -> Tensor:
    q, k, v = project(hidden, found.query, found.key, found.value)
    out = attention(q, k, v, pattern, q_tokens=tokens, k_tokens=tokens, backend=backend)
    return out.transpose(1, 2).flatten(2)


def agree(want: Tensor, out: Tensor, hidden: Tensor) -> None:
    torch.testing.assert_close(out, want, rtol=0, atol=1e-5)
    above = torch.randn_like(want)
    wanted, found = (torch.autograd.grad(x, hidden, above)[0] for x in (want, out))
    torch.testing.assert_close(found, wanted, rtol=0, atol=2e-5)


@pytest.mark.parametrize("backend", ["tiles", "auto", "reference"])
@pytest.mark.parametrize(("window", "windows", "positions"), CASES)
def test_copied_weights(
    window: int, windows: int, positions: tuple[int, ...], backend: str
) -> None:
    length = window * windows
    hidden = torch.randn(BATCH, length, HEADS * WIDTH, requires_grad=True)
    found = layer(window, own_globals=False)
    pattern = longformer(window // 2, positions)
    want = theirs(found, hidden, positions, [length] * BATCH)
    agree(want, ours(found, hidden, pattern, backend=backend), hidden)


def test_one_neighbour_more_would_not_be_equal() -> None:
    hidden = torch.randn(BATCH, 42, HEADS * WIDTH)
    found = layer(6, own_globals=False)
    with torch.no_grad():
        want = theirs(found, hidden, (0, 17), [42, 42])
        for radius in (2, 4):
            out = ours(found, hidden, longformer(radius, (0, 17)))
            assert (out - want).abs().max() > 1e-2


def test_padding_on_the_right() -> None:
    length, lengths, positions = 42, [42, 29], (0, 17)
    hidden = torch.randn(BATCH, length, HEADS * WIDTH, requires_grad=True)
    found, tokens = layer(6, own_globals=False), Tokens.padded(lengths, side="right", length=length)
    real = (tokens.positions >= 0)[:, :, None]
    want = torch.where(real, theirs(found, hidden, positions, lengths), 0.0)
    agree(want, ours(found, hidden, longformer(3, positions), tokens), hidden)


def test_projections_of_their_own_for_global_tokens_are_a_second_call() -> None:
    positions = [0, 1, 17]
    hidden = torch.randn(BATCH, 42, HEADS * WIDTH, requires_grad=True)
    found = layer(6, own_globals=True)
    local = ours(found, hidden, longformer(3, positions))
    q, k, v = project(hidden, found.query_global, found.key_global, found.value_global)
    rows = attention(q[:, :, positions], k, v, Full(), backend="tiles").transpose(1, 2).flatten(2)
    out = local.index_copy(1, torch.tensor(positions), rows)
    agree(theirs(found, hidden, tuple(positions), [42] * BATCH), out, hidden)
