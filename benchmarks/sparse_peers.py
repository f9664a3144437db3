"""transformers' Longformer and BigBird attention without their projections, on q, k, v as given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from .peers import Attend


class _Copy(nn.Module):
    """Stands where the query's projection was: the core divides its result in place."""

    def forward(self, x: Tensor) -> Tensor:
        return x.clone()


class _Given(nn.Module):
    """Stands where the projection of keys or values was."""

    def forward(self, x: Tensor) -> Tensor:
        return self.given


def longformer_core(window: int, positions: Sequence[int], heads: int, width: int) -> Attend:
    """transformers' Longformer self-attention without its projections, on q, k and v as given.

    They and the output are (1, L, heads · width), the core's own layout: nothing is reordered. It
    sees window / 2 on each side and the global positions, whose rows use the same q, k and v.
    """
    transformers = import_module("transformers")
    modeling = import_module("transformers.models.longformer.modeling_longformer")
    config = transformers.LongformerConfig(
        hidden_size=heads * width, num_attention_heads=heads, attention_window=[window],
        num_hidden_layers=1, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    core = modeling.LongformerSelfAttention(config, 0).eval()
    core.query = core.query_global = _Copy()
    core.key = core.key_global = key = _Given()
    core.value = core.value_global = value = _Given()

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        key.given, value.given = k.transpose(0, 1), v.transpose(0, 1)
        chosen = torch.zeros(q.shape[:2], dtype=torch.bool)
        chosen[:, list(positions)] = True
        out: Tensor = core(
            q,
            attention_mask=torch.where(chosen, 10000.0, 0.0),
            is_index_masked=torch.zeros_like(chosen),
            is_index_global_attn=chosen,
            is_global_attn=bool(chosen.any()),
        )[0]
        return out

    return attend


def bigbird_core(block: int, random: int, length: int, heads: int, width: int) -> Any:
    """transformers' BigBird core, in the mode in which it draws random blocks (training)."""
    transformers = import_module("transformers")
    modeling = import_module("transformers.models.big_bird.modeling_big_bird")
    config = transformers.BigBirdConfig(
        hidden_size=heads * width, num_attention_heads=heads, block_size=block,
        num_random_blocks=random, max_position_embeddings=length,
    )  # fmt: skip
    return modeling.BigBirdBlockSparseAttention(config, seed=0).train()


def bigbird_attend(core: Any, *, weights: bool) -> Attend:
    """The core on q, k and v of shape (1, H, L, E); the output is (1, L, H, E), as it makes it.

    weights: as released, the core also writes the (1, H, L, L) weights that nobody asked for.
    False stops it before that, to measure what it takes to attend.
    """
    modeling = import_module("transformers.models.big_bird.modeling_big_bird")

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        _, heads, length, width = q.shape
        block, random = core.block_size, core.num_random_blocks
        blocked, band, rows, columns = modeling.BigBirdModel.create_masks_for_block_sparse_attn(
            torch.ones(1, length), block
        )
        call = (
            q, k, v, band, rows, columns, blocked, blocked, heads, random, width, block, block,
            1, length, length, core.seed, None, None,
        )  # fmt: skip
        if weights:
            out: Tensor = core.bigbird_block_sparse_attention(*call)[0]
            return out
        return _before_the_weights(modeling, lambda: core.bigbird_block_sparse_attention(*call))

    return attend


class _Reached(Exception):
    """The core is about to write its weights."""


class _Stopping:
    """torch, but for `zeros`: the one place where the core makes room for (1, H, L, L) weights."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def zeros(self, *_: Any, **__: Any) -> Tensor:
        raise _Reached


def _before_the_weights(modeling: Any, work: Callable[[], object]) -> Tensor:
    modeling.torch = _Stopping()
    try:
        work()
    except _Reached as reached:
        trace = reached.__traceback__
        while trace is not None and "context_layer" not in trace.tb_frame.f_locals:
            trace = trace.tb_next
        assert trace is not None
        out: Tensor = trace.tb_frame.f_locals["context_layer"]
        return out
    finally:
        modeling.torch = torch
    raise RuntimeError("the core did not write its weights where they were expected")


def bigbird_layouts(core: Any, length: int) -> list[Tensor]:
    """For each head the blocks that the core looks at, (R, R) bool, drawn as it draws them."""
    import numpy

    numpy.random.seed(core.seed)
    block, heads = core.block_size, core.num_attention_heads
    ends, counts = core._get_rand_attn_plan(length, block, core.num_random_blocks)
    picks = core._bigbird_block_rand_mask_with_head(
        from_seq_length=length, to_seq_length=length, from_block_size=block, to_block_size=block,
        num_heads=heads, plan_from_length=ends, plan_num_rand_blocks=counts,
    )  # fmt: skip
    row = torch.arange(length // block)
    layouts = []
    for pick in picks:
        allowed = (row[:, None] - row).abs() <= 1
        allowed[1:-1].scatter_(1, torch.from_numpy(pick).long(), True)
        allowed[[0, -1]] = allowed[:, [0, -1]] = True
        layouts.append(allowed)
    return layouts
