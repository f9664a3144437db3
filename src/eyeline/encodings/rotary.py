"""Rotary encoding: a position turns each pair of a head's features by its own angle."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from functools import lru_cache
from typing import Literal, NamedTuple, final

import torch
from torch import Tensor

from eyeline.errors import InvalidArgument

Layout = Literal["half", "interleaved"]


class Tables(NamedTuple):
    """Cosines and signed sines, one per feature, shaped to broadcast against (B, H, L, E)."""

    cos: Tensor
    sin: Tensor


@final
@dataclass(frozen=True)
class Rotary:
    """Pair j of a head at position p turns by the angle p · base^(-2j / head_dim).

    (a, b) becomes (a cos - b sin, a sin + b cos). The scores of two tokens then depend on the
    difference of their positions only. Su et al. 2021, "RoFormer".

    layout says which features form pair j: "half" is (j, j + head_dim / 2), as Hugging Face
    stores Llama; "interleaved" is (2j, 2j + 1), as the paper and GGUF files have it. A model
    read with the wrong one writes fluently for some twenty tokens, then does not.

    Raises InvalidArgument for an odd or non-positive head_dim, a base that is not above 0, and
    another layout.
    """

    head_dim: int
    _: KW_ONLY
    base: float = 10000.0
    layout: Layout = "half"

    def __post_init__(self) -> None:
        if self.head_dim < 2 or self.head_dim % 2:
            raise InvalidArgument(f"rotary head_dim={self.head_dim}: an even number, at least 2")
        if not self.base > 0:
            raise InvalidArgument(f"rotary base={self.base}: above 0")
        if self.layout not in ("half", "interleaved"):
            raise InvalidArgument(f'rotary layout={self.layout!r}: "half" or "interleaved"')

    def tables(self, positions: Tensor, *, dtype: torch.dtype) -> Tables:
        """The tables of some positions; make them once per step, for all layers.

        positions: int64, (L,) or (B, L); nobody (-1) turns like position 0. Returns tables of
        shape (L, E) or (B, 1, L, E). Angles are computed in float64, then rounded to dtype.
        """
        frequencies = _frequencies(self.head_dim, self.base).to(positions.device)
        angles = positions.clamp(min=0).unsqueeze(-1) * frequencies
        cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
        both = Tables(self._spread(cos, cos), self._spread(-sin, sin))
        return both if positions.dim() == 1 else Tables(*(table.unsqueeze(1) for table in both))

    def rotate(self, x: Tensor, tables: Tables) -> Tensor:
        """x · cos + swapped(x) · sin: x of shape (B, H, L, E), turned position by position."""
        return (x * tables.cos).addcmul_(self._swapped(x), tables.sin)

    def _spread(self, first: Tensor, second: Tensor) -> Tensor:
        """Values of the first and the second feature of each pair, laid out as features."""
        axis = -2 if self.layout == "half" else -1
        return torch.stack((first, second), axis).flatten(-2)

    def _swapped(self, x: Tensor) -> Tensor:
        """Each feature replaced by the other one of its pair."""
        half = self.head_dim // 2
        if self.layout == "half":
            return x.roll(half, -1)
        return x.view(*x.shape[:-1], half, 2).flip(-1).flatten(-2)


@lru_cache(maxsize=64)
def _frequencies(head_dim: int, base: float) -> Tensor:
    with torch.inference_mode(False):
        exponents = torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim
        return torch.pow(torch.tensor(base, dtype=torch.float64), -exponents)
