"""Short inputs whose weights are changed: the whole matrix at once, not many small tiles.

A batch of short texts, trained with dropout or a learned bias, comes here. The computation is the
reference's own, so all its derivatives exist.
"""

from __future__ import annotations

from torch import Tensor

from eyeline.budgets import budgets
from eyeline.kernels import reference
from eyeline.kernels.request import Request

NAME = "short"


def refusal(request: Request) -> str | None:
    """It is for few weights in all, and for those that steps change."""
    if not request.steps:
        return "it is for score modifiers and dropout; without them nothing is gained"
    batch, heads, queries, _ = request.query.shape
    count = batch * heads * queries * request.key.shape[2]
    if count > budgets.short_weights:
        return f"{count:,} weights are more than {budgets.short_weights:,}: tiles are faster"
    return None


def run(request: Request) -> tuple[Tensor, Tensor]:
    """output (B, H, L, Ev) and lse (B, H, L), as the reference."""
    return reference.run(request)
