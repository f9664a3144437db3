"""Rotary encoding: a position turns each pair of a head's features by its own angle."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Literal, NamedTuple, final

import torch
from torch import Tensor

from eyeline.checks import check_number, check_size
from eyeline.encodings.rotary_scaling import Scaling
from eyeline.errors import InvalidArgument
from eyeline.memory import remembered_property

Layout = Literal["half", "interleaved"]


class Tables(NamedTuple):
    """Cosines and signed sines, one per turned feature, to broadcast against (B, H, L, E)."""

    cos: Tensor
    sin: Tensor


@final
@dataclass(frozen=True)
class Rotary:
    """Pair j of a head at position p turns by the angle p · base^(-2j / rotated).

    (a, b) becomes (a cos - b sin, a sin + b cos). The scores of two tokens then depend on the
    difference of their positions only. Su et al. 2021, "RoFormer".

    layout says which features form pair j: "half" is (j, j + rotated / 2), as Hugging Face
    stores Llama; "interleaved" is (2j, 2j + 1), as the paper and GGUF files have it. A model
    read with the wrong one writes fluently for some twenty tokens, then does not.

    scaling: other speeds for texts longer than those of training (``Linear``, ``NTK``, ``YaRN``,
    ``Llama3``). rotated: only the first so many features of a head turn, the others stay as they
    are (GPT-J, GPT-NeoX); all of them if None.

    Raises InvalidArgument for a head_dim or a ``rotated`` that is odd or below 2, a ``rotated``
    above head_dim, a base that is not above 0, another layout, and a scaling that does not fit.
    """

    head_dim: int
    _: KW_ONLY
    base: float = 10000.0
    layout: Layout = "half"
    scaling: Scaling | None = None
    rotated: int | None = None

    def __post_init__(self) -> None:
        name = "head_dim" if self.rotated is None else "rotated"
        check_size(f"rotary {name}", self.turned, even=True)
        if self.turned > self.head_dim:
            raise InvalidArgument(f"rotary rotated={self.turned} of head_dim={self.head_dim}")
        check_number("rotary base", self.base)
        if self.layout not in ("half", "interleaved"):
            raise InvalidArgument(f'rotary layout={self.layout!r}: "half" or "interleaved"')
        self.frequencies  # noqa: B018  (the scaling refuses what it cannot scale)

    @property
    def turned(self) -> int:
        """The number of features that turn."""
        return self.head_dim if self.rotated is None else self.rotated

    @remembered_property
    def frequencies(self) -> Tensor:
        """How far each pair turns per position, in radians: float64 (turned / 2,), on the CPU."""
        with torch.inference_mode(False):
            pairs = torch.arange(0, self.turned, 2, dtype=torch.float64, device="cpu")
            plain = torch.pow(self.base, -pairs / self.turned)
            return plain if self.scaling is None else self.scaling.scaled(plain, self.base)

    def tables(self, positions: Tensor, *, dtype: torch.dtype) -> Tables:
        """The tables of some positions; make them once per step, for all layers.

        positions: int64, (L,) or (B, L); nobody (-1) turns like position 0. Returns tables of
        shape (L, turned) or (B, 1, L, turned), the scaling's magnitude in them. Angles are
        computed in float64, then rounded to dtype.
        """
        angles = positions.clamp(min=0).unsqueeze(-1) * self.frequencies.to(positions.device)
        cos, sin = angles.cos(), angles.sin()
        if self.scaling is not None and self.scaling.magnitude != 1.0:
            cos, sin = cos * self.scaling.magnitude, sin * self.scaling.magnitude
        cos, sin = cos.to(dtype), sin.to(dtype)
        both = Tables(self._spread(cos, cos), self._spread(-sin, sin))
        return both if positions.dim() == 1 else Tables(*(table.unsqueeze(1) for table in both))

    def rotate(self, x: Tensor, tables: Tables) -> Tensor:
        """x · cos + swapped(x) · sin: x of shape (B, H, L, E), turned position by position."""
        if self.turned == self.head_dim:
            return (x * tables.cos).addcmul_(self._swapped(x), tables.sin)
        first, rest = x[..., : self.turned], x[..., self.turned :]
        out = (first * tables.cos).addcmul_(self._swapped(first), tables.sin)
        return torch.cat((out, rest), -1)

    def _spread(self, first: Tensor, second: Tensor) -> Tensor:
        """Values of the first and the second feature of each pair, laid out as features."""
        axis = -2 if self.layout == "half" else -1
        return torch.stack((first, second), axis).flatten(-2)

    def _swapped(self, x: Tensor) -> Tensor:
        """Each feature replaced by the other one of its pair."""
        half = self.turned // 2
        if self.layout == "half":
            return x.roll(half, -1)
        return x.view(*x.shape[:-1], half, 2).flip(-1).flatten(-2)
