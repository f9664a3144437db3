"""transformers' BigBird block-sparse core on the same q, k, v, with the random blocks it drew."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from eyeline import Blocks, Chunks, Global, Pattern, PerHead, attention, dense_mask

pytestmark = pytest.mark.slow
modeling = pytest.importorskip("transformers.models.big_bird.modeling_big_bird")

HEADS, WIDTH, BATCH, SEED = 3, 7, 2, 5
# block, number of blocks, random blocks a row: few blocks, and more than two plans of them
CASES = [(4, 9, 1), (4, 13, 3), (2, 31, 3), (5, 12, 2)]


def core(block: int, blocks: int, random: int) -> Any:
    """In training mode: else every random block is block 0, which then counts several times."""
    from transformers import BigBirdConfig

    config = BigBirdConfig(
        hidden_size=HEADS * WIDTH,
        num_attention_heads=HEADS,
        block_size=block,
        num_random_blocks=random,
        max_position_embeddings=block * blocks,
    )
    return modeling.BigBirdBlockSparseAttention(config, seed=SEED).train()


def theirs(found: Any, tensors: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Output (B, H, L, E), and the weights (B, H, L, L) that show what it looked at."""
    batch, heads, length, width = tensors[0].shape
    block, random = found.block_size, found.num_random_blocks
    masks = modeling.BigBirdModel.create_masks_for_block_sparse_attn(
        torch.ones(batch, length), block
    )
    blocked, band, rows, columns = masks
    out, weights = found.bigbird_block_sparse_attention(
        *tensors, band, rows, columns, blocked, blocked,
        heads, random, width, block, block, batch, length, length,
        seed=SEED, plan_from_length=None, plan_num_rand_blocks=None,
    )  # fmt: skip
    return out.transpose(1, 2), weights


def drawn(found: Any, length: int) -> list[Tensor]:
    """For each head, the random blocks of the rows 1 … R - 2, drawn as the core draws them."""
    import numpy

    numpy.random.seed(SEED)
    block, random = found.block_size, found.num_random_blocks
    ends, counts = found._get_rand_attn_plan(length, block, random)
    picks = found._bigbird_block_rand_mask_with_head(
        from_seq_length=length,
        to_seq_length=length,
        from_block_size=block,
        to_block_size=block,
        num_heads=HEADS,
        plan_from_length=ends,
        plan_num_rand_blocks=counts,
    )
    return [torch.from_numpy(pick).long() for pick in picks]


def layout(picks: Tensor, blocks: int) -> Tensor:
    """First and last row and column, three around the diagonal, and the random ones."""
    row = torch.arange(blocks)
    allowed = (row[:, None] - row).abs() <= 1
    allowed[1:-1].scatter_(1, picks, True)
    allowed[[0, -1]] = True
    allowed[:, [0, -1]] = True
    return allowed


def inputs(length: int) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(BATCH, HEADS, length, WIDTH, requires_grad=True) for _ in range(3)]


@pytest.mark.parametrize("backend", ["tiles", "auto", "reference"])
@pytest.mark.parametrize(("block", "blocks", "random"), CASES)
def test_the_same_random_blocks(block: int, blocks: int, random: int, backend: str) -> None:
    length = block * blocks
    found, tensors = core(block, blocks, random), inputs(length)
    pattern = PerHead([Blocks(layout(p, blocks), block) for p in drawn(found, length)])
    want, weights = theirs(found, tensors)
    mask = dense_mask(pattern, length, batch=BATCH, heads=HEADS)
    assert torch.equal(mask, weights > 0), "the pattern is not what it looked at"
    agree(want, attention(*tensors, pattern, backend=backend), tensors)


def test_heads_draw_blocks_of_their_own() -> None:
    picks = drawn(core(4, 13, 3), 52)
    assert not torch.equal(picks[0], picks[1])


@pytest.mark.parametrize(("block", "blocks"), [(4, 7), (3, 13)])
def test_its_window_and_global_blocks_as_an_expression(block: int, blocks: int) -> None:
    length = block * blocks
    ends = [*range(block), *range(length - block, length)]
    pattern = Chunks(block, left=1, right=1) | Global(ends)
    assert torch.equal(
        dense_mask(pattern, length),
        dense_mask(Blocks(layout(torch.zeros(blocks - 2, 1).long(), blocks), block), length),
    )


def agree(want: Tensor, out: Tensor, tensors: list[Tensor]) -> None:
    torch.testing.assert_close(out, want, rtol=0, atol=1e-5)
    above = torch.randn_like(want)
    both = (torch.autograd.grad(x, tensors, above) for x in (want, out))
    for wanted, found in zip(*both, strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)


def test_one_random_block_less_would_not_be_equal() -> None:
    found, tensors = core(4, 13, 3), inputs(52)
    picks = [p[:, :-1] for p in drawn(found, 52)]
    pattern: Pattern = PerHead([Blocks(layout(p, 13), 4) for p in picks])
    with torch.no_grad():
        want, _ = theirs(found, tensors)
        assert (attention(*tensors, pattern) - want).abs().max() > 1e-2
