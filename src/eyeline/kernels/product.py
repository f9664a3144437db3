"""The product of one block of queries with one block of keys, in plain tensor operations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar, final

import torch
from torch import Tensor

from eyeline.checks import widened
from eyeline.scores import Bias, Block, OutputStep, ScoreStep, Step, Table, WeightStep

# Masks as numbers. On a CPU torch reads bytes five to twenty times as fast as it reads bools.


def barred(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """0 where the mask is True, -inf where it is False: 1 - 1 / mask."""
    numbers = mask.view(torch.uint8).to(dtype).reciprocal_()
    return torch.sub(numbers.new_ones(()), numbers, out=numbers)


def sees_somebody(mask: Tensor) -> Tensor:
    """mask.any(-1)."""
    if not mask.shape[-1]:
        return mask.any(-1)
    return mask.view(torch.uint8).amax(-1).view(torch.bool)


# The steps of a request for one block of pairs: what is done forward, and undone backward.

Pairing = tuple[tuple[Step, Table | None], ...]
"""Steps in order, each with its table."""

_Kind = TypeVar("_Kind", bound=Step)


@final
@dataclass(frozen=True, eq=False)
class Steps:
    """Tensors of pairs are (N, H, R, C); those of the output (N, H, R, Ev)."""

    pairing: Pairing
    block: Block

    def change(self, score: Tensor) -> tuple[Tensor, list[Tensor | None]]:
        """The changed scores, and for each score step its result if its derivative needs it."""
        kept: list[Tensor | None] = []
        for step, table in self._each(ScoreStep):  # type: ignore[type-abstract]
            score = step.forward(score, self.block, table)
            # Later steps overwrite the scores.
            kept.append(score.clone() if step.needs_after else None)
        return score, kept

    def slope_before(self, slope: Tensor, kept: list[Tensor | None]) -> Tensor:
        """The slope of changed scores to the slope of those given; collects gradients."""
        backwards = list(zip(self._each(ScoreStep), kept, strict=True))[::-1]  # type: ignore[type-abstract]
        for (step, table), after in backwards:
            slope = step.backward(slope, after if after is not None else slope, self.block, table)
        return slope

    def bias(self) -> Tensor:
        """What steps that only add numbers add: (N or 1, H or 1, R, C)."""
        added = [step.added(self.block, table) for step, table in self._each(Bias)]
        return added[0] if len(added) == 1 else torch.stack(torch.broadcast_tensors(*added)).sum(0)

    def weigh(self, weight: Tensor) -> Tensor:
        """What the values are multiplied by; the weight itself is left as it is."""
        for step, table in self._each(WeightStep):  # type: ignore[type-abstract]
            weight = weight * step.factor(self.block, table, weight.dtype)
        return weight

    def slope_of_weight(self, slope: Tensor, weight: Tensor) -> Tensor:
        """The slope of ``weigh(weight)``, to that of the weight; collects gradients."""
        each = list(self._each(WeightStep))  # type: ignore[type-abstract]
        factors = [step.factor(self.block, table, weight.dtype) for step, table in each]
        for index, (step, table) in enumerate(each):
            if table is not None:
                others = [slope, weight, *factors[:index], *factors[index + 1 :]]
                step.collect(_product(others), self.block, table)
        return _product([slope, *factors])

    def extra(self, out: Tensor, weight: Tensor) -> Tensor:
        """The output with what its steps add."""
        for step, table in self._each(OutputStep):  # type: ignore[type-abstract]
            out = out + step.forward(weight, self.block, table)
        return out

    def slope_of_extra(self, slope: Tensor, above: Tensor, weight: Tensor) -> Tensor:
        """The slope of the weights with what the output's steps add to it; collects gradients."""
        for step, table in self._each(OutputStep):  # type: ignore[type-abstract]
            slope = step.backward(slope, above, weight, self.block, table)
        return slope

    def _each(self, kind: type[_Kind]) -> Iterator[tuple[_Kind, Table | None]]:
        for step, table in self.pairing:
            if isinstance(step, kind):
                yield step, table


def _product(factors: list[Tensor]) -> Tensor:
    first, *others = factors
    for other in others:
        first = first * other
    return first


