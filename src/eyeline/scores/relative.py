"""Vectors of the distance: Shaw's, and those of Transformer-XL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from eyeline.checks import check_heads, check_size, check_width, wide_dtype, widened
from eyeline.encodings.added import Sinusoidal
from eyeline.scores.base import Block, Curve, Pairs, Reach, ScoreMod, ScoreStep, Step, Table
from eyeline.scores.by_distance import Bias, Product, Values

# Shaw: a trained vector for each clipped distance meets the query, and joins the values.


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


# TransformerXL: the key's place in a score is one relative to the query, met with two biases.


@final
class TransformerXL(nn.Module, ScoreMod):
    """score[h, i, j] = scale · ((q_i + u[h])·k_j + (q_i + v[h])·W[h] R[i - j]).

    The four products are content with content, content with position, and two that do not depend
    on the query: the global content bias u and the global position bias v, (num_heads, head_dim).
    R[t] is the sinusoidal encoding of t: the distance back, negative for keys after the query.
    weight: (num_heads · head_dim, width), all W below one another, as an nn.Linear has them.
    width: that of R, num_heads · head_dim if omitted. All three are trained.

    R has sine and cosine side by side, as Vaswani et al. 2017. The authors' code has all sines
    first: columns 0, 2, 4, … and then 1, 3, 5, … of ``weight`` are its W.
    Dai et al. 2019, "Transformer-XL".

    They start as N(0, 0.02²). Raises InvalidArgument for sizes below 1 and an odd width.
    """

    def __init__(
        self, num_heads: int, head_dim: int, *, width: int | None = None, base: float = 10000.0
    ) -> None:
        super().__init__()
        check_size("TransformerXL num_heads", num_heads)
        check_size("TransformerXL head_dim", head_dim)
        self.encoding = Sinusoidal(width if width is not None else num_heads * head_dim, base)
        self.u = nn.Parameter(torch.empty(num_heads, head_dim))
        self.v = nn.Parameter(torch.empty(num_heads, head_dim))
        self.weight = nn.Parameter(torch.empty(num_heads * head_dim, self.encoding.width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws the parameters anew."""
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.02)

    def places(self, distances: Tensor) -> Tensor:
        """W R[-distance] of int64 distances (D,), key minus query: (num_heads, D, head_dim)."""
        wide = wide_dtype(self.weight)
        table = self.encoding.table(distances.abs(), dtype=wide).unflatten(-1, (-1, 2))
        # The sine of a negative angle is negative, its cosine is not.
        sines = table[..., 0] * torch.where(distances > 0, -1, 1)[:, None]
        encoded = torch.stack((sines, table[..., 1]), -1).flatten(-2)
        vectors: Tensor = encoded @ self.weight.to(wide).unflatten(0, self.u.shape).mT
        return vectors

    def leaning(self, distances: Tensor) -> Tensor:
        """(v - u) · W R[-distance]: what the shifted query leaves to be added, (num_heads, D)."""
        places = self.places(distances)
        return (places @ (self.v - self.u).to(places.dtype).unsqueeze(-1)).squeeze(-1)

    def shifted(self, query: Tensor) -> Tensor:
        return query + self.u.to(query.dtype).unsqueeze(1)

    def steps(self) -> tuple[Step, ...]:
        return Product(self.places), ScaledBias(self.leaning)

    def check(self, heads: int, width: int, value_width: int | None) -> None:
        check_heads("TransformerXL", self.u.shape[0], heads)
        check_width("TransformerXL", self.u.shape[1], width)

    def extra_repr(self) -> str:
        heads, head_dim = self.u.shape
        return f"num_heads={heads}, head_dim={head_dim}, width={self.encoding.width}"


@final
@dataclass(frozen=True)
class ScaledBias(ScoreStep):
    """score[h, i, j] + scale · b[h, d(i, j)]: a bias that the scale of the products is for too."""

    curve: Curve
    reach: Reach = (None, None)
    additive = True

    def define(self, score: Tensor, pairs: Pairs) -> Tensor:
        return score + pairs.scale * pairs.look_up(self.curve)

    def forward(self, score: Tensor, block: Block, table: Table | None) -> Tensor:
        return score.add_(self._bias.added(block, table), alpha=block.scale)

    def backward(self, slope: Tensor, after: Tensor, block: Block, table: Table | None) -> Tensor:
        if table is not None and table.grad is not None:
            self._bias.backward(slope * block.scale, after, block, table)
        return slope

    @property
    def _bias(self) -> Bias:
        return Bias(self.curve, self.reach)
