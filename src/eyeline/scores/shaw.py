"""Shaw: a trained vector for each clipped distance meets the query, and joins the values."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn

from eyeline.encodings.checks import check_size
from eyeline.scores.base import ScoreMod, Step
from eyeline.scores.checks import check_heads, check_width
from eyeline.scores.product import Product
from eyeline.scores.tabulate import widened
from eyeline.scores.values import Values


@final
class Shaw(nn.Module, ScoreMod):
    """score[i, j] = scale · q_i·(k_j + a^K[c]),  out_i = Σ_j weight[i, j] · (v_j + a^V[c]),

    with c = clip(j - i, -m, m) + m and m = max_distance. Trained are key = a^K, (2m + 1, head_dim),
    and value = a^V, (2m + 1, value_dim). num_heads: None where all heads share them, as in the
    paper; else each of so many query heads has its own, (num_heads, 2m + 1, …).

    value_dim: the width of the values, head_dim if omitted; 0 for no vectors there (``value`` is
    None then). With them, values of 0 do not give an output of 0.
    Shaw, Uszkoreit & Vaswani 2018, "Self-Attention with Relative Position Representations".

    Vectors start as N(0, 0.02²). Raises InvalidArgument for sizes below 1.
    """

    def __init__(
        self,
        head_dim: int,
        max_distance: int,
        *,
        value_dim: int | None = None,
        num_heads: int | None = None,
    ) -> None:
        super().__init__()
        check_size("Shaw head_dim", head_dim)
        check_size("Shaw max_distance", max_distance)
        if num_heads is not None:
            check_size("Shaw num_heads", num_heads)
        value_dim = value_dim if value_dim is not None else head_dim
        if value_dim != 0:
            check_size("Shaw value_dim", value_dim)
        places = ((num_heads,) if num_heads is not None else ()) + (2 * max_distance + 1,)
        self.max_distance = max_distance
        self.num_heads = num_heads
        self.key = nn.Parameter(torch.empty(*places, head_dim))
        self.register_parameter("value", None)
        if value_dim:
            self.value = nn.Parameter(torch.empty(*places, value_dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws the vectors anew."""
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.02)

    def keys(self, distances: Tensor) -> Tensor:
        """a^K of int64 distances (D,): (1 or num_heads, D, head_dim)."""
        return self._vectors(self.key, distances)

    def values(self, distances: Tensor) -> Tensor:
        """a^V of int64 distances (D,): (1 or num_heads, D, value_dim)."""
        assert self.value is not None
        return self._vectors(self.value, distances)

    def _vectors(self, table: Tensor, distances: Tensor) -> Tensor:
        table = widened(table if self.num_heads is not None else table[None])
        return table[:, distances.clamp(-self.max_distance, self.max_distance) + self.max_distance]

    def steps(self) -> tuple[Step, ...]:
        reach = (-self.max_distance, self.max_distance)
        met = Product(self.keys, reach)
        return (met,) if self.value is None else (met, Values(self.values, reach))

    def check(self, heads: int, width: int, value_width: int | None) -> None:
        if self.num_heads is not None:
            check_heads("Shaw", self.num_heads, heads)
        check_width("Shaw key", self.key.shape[-1], width)
        if self.value is not None and value_width is not None:
            check_width("Shaw value", self.value.shape[-1], value_width)

    def extra_repr(self) -> str:
        value = 0 if self.value is None else self.value.shape[-1]
        return (
            f"head_dim={self.key.shape[-1]}, max_distance={self.max_distance}, "
            f"value_dim={value}, num_heads={self.num_heads}"
        )
