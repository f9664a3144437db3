"""The part of a block that works on each token alone."""

from __future__ import annotations

from typing import final

from torch import Tensor, nn
from torch.nn import functional


@final
class GatedFeedForward(nn.Module):
    """W_down (silu(W_gate x) ⊙ W_up x), without biases.

    x: (…, width) → (…, width). W_gate and W_up are the two halves of one projection, so that a
    single row reads one long weight. Shazeer 2020, "GLU Variants Improve Transformer".
    """

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate_up = nn.Linear(width, 2 * hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        down: Tensor = self.down(functional.silu(gate).mul_(up))
        return down
