"""Blocks of positions pooled, and a route made of a choice of blocks, against a dense mask."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from eyeline import Causal, Full, Pattern, Tokens, dense_mask
from eyeline.errors import InvalidArgument
from eyeline.functional import (
    attention,
    position_blocks,
    route_of_blocks,
    routed_attention,
    routed_attention_weights,
)
from eyeline.tokens import NOBODY

B, H, HK, E, SIZE, LENGTH = 2, 4, 2, 3, 5, 33


def holes() -> Tokens:
    slots = torch.arange(LENGTH)
    positions = torch.stack((slots, slots + 2))
    positions[0, 9:16], positions[1, :3] = NOBODY, NOBODY
    return Tokens(positions)


SITUATIONS = {
    "plain": Tokens.arange(0, LENGTH),
    "left pads": Tokens.padded([LENGTH, 12], "left"),
    "holes": holes(),
    "packed": Tokens.packed([7, 1, 12, 9], length=LENGTH),
}


def drawn(length: int = LENGTH) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(B, heads, length, E, generator=generator, dtype=torch.float64).requires_grad_()
        for heads in (H, HK, HK)
    ]


def members(tokens: Tokens) -> list[list[list[int]]]:
    """The slots of each block of each row, by a loop over documents and positions."""
    rows = []
    for row in range(B):
        one = tokens.row(row)
        documents = [0] * LENGTH if one.documents is None else one.documents.tolist()
        blocks: dict[tuple[int, int], list[int]] = {}
        for slot, position in enumerate(one.positions.tolist()):
            if position != NOBODY:
                blocks.setdefault((documents[slot], position // SIZE), []).append(slot)
        rows.append([blocks[name] for name in sorted(blocks)])
    return rows


@pytest.mark.parametrize("by", ["mean", "max", "sum"])
@pytest.mark.parametrize("tokens", SITUATIONS.values(), ids=SITUATIONS)
def test_pools_the_real_tokens_of_each_block(tokens: Tokens, by: str) -> None:
    (x, _, _), blocks, listed = drawn(), position_blocks(tokens, SIZE), members(tokens)
    pooled = blocks.pool(x, by)  # type: ignore[arg-type]
    expected = torch.zeros(B, H, blocks.count, E, dtype=x.dtype)
    for row in range(B):
        for n, slots in enumerate(listed[row]):
            block = x[row][:, slots]
            expected[row, :, n] = {"mean": block.mean, "max": block.amax, "sum": block.sum}[by](1)
    torch.testing.assert_close(pooled, expected, rtol=0, atol=1e-12)
    above = torch.randn_like(pooled)
    own, due = (torch.autograd.grad(y, x, above)[0] for y in (pooled, expected))
    torch.testing.assert_close(own, due, rtol=0, atol=1e-12)


@pytest.mark.parametrize("by", ["mean", "max", "sum"])
def test_padding_is_not_pooled(by: str) -> None:
    tokens = SITUATIONS["holes"]
    x, blocks = drawn()[0].detach(), position_blocks(tokens, SIZE)
    padding = (tokens.positions == NOBODY)[:, None, :, None]
    for garbage in (torch.nan, torch.inf):
        spoiled = x.masked_fill(padding, garbage)
        assert torch.equal(blocks.pool(x, by), blocks.pool(spoiled, by))  # type: ignore[arg-type]


def test_half_types_are_summed_wide() -> None:
    blocks = position_blocks(Tokens.arange(0, 4096), 4096)
    ones = torch.ones(1, 1, 4096, 1, dtype=torch.float16)
    assert float(blocks.pool(ones)) == 1.0 and blocks.pool(ones).dtype == torch.float16
    assert float(blocks.pool(ones * 32)) == 32.0  # whose sum is beyond float16


def chosen_mask(choice: Tensor, tokens: Tokens, *, each_query: bool) -> Tensor:
    """Who attends to whom, (B, H, L, S), by loops."""
    mask = torch.zeros(B, H, LENGTH, LENGTH, dtype=torch.bool)
    for row, listed in enumerate(members(tokens)):
        for head in range(H):
            for n, own in enumerate(listed):
                for slot in own:
                    for number in choice[row, head, slot if each_query else n].tolist():
                        if number != NOBODY:
                            mask[row, head, slot, listed[number]] = True
    return mask


def drawn_choice(tokens: Tokens, k: int, *, each_query: bool) -> Tensor:
    """Some numbers, some of them twice, some -1, for blocks that each row has."""
    generator = torch.Generator().manual_seed(k)
    blocks = position_blocks(tokens, SIZE)
    most = torch.tensor([len(listed) for listed in members(tokens)])
    shape = (B, H, LENGTH if each_query else blocks.count, k)
    drawn = torch.randint(-1, 1 << 30, shape, generator=generator)
    return torch.where(drawn % 4 == 3, NOBODY, drawn % most[:, None, None, None])


@pytest.mark.parametrize("pattern", [Full(), Causal()], ids=str)
@pytest.mark.parametrize("each_query", [False, True], ids=["blocks", "queries"])
@pytest.mark.parametrize("k", [0, 1, 3, 9])
@pytest.mark.parametrize("tokens", SITUATIONS.values(), ids=SITUATIONS)
def test_equals_the_dense_mask(tokens: Tokens, k: int, each_query: bool, pattern: Pattern) -> None:
    choice, blocks = drawn_choice(tokens, k, each_query=each_query), position_blocks(tokens, SIZE)
    route = route_of_blocks(choice, blocks, query_blocks=None if each_query else blocks)
    given, places = drawn(), {"q_tokens": tokens, "k_tokens": tokens}
    ours = routed_attention(*given, route, pattern, **places)
    mask = chosen_mask(choice, tokens, each_query=each_query)
    due = dense(given, mask & _seen(pattern, tokens))
    torch.testing.assert_close(ours, due, rtol=0, atol=1e-10)
    above = torch.randn_like(due)
    for own, right in zip(
        *(torch.autograd.grad(x, given, above) for x in (ours, due)), strict=True
    ):
        torch.testing.assert_close(own, right, rtol=0, atol=1e-10)
    weights = routed_attention_weights(*given[:2], route, pattern, **places)
    value = given[2].repeat_interleave(H // HK, 1)
    torch.testing.assert_close(weights @ value, ours, rtol=0, atol=1e-10)


def dense(given: list[Tensor], mask: Tensor) -> Tensor:
    """Softmax attention under a mask (B, H, L, S); 0 for a query that attends to nothing."""
    query, key, value = given[0], *(x.repeat_interleave(H // HK, 1) for x in given[1:])
    score = (query @ key.mT / E**0.5).masked_fill(~mask, -1e300)
    return (score.softmax(-1) * mask) @ value


def _seen(pattern: Pattern, tokens: Tokens) -> Tensor:
    mask = dense_mask(pattern, q_tokens=tokens, k_tokens=tokens)
    return mask if mask.dim() == 2 else mask[:, None]


def test_other_queries_than_keys() -> None:
    """A step: its queries choose among the blocks of all keys that are kept."""
    (query, key, value), keys = drawn(), Tokens.arange(0, LENGTH)
    blocks = position_blocks(keys, SIZE)
    choice = torch.arange(blocks.count).expand(B, H, 2, -1)[..., ::2]
    ours = routed_attention(query[:, :, -2:], key, value, route_of_blocks(choice, blocks))
    even = (torch.arange(LENGTH) // SIZE) % 2 == 0
    due = attention(query[:, :, -2:], key[:, :, even], value[:, :, even])
    torch.testing.assert_close(ours, due, rtol=0, atol=1e-12)


def test_refusals() -> None:
    blocks = position_blocks(Tokens.arange(0, 10), 5)
    right = torch.zeros(1, 1, 2, 1, dtype=torch.int64)
    for choice, words in (
        (right.int(), r"choice is torch\.int32"),
        (right[0], r"int64 \(batch, heads, queries, k\)"),
        (right + 2, "from 2 to 2: there are blocks 0 to 1"),
        (right - 2, "from -2 to -2"),
    ):
        with pytest.raises(InvalidArgument, match=words):
            route_of_blocks(choice, blocks)
    with pytest.raises(InvalidArgument, match="for 2 blocks of queries"):
        route_of_blocks(right[:, :, :1], blocks, query_blocks=blocks)
