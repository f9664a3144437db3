"""Feature maps: φ of queries and keys, whose products stand in for the exponential of scores."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch
from torch import Tensor, nn

from eyeline.checks import check_number, check_size
from eyeline.errors import InvalidArgument


class FeatureMap(ABC):
    """φ: (…, E) to (…, F), applied to each query and each key alone; features are at least 0.

    To write one, make a frozen dataclass (or a module, if something is trained) that is called
    with a tensor. It is given float32 or float64, and keeps the dtype.
    """

    logarithmic: ClassVar[bool] = False
    """Whether it returns log φ. Sums are then rescaled so that nothing overflows or vanishes."""

    @abstractmethod
    def __call__(self, x: Tensor) -> Tensor:
        """φ(x), or log φ(x)."""

    @abstractmethod
    def count(self, head_dim: int) -> int:
        """F, the number of features of a head of this width.

        Raises InvalidArgument if the map was made for another width.
        """


@final
@dataclass(frozen=True)
class Elu(FeatureMap):
    """φ(x) = elu(x) + 1: x + 1 above 0, exp(x) below; F = E. Katharopoulos et al. 2020."""

    def __call__(self, x: Tensor) -> Tensor:
        found: Tensor = _Elu.apply(x)  # type: ignore[no-untyped-call]
        return found

    def count(self, head_dim: int) -> int:
        return head_dim


class _Elu(torch.autograd.Function):
    """In a few passes; its derivative is φ where φ is below 1, else 1."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        # Not elu(x) + 1, which is 0 below -17 in float32.
        out = x.clamp(max=0).exp_().add_(x.clamp(min=0))
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (out,) = ctx.saved_tensors
        slope: Tensor = grad * out.clamp(max=1)
        return slope


@final
@dataclass(frozen=True)
class Relu(FeatureMap):
    """φ(x) = max(x, 0) + eps; F = E. Choromanski et al. 2021 ("generalised attention").

    With eps = 0 a query may have nothing in common with any key: its 0 / 0 is 0. Raises
    InvalidArgument for an eps below 0.
    """

    eps: float = 1e-3

    def __post_init__(self) -> None:
        check_number("relu eps", self.eps, equal=True)

    def __call__(self, x: Tensor) -> Tensor:
        return x.relu() + self.eps

    def count(self, head_dim: int) -> int:
        return head_dim


@final
class Favor(nn.Module, FeatureMap):
    """φ_f(x) = exp(w_fᵀu − |u|²/2) / √F with u = x / E^¼: positive random features (FAVOR+).

    E[φ(q)ᵀφ(k)] = exp(qᵀk / √E), so linear attention with them is an estimate of softmax
    attention whose error falls as 1/√F, and grows quickly with the size of queries and keys.
    features: F, round(E · log E), at least 1, if not given. w: rows orthogonal in blocks of E, each
    of the length that E normal numbers have; drawn from ``seed``, the same until ``redraw``. It is
    a buffer (F, E), ``projection``, not trained. Choromanski et al. 2021.

    It returns log φ, without the √F, which cancels. Raises InvalidArgument for sizes below 1.
    """

    logarithmic = True

    def __init__(self, head_dim: int, features: int | None = None, *, seed: int = 0) -> None:
        super().__init__()
        features = features if features is not None else _enough(head_dim)
        check_size("favor head_dim", head_dim)
        check_size("favor features", features)
        self.projection: Tensor
        self.register_buffer("projection", orthogonal_rows(features, head_dim, seed=seed))

    @torch.no_grad()
    def redraw(self, seed: int | None = None) -> None:
        """Draws w anew; seed: drawn from torch's generator if not given."""
        drawn = seed if seed is not None else int(torch.randint(1 << 62, (), device="cpu"))
        self.projection.copy_(orthogonal_rows(*self.projection.shape, seed=drawn))

    def forward(self, x: Tensor) -> Tensor:
        """log φ(x): (…, E) to (…, F)."""
        u = x * x.shape[-1] ** -0.25
        half = u.square().sum(-1, keepdim=True) / 2
        found: Tensor = u @ self.projection.to(u.dtype).transpose(0, 1) - half
        return found

    def count(self, head_dim: int) -> int:
        features, width = self.projection.shape
        if width != head_dim:
            raise InvalidArgument(f"favor for heads of {width}, these are {head_dim}")
        return features

    def extra_repr(self) -> str:
        features, width = self.projection.shape
        return f"head_dim={width}, features={features}"


def _enough(head_dim: int) -> int:
    return max(round(head_dim * math.log(head_dim)), 1) if head_dim > 0 else 1


def orthogonal_rows(rows: int, width: int, *, seed: int) -> Tensor:
    """(rows, width): in each block of ``width`` rows at right angles, as long as normal ones."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    blocks = []
    for _ in range(0, rows, width):
        q, r = torch.linalg.qr(normal(width, width))
        # Uniform among all rotations: signs as if R had a positive diagonal.
        blocks.append(q * r.diagonal().sign())
    lengths = normal(rows, width).norm(dim=-1, keepdim=True)
    found: Tensor = (torch.cat(blocks)[:rows] * lengths).float()
    return found
