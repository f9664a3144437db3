"""Choosing the next token from the model's logits."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from eyeline.errors import InvalidArgument


@dataclass(frozen=True)
class Sampler:
    """Draws token t with probability softmax(logits / temperature)_t among the tokens kept.

    temperature: 0 takes the largest logit (greedy; the limit of small temperatures).
    top_k: only the k largest logits are kept.
    top_p: of these, only the likeliest whose probabilities, taken in descending order, first sum to
        at least p; never fewer than one (nucleus sampling, Holtzman et al. 2020).
    seed: where the random numbers begin; None begins anywhere.

    Raises InvalidArgument for a value outside these meanings.
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        if not (_real(self.temperature) and self.temperature >= 0):
            raise _refused("temperature", self.temperature, "a number, 0 or more")
        if self.top_k is not None and not (_whole(self.top_k) and self.top_k >= 1):
            raise _refused("top_k", self.top_k, "a whole number from 1, or None")
        if self.top_p is not None and not (_real(self.top_p) and 0 < self.top_p <= 1):
            raise _refused("top_p", self.top_p, "a number above 0, up to 1, or None")
        if self.seed is not None and not (_whole(self.seed) and 0 <= self.seed < 1 << 63):
            raise _refused("seed", self.seed, "a whole number from 0 to 2^63 - 1, or None")

    def generator(self, device: torch.device | str = "cpu") -> torch.Generator:
        """The random numbers for one text or one batch, begun at `seed`."""
        generator = torch.Generator(device)
        if self.seed is None:
            generator.seed()
        else:
            generator.manual_seed(self.seed)
        return generator

    def pick(self, logits: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """One token id per row: logits (B, V), any floating type -> int64 (B,).

        Rows draw from `generator` one after another; the draws of a row depend on the batch it is
        in. Raises InvalidArgument where a row holds NaN or +inf, or nothing but -inf.
        """
        if logits.dim() != 2 or not logits.is_floating_point() or logits.shape[1] == 0:
            raise InvalidArgument(
                f"logits: floating (batch, vocabulary) are due, not {tuple(logits.shape)}"
                f" of {logits.dtype}"
            )
        if self.temperature == 0:
            values, chosen = logits.max(-1)
        else:
            values, chosen = self._draw(logits, generator)
        # A NaN anywhere makes the largest NaN, so one look at what was chosen finds any.
        if not values.isfinite().all():
            raise InvalidArgument("logits: a row holds NaN or +inf, or nothing but -inf")
        return chosen

    def _draw(self, logits: Tensor, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        """The scores chosen and their ids, each (B,)."""
        scores = logits.float()
        # From the largest down: a tiny temperature then leaves it at 0 and sends the rest to -inf.
        scores = (scores - scores.amax(-1, keepdim=True)) / max(self.temperature, 1e-30)
        scores, ids = self._kept(scores)
        # Gumbel: the argmax of score + noise falls on t with probability softmax(scores)_t.
        noise = torch.empty_like(scores).exponential_(generator=generator)
        noisy = scores - noise.clamp_min(torch.finfo(torch.float32).tiny).log()
        place = noisy.argmax(-1, keepdim=True)
        chosen = place if ids is None else ids.gather(1, place)
        return scores.gather(1, place)[:, 0], chosen[:, 0]

    def _kept(self, scores: Tensor) -> tuple[Tensor, Tensor | None]:
        """The scores that may be drawn, with their ids where they are not all of them in order."""
        if self.top_k is None and self.top_p is None:
            return scores, None
        size = scores.shape[1] if self.top_k is None else min(self.top_k, scores.shape[1])
        scores, ids = scores.topk(size, dim=-1)
        if self.top_p is None:
            return scores, ids
        shares = scores.softmax(-1)
        before = shares.cumsum(-1) - shares
        return scores.masked_fill(before >= self.top_p, -math.inf), ids


def _real(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _refused(name: str, value: object, due: str) -> InvalidArgument:
    return InvalidArgument(f"{name}: {value!r} is not {due}")