# The product of one block of queries with one block of keys, in plain tensor operations.
#
# Serves every device, dtype and width, the gradient of the log-sum-exp, and steps that change
# scores, weights or output. Shapes: q (N, H, R, E), k (N, Hk, C, E), v (N, Hk, C, Ev), mask bool
# (R, C) or None, out (N, H, R, Ev), lse (N, H, R).

NAME = "plain"


def forward(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, steps: Steps | None = None
) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp; 0 and -inf for a row that may look at nobody."""
    score, _ = scores(q, k, mask, scale, steps)
    top = score.amax(-1, keepdim=True)
    top = top.masked_fill_(top == -torch.inf, 0.0)
    weight = score.sub_(top).exp_()
    total = weight.sum(-1, keepdim=True)
    if steps is not None:
        weight = steps.weigh(weight)
    out = _times(weight, widened(v))
    if steps is not None:
        out = steps.extra(out, weight)
    out = out.div_(total.masked_fill(total == 0.0, 1.0))
    return out.to(v.dtype), total.log_().add_(top).squeeze(-1)


def backward(
    grad: Tensor,
    grad_lse: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    mask: Tensor | None,
    scale: float,
    steps: Steps | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k, v, given the *merged* out and lse of each row (+inf for empty rows).

    With P = exp(score - lse):  dv = Pᵀ·grad,  dS = P·(grad·vᵀ - delta),  dq = scale·dS·k,
    dk = scale·dSᵀ·q,  where delta = Σ grad·out - grad_lse. Steps change P, grad·vᵀ and dS.
    """
    score, kept = scores(q, k, mask, scale, steps)
    weight = score.sub_(lse.unsqueeze(-1)).exp_()
    used = weight if steps is None else steps.weigh(weight)
    grad_wide, out_wide = widened(grad), widened(out)
    delta = (grad_wide * out_wide).sum(-1, keepdim=True)
    if grad_lse is not None:
        delta = delta - grad_lse.unsqueeze(-1)
    heads = k.shape[1]
    grad_v = _folded(used, heads).transpose(-2, -1) @ _folded(grad_wide, heads)
    slope = _times(grad_wide, widened(v).transpose(-2, -1))
    if steps is not None:
        slope = steps.slope_of_extra(slope, grad_wide, used)
        slope = steps.slope_of_weight(slope, weight)
    slope = slope.sub_(delta).mul_(weight)
    return (*through_scores(slope, q, k, scale, steps, kept), grad_v)


def through_scores(
    slope: Tensor,
    q: Tensor,
    k: Tensor,
    scale: float,
    steps: Steps | None,
    kept: list[Tensor | None],
) -> tuple[Tensor, Tensor]:
    """The slope of changed scores, which is used up, to the gradients of q and k."""
    if steps is not None:
        slope = steps.slope_before(slope, kept)
    slope = slope.mul_(scale)
    grad_q = _times(slope, widened(k))
    heads = k.shape[1]
    grad_k = _folded(slope, heads).transpose(-2, -1) @ _folded(widened(q), heads)
    for more in steps.block.grad_query if steps is not None else ():
        grad_q = grad_q.add_(more)
    return grad_q, grad_k


def scores(
    q: Tensor, k: Tensor, mask: Tensor | None, scale: float, steps: Steps | None
) -> tuple[Tensor, list[Tensor | None]]:
    """Changed scores, -inf under the mask, and what the steps' derivatives need of them."""
    score = _times(widened(q) * scale, widened(k).transpose(-2, -1))
    score, kept = (score, []) if steps is None else steps.change(score)
    if mask is not None:
        score.add_(barred(mask, score.dtype))
    return score, kept


def _times(rows: Tensor, keys: Tensor) -> Tensor:
    """(N, H, R, x) times (N, Hk, x, y); the query heads of one key head are rows of one product."""
    product = _folded(rows, keys.shape[1]) @ keys
    return product.view(*rows.shape[:-1], keys.shape[-1])


def _folded(rows: Tensor, heads: int) -> Tensor:
    """(N, H, R, x) as (N, Hk, H/Hk·R, x)."""
    blocks, all_heads, length, width = rows.shape
    return rows.reshape(blocks, heads, all_heads // heads * length, width)
