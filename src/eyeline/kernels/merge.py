"""Results over different keys become one: the merge by log-sum-exp.

    lse = log Σ_p exp lse_p,   out = Σ_p exp(lse_p - lse) · out_p

for parts p of the keys of a query. A query without keys has lse -inf and output 0 in every part,
and in the merged result. ``merge`` is the differentiable form. The others are for the kernels,
which need no derivative: with the merged output and log-sum-exp every part's gradients are
already right, and add up.
"""

from __future__ import annotations

import torch
from torch import Tensor

from eyeline.errors import InvalidArgument

Results = tuple[Tensor, Tensor]
"""Output (…, L, Ev) and log-sum-exp (…, L)."""


def merge(*results: Results) -> Results:
    """out[i] = Σ_p exp(lse_p[i] - lse[i]) · out_p[i],  lse[i] = log Σ_p exp lse_p[i].

    results: (out, lse) of each part p of the keys, as ``attention_with_lse`` returns them: outputs
    (…, L, Ev), log-sum-exps (…, L), of equal shapes, dtypes and devices. Returns the (out, lse) of
    attention over all these keys at once. A key that stands in m parts counts m times.

    A query that attends to nothing in any part gets output 0, lse -inf, and gradients 0. All
    derivatives exist. Sums are kept in the wider of out's and lse's dtype; each result has the
    dtype it was given in.

    Raises InvalidArgument for no results, and for shapes, dtypes or devices that differ.
    Milakov & Gimelshein 2018, "Online normalizer calculation for softmax".
    """
    _check(results)
    outs, lses = zip(*results, strict=True)
    with torch.autocast(outs[0].device.type, enabled=False):
        stacked = torch.stack(lses)
        top = stacked.detach().amax(0)
        top = top.masked_fill(top == -torch.inf, 0.0)
        weight = (stacked - top).exp()
        total = weight.sum(0)
        # Empty rows are given a number first, so that no derivative meets inf - inf. Shares are
        # quotients: exp(lse_p - lse) would round by what lse is large.
        empty = total == 0.0
        total = total.masked_fill(empty, 1.0)
        shares = (weight / total).unsqueeze(-1)
        out = outs[0] * shares[0]
        for part, own in zip(outs[1:], shares[1:], strict=True):
            out = out + part * own
        return out.to(outs[0].dtype), (total.log() + top).masked_fill(empty, -torch.inf)


def share(part: Tensor, whole: Tensor) -> Tensor:
    """exp(part - whole): what a result counts in the one it is merged into; 0 where that is empty.

    part, whole: their log-sum-exps.
    """
    return (part - whole.masked_fill(whole == -torch.inf, 0.0)).exp()


def shares_of_two(old: Tensor, new: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What two results count in their merged one, (…, 1) each, and its log-sum-exp."""
    whole = torch.logaddexp(old, new)
    finite = whole.masked_fill(whole == -torch.inf, 0.0)
    old_share, new_share = ((x - finite).exp_().unsqueeze(-1) for x in (old, new))
    return old_share, new_share, whole


def merge_into(known: Results, new: Results) -> None:
    """Take one more result into a known one, which is changed in place."""
    old_share, new_share, whole = shares_of_two(known[1], new[1])
    known[0].mul_(old_share).addcmul_(new[0], new_share)
    known[1].copy_(whole)


def shares_by_slot(lse: Tensor, slots: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """Results in P places, where slot ``slots[p]`` stands at place p, merged slot by slot.

    lse (P,), slots int64 (P,) from 0 to ``length``, where ``length`` is padding. Returns the
    log-sum-exp of each slot, (length,), -inf for one that has no place, and what each place
    counts in its slot, (P,).
    """
    top = lse.new_full((length + 1,), -torch.inf).scatter_reduce(0, slots, lse, "amax")
    top = top.masked_fill(top == -torch.inf, 0.0)
    weight = (lse - top[slots]).exp_()
    total = torch.zeros_like(top).index_add_(0, slots, weight)
    counted = weight.div_(total.masked_fill(total == 0.0, 1.0)[slots])
    return total.log_().add_(top)[:-1], counted


def _check(results: tuple[Results, ...]) -> None:
    if not results:
        raise InvalidArgument("nothing to merge: give (out, lse) of at least one part of the keys")
    out, lse = results[0]
    if out.dim() != lse.dim() + 1 or out.shape[:-1] != lse.shape:
        raise InvalidArgument(
            f"out {tuple(out.shape)} and lse {tuple(lse.shape)}: merge takes (out, lse) pairs of "
            "shapes (…, L, Ev) and (…, L), as attention_with_lse returns them"
        )
    for number, part in enumerate(results[1:], 1):
        for name, x, first in zip(("out", "lse"), part, results[0], strict=True):
            if (x.shape, x.dtype, x.device) != (first.shape, first.dtype, first.device):
                raise InvalidArgument(
                    f"{name} of part {number} is {x.dtype} {tuple(x.shape)} on {x.device}, of part "
                    f"0 {first.dtype} {tuple(first.shape)} on {first.device}: merge takes parts "
                    "of equal shapes, dtypes and devices"
                )
