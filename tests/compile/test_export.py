"""torch.export with a dynamic length: one program, run at lengths it was not exported at."""

from __future__ import annotations

import io

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram, export, load, save

from compile.traced import assert_same
from eyeline import Causal, Explicit, Pattern, Tokens, attention, sliding_window, streaming
from eyeline.layers import MultiHeadAttention
from eyeline.scores import ALiBi, ScoreMod, T5Bias

LENGTHS = (7, 67, 601)
LENGTH = Dim("length", min=2, max=4096)


class Attends(nn.Module):
    """Projections and attention, as a user writes them."""

    def __init__(self, pattern: Pattern, score_mod: ScoreMod | None = None) -> None:
        super().__init__()
        self.qkv = nn.Linear(12, 36)
        self.pattern, self.score_mod = pattern, score_mod

    def forward(self, x: Tensor, positions: Tensor | None = None) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, 4, 3)).transpose(1, 3).unbind(2)
        tokens = None if positions is None else Tokens(positions)
        out = attention(
            q, k, v, self.pattern, score_mod=self.score_mod, q_tokens=tokens, k_tokens=tokens
        )
        return out.transpose(1, 2).flatten(2)


def exported(module: nn.Module, padded: bool, *, strict: bool = False) -> ExportedProgram:
    """Exported at one length, written to a file and read again."""
    shapes = ({1: LENGTH}, {1: LENGTH}) if padded else ({1: LENGTH},)
    program = export(module, inputs(13, padded), dynamic_shapes=shapes, strict=strict)
    file = io.BytesIO()
    save(program, file)
    file.seek(0)
    return load(file)


def inputs(length: int, padded: bool) -> tuple[Tensor, ...]:
    x = torch.randn(2, length, 12, dtype=torch.float64)
    return (x, Tokens.padded([length - 5, length]).positions) if padded else (x,)


@pytest.mark.parametrize(
    ("pattern", "score_mod", "padded", "strict"),
    [
        (sliding_window(5), None, False, False),
        (sliding_window(5), None, True, True),
        (streaming(9, 2), ALiBi(4), False, False),
        (streaming(9, 2), ALiBi(4), True, False),
        (Causal(), T5Bias(4, bidirectional=True, max_distance=20), True, False),
        (Causal(), None, False, True),
    ],
)
def test_three_lengths(
    pattern: Pattern, score_mod: ScoreMod | None, padded: bool, strict: bool
) -> None:
    module = Attends(pattern, score_mod).double()
    program = exported(module, padded, strict=strict).module()
    for length in LENGTHS:
        given = inputs(length, padded)
        with torch.no_grad():
            assert_same(program(*given), module(*given))


def test_a_program_exported_for_inference_can_be_trained() -> None:
    module = Attends(streaming(9, 2), T5Bias(4, bidirectional=True, max_distance=20)).double()
    with torch.no_grad():
        program = exported(module, padded=True).module()
    given = inputs(67, padded=True)
    right = torch.autograd.grad(module(*given).square().sum(), list(module.parameters()))
    found = torch.autograd.grad(program(*given).square().sum(), list(program.parameters()))
    for a, b in zip(found, right, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


def test_a_mask_is_an_input_or_part_of_the_program() -> None:
    mask = torch.rand(67, 67, generator=torch.Generator().manual_seed(0)) < 0.4

    class Masked(nn.Module):
        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            q = x.unflatten(-1, (4, 3)).transpose(1, 2)
            return attention(q, q, q, Explicit(mask) | Causal())

    x = torch.randn(2, 67, 12, dtype=torch.float64)
    shapes = ({1: LENGTH}, {0: LENGTH, 1: LENGTH})
    program = export(Masked(), (x, mask), dynamic_shapes=shapes).module()
    for length in (7, 19, 67):
        given = x[:, :length], mask[:length, :length]
        assert_same(program(*given), Masked()(*given))
    fixed = Attends(Explicit(mask) | Causal()).double()
    assert_same(export(fixed, (x,)).module()(x), fixed(x))


def test_a_layer() -> None:
    layer = MultiHeadAttention(
        12, 4, num_kv_heads=2, pattern=sliding_window(5), position=ALiBi(4)
    ).double()
    layer.eval()
    x = torch.randn(2, 13, 12, dtype=torch.float64)
    program = export(layer, (x,), dynamic_shapes=({1: LENGTH},)).module()
    for length in LENGTHS:
        x = torch.randn(2, length, 12, dtype=torch.float64)
        with torch.no_grad():
            assert_same(program(x), layer(x))
