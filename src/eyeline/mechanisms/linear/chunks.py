"""Some chunks of a causal sequence at once: pairs within each chunk, and sums of those before it.

Within a chunk of C tokens all C² pairs are multiplied and those that look ahead are put to 0; what
lies before the chunk is read from the sums that it has left. Every step is differentiable, and no
number of a token's output depends on a later token, not even through rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from eyeline.budgets import budgets
from eyeline.checks import wide_dtype
from eyeline.mechanisms.linear.features import FeatureMap
from eyeline.mechanisms.linear.sums import (
    NOTHING,
    Read,
    Sums,
    merged,
    peak_of,
    read,
    total_slope,
    with_ones,
)


class Marks(NamedTuple):
    """What is known of the slots of a sequence, whose tokens are in order.

    segments: int64 (B or 1, n), the number of each slot's document, which lie one after another;
    None: one for all. somebody: bool (B or 1, n), False where nobody's key stands; None: all.
    """

    segments: Tensor | None = None
    somebody: Tensor | None = None

    def part(self, start: int, stop: int) -> Marks:
        """Those of some slots."""
        return Marks(*(None if x is None else x[:, start:stop] for x in self))

    def to(self, device: torch.device) -> Marks:
        """The same on a device."""
        return Marks(*(None if x is None else x.to(device) for x in self))


def run_chunks(
    heads: tuple[Tensor, Tensor, Tensor],
    sums: Sums,
    *,
    feature_map: FeatureMap,
    marks: Marks,
    carried: Tensor | None,
    chunk: int,
) -> tuple[Tensor, Sums]:
    """query (B, H, m, E), key and value (B, Hk, m, ·), m a multiple of chunk, to numerator and
    normaliser (B, H, m, Ev + 1), and the sums that follow.

    sums: of what comes before, which belongs to the document ``carried`` (B or 1,), if documents
    are kept apart.
    """
    query, key, value = heads
    count = key.shape[2] // chunk
    fq = grouped(feature_map(query), key.shape[1], chunk)
    fk = feature_map(key).unflatten(2, (count, chunk))
    ones = with_ones(value).unflatten(2, (count, chunk))
    if marks.somebody is not None:
        nobody = ~marks.somebody.unflatten(1, (count, chunk))
        fk = _silenced(fk, nobody[:, None, :, :, None], feature_map)
    documents = _documents(marks, carried, count, chunk)
    before, after = _before(sums, fk, ones, documents)
    past = read(before, fq)
    if documents is not None:
        groups = fq.shape[3] // chunk
        past = _hidden(past, ~documents.goes_on.repeat(1, 1, 1, groups)[..., None])
    mask = None if documents is None else documents.within
    if feature_map.logarithmic:
        total = _rescaled(fq, fk, ones, mask, past)
    else:
        total = merged(_plain(fq, fk, ones, mask), past).total
    return ungrouped(total, query.shape, chunk), after


class Documents(NamedTuple):
    """Documents in chunks (B or 1, 1, r, …). within: whether slot i may see slot j, (…, C, C);
    goes_on: whether a slot is of the document that the sums before its chunk hold, (…, C);
    stays: whether it is of the chunk's last document, (…, C); kept: whether that one began before
    the chunk, (…,)."""

    within: Tensor
    goes_on: Tensor
    stays: Tensor
    kept: Tensor


def _documents(marks: Marks, carried: Tensor | None, count: int, chunk: int) -> Documents | None:
    if marks.segments is None:
        return None
    ids = marks.segments.unflatten(1, (count, chunk))[:, None]
    last = ids[..., -1]
    first = ids[..., :1, 0] if carried is None else carried[:, None, None].expand(len(ids), 1, 1)
    start = torch.cat((first, last[..., :-1]), -1)
    within = (ids.unsqueeze(-1) == ids.unsqueeze(-2)).tril()
    return Documents(within, ids == start[..., None], ids == last[..., None], start == last)


def _before(sums: Sums, fk: Tensor, ones: Tensor, documents: Documents | None) -> tuple[Sums, Sums]:
    """The sums before each chunk (B, Hk, r, F, Ev + 1), and those after the last."""
    if documents is not None:
        fk = fk.masked_fill(~documents.stays[..., None], 0.0 if sums.peak is None else -torch.inf)
    factors: list[Tensor | None] = [None] * fk.shape[2]
    if documents is not None:
        kept = documents.kept.to(fk.dtype)[..., None, None]
        factors = list(kept.unbind(2))
    peaks = None
    if sums.peak is not None:
        peaks = _peaks(sums.peak, fk, documents)
        fk = (fk - peaks[:, :, 1:, None]).exp()
        drops = (peaks[:, :, :-1] - peaks[:, :, 1:]).clamp(max=0).exp()[..., None]
        # Where a document ends its sums are dropped, whatever the peaks.
        factors = [x if y is None else x * y for x, y in zip(drops.unbind(2), factors, strict=True)]
    totals = [sums.total]
    for new, factor in zip((fk.transpose(-2, -1) @ ones).unbind(2), factors, strict=True):
        totals.append(new + (totals[-1] if factor is None else totals[-1] * factor))
    held = torch.stack(totals[:-1], 2)
    if peaks is None:
        return Sums(held, None), Sums(totals[-1], None)
    return Sums(held, peaks[:, :, :-1]), Sums(totals[-1], peaks[:, :, -1])


def _peaks(first: Tensor, fk: Tensor, documents: Documents | None) -> Tensor:
    """The peaks before each chunk and after the last, (B, Hk, r + 1, F)."""
    own = peak_of(fk)
    if documents is None:
        return torch.cat((first.unsqueeze(2), own), 2).cummax(2).values
    peaks = [first]
    for new, kept in zip(own.unbind(2), documents.kept.unbind(2), strict=True):
        peaks.append(torch.maximum(peaks[-1].masked_fill(~kept[..., None], NOTHING), new))
    return torch.stack(peaks, 2)


def _plain(fq: Tensor, fk: Tensor, ones: Tensor, mask: Tensor | None) -> Read:
    """The pairs within each chunk, for maps that give φ."""
    weight = fq @ fk.transpose(-2, -1)
    square = weight.unflatten(-2, (-1, fk.shape[-2]))
    if mask is None:
        square = square.tril_()
    else:
        square = square.masked_fill(~mask.unsqueeze(-3), 0.0)
    return Read(square.flatten(-3, -2) @ ones, None)


def _rescaled(fq: Tensor, fk: Tensor, ones: Tensor, mask: Tensor | None, past: Read) -> Tensor:
    """Those pairs for maps that give log φ, and what came before them.

    Each query and key is first divided by its own largest feature, and pairs are brought to the
    largest key that the query may see, never to a later one. Where queries and keys are so long
    that none of their features match, all of such a row may vanish: the few rows that show it are
    computed again, pair by pair.
    """
    chunk = fk.shape[-2]
    most_q, most_k = (x.detach().amax(-1) for x in (fq, fk))
    most_k = most_k.clamp(min=NOTHING)
    seen = most_k.unsqueeze(-2).expand(*most_k.shape, chunk)
    allowed = mask if mask is not None else seen.new_ones(chunk, chunk, dtype=torch.bool).tril()
    seen = seen.masked_fill(~allowed, -torch.inf)
    top = seen.amax(-1)
    weight = (fq - most_q.unsqueeze(-1)).exp() @ (fk - most_k.unsqueeze(-1)).exp().transpose(-2, -1)
    square = weight.unflatten(-2, (-1, chunk)) * (seen - top.unsqueeze(-1)).exp().unsqueeze(-3)
    scale = (most_q.unflatten(-1, (-1, chunk)) + top.unsqueeze(-2)).flatten(-2, -1)
    within = Read(square.flatten(-3, -2) @ ones, scale.unsqueeze(-1))
    total, log_scale = merged(within, past)
    assert log_scale is not None
    lost = 60.0 if fq.dtype == torch.float32 else 600.0
    reached = total.detach()[..., -1].log() + log_scale[..., 0]
    vanished = (reached < scale - lost) & (scale > NOTHING / 2)
    if bool(vanished.any()):
        return merged(_again(within, vanished, fq, fk, ones, allowed), past).total
    return total


def _again(
    within: Read, rows: Tensor, fq: Tensor, fk: Tensor, ones: Tensor, allowed: Tensor
) -> Read:
    """The same pairs, where ``rows`` is True from the exponents of all features of each pair."""
    chunk, features = fk.shape[-2:]
    allowed = allowed.expand(*fk.shape[:3], chunk, chunk)
    places = rows.nonzero().split(max(budgets.single_rows // (chunk * features), 1))
    found = [
        checkpoint(_row, fq, fk, ones, allowed, place, use_reentrant=False) for place in places
    ]
    assert within.log_scale is not None
    place = rows.nonzero().unbind(-1)
    total = within.total.index_put(place, torch.cat([x for x, _ in found]))
    scale = within.log_scale.index_put(place, torch.cat([x for _, x in found]))
    return Read(total, scale)


def _row(
    fq: Tensor, fk: Tensor, ones: Tensor, allowed: Tensor, place: Tensor
) -> tuple[Tensor, Tensor]:
    b, h, t, row = place.unbind(-1)
    pair = fq[b, h, t, row].unsqueeze(1) + fk[b, h, t].clamp(min=NOTHING)
    exponent = pair.logsumexp(-1).masked_fill(~allowed[b, h, t, row % fk.shape[-2]], -torch.inf)
    most = exponent.detach().amax(-1, keepdim=True)
    weight = (exponent - most).exp()
    # Not a product of matrices, whose rounding may depend on how many rows there are.
    return (weight.unsqueeze(-1) * ones[b, h, t]).sum(1), most


def _silenced(fk: Tensor, nobody: Tensor, feature_map: FeatureMap) -> Tensor:
    return fk.masked_fill(nobody, -torch.inf if feature_map.logarithmic else 0.0)


def _hidden(past: Read, rows: Tensor) -> Read:
    scale = past.log_scale
    total = past.total.masked_fill(rows, 0.0)
    return Read(total, None if scale is None else scale.masked_fill(rows, NOTHING))


def grouped(x: Tensor, shared: int, chunk: int) -> Tensor:
    """(B, H, r·C, F) to (B, Hk, r, G·C, F): queries that share a key head stand together."""
    x = x.unflatten(1, (shared, -1)).unflatten(3, (-1, chunk))
    return x.transpose(2, 3).flatten(3, 4)


def ungrouped(x: Tensor, shape: torch.Size, chunk: int) -> Tensor:
    """(B, Hk, r, G·C, ·) to (B, H, r·C, ·), for queries of this shape."""
    x = x.unflatten(3, (-1, chunk)).transpose(2, 3)
    return x.reshape(*shape[:3], x.shape[-1])


# The gradients of some chunks, written out, for maps that give φ and one document.
#
# torch could differentiate ``run_chunks`` itself, as it does for the others. By hand the output
# need
# not be computed again, and sums are added to in place.


def chunk_slopes(
    heads: tuple[Tensor, Tensor, Tensor],
    held: Tensor,
    later: Tensor | None,
    result: tuple[Tensor, Tensor, Tensor],
    *,
    feature_map: FeatureMap,
    somebody: Tensor | None,
    chunk: int,
    parameters: Sequence[Tensor],
) -> tuple[Tensor | None, ...]:
    """The gradients of query, key, value, ``held`` and the map's parameters.

    held: the sums before the chunks, (B, Hk, F, Ev + 1); later: the gradient of those after them;
    result: the gradient of the output, the output, and 1 / normaliser, (B, H, m, ·) each.
    """
    query, key, value = heads
    count = key.shape[2] // chunk
    with torch.enable_grad():
        leaves = query.detach().requires_grad_(), key.detach().requires_grad_()
        made = feature_map(leaves[0]), feature_map(leaves[1])
    fq = grouped(made[0].detach(), key.shape[1], chunk)
    fk = made[1].detach().unflatten(2, (count, chunk))
    nobody = None if somebody is None else ~somebody[:, None, :, None]
    if nobody is not None:
        fk = fk.masked_fill(nobody.unflatten(2, (count, chunk)), 0.0)
    ones = with_ones(value).unflatten(2, (count, chunk))
    above = grouped(total_slope(*result), key.shape[1], chunk)
    before = _before_each(held, fk.transpose(-2, -1) @ ones)
    after, first = _after_each(later, fq.transpose(-2, -1) @ above)
    weight = _lower(fq @ fk.transpose(-2, -1))
    slope = _lower(above @ ones.transpose(-2, -1))
    of_query = _plus(slope @ fk, above, before.transpose(-2, -1))
    of_key = _plus(slope.transpose(-2, -1) @ fq, ones, after.transpose(-2, -1))
    of_ones = _plus(weight.transpose(-2, -1) @ above, fk, after)
    key_slope = of_key.flatten(2, 3)
    if nobody is not None:
        key_slope = key_slope.masked_fill_(nobody, 0.0)
    slopes = ungrouped(of_query, query.shape, chunk), key_slope
    found = torch.autograd.grad(made, [*leaves, *parameters], slopes, allow_unused=True)
    return (*found[:2], of_ones.flatten(2, 3)[..., :-1], first, *found[2:])


def _before_each(held: Tensor, new: Tensor) -> Tensor:
    """The sums before each chunk."""
    sums = torch.empty_like(new)
    sums[:, :, 0] = held
    for t in range(1, new.shape[2]):
        torch.add(sums[:, :, t - 1], new[:, :, t - 1], out=sums[:, :, t])
    return sums


def _after_each(later: Tensor | None, new: Tensor) -> tuple[Tensor, Tensor]:
    """The sums of what comes after each chunk, and of everything."""
    sums = torch.empty_like(new)
    sums[:, :, -1] = 0.0 if later is None else later
    for t in reversed(range(new.shape[2] - 1)):
        torch.add(sums[:, :, t + 1], new[:, :, t + 1], out=sums[:, :, t])
    return sums, sums[:, :, 0] + new[:, :, 0]


def _lower(weight: Tensor) -> Tensor:
    """Pairs that look ahead put to 0, in place: (…, G·C, C)."""
    weight.unflatten(-2, (-1, weight.shape[-1])).tril_()
    return weight


def _plus(total: Tensor, one: Tensor, other: Tensor) -> Tensor:
    """total + one @ other, in place."""
    total.flatten(0, 2).baddbmm_(one.flatten(0, 2), other.flatten(0, 2))
    return total


# Linear attention with all its weights: the oracle, for short inputs and second derivatives.


def dense_weights(query: Tensor, key: Tensor, feature_map: FeatureMap, mask: Tensor) -> Tensor:
    """weight[i, j] = φ(q_i)ᵀφ(k_j) / Σ_j φ(q_i)ᵀφ(k_j) over the j that i may look at.

    query (B, H, L, E), key (B, Hk, S, E), mask bool, broadcasting with (B, H, L, S). A row sums to
    1, or to 0 if there is nothing in it. Memory is L·S, times F for maps that give log φ.
    """
    wide = wide_dtype(query)
    fq = feature_map(query.to(wide))
    fk = feature_map(key.to(wide)).repeat_interleave(query.shape[1] // key.shape[1], 1)
    if feature_map.logarithmic:
        pair = (fq.unsqueeze(3) + fk.unsqueeze(2)).logsumexp(-1)
        # A row without keys is given real exponents first, so that no derivative meets inf - inf.
        blocked = ~(mask | ~mask.any(-1, keepdim=True))
        return pair.masked_fill(blocked, -torch.inf).softmax(-1).masked_fill(~mask, 0.0)
    product = (fq @ fk.transpose(-2, -1)).masked_fill(~mask, 0.0)
    total = product.sum(-1, keepdim=True)
    return (product / total.masked_fill(total == 0, 1.0)).masked_fill(total == 0, 0.0)


def dense_linear(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    feature_map: FeatureMap,
    marks: Marks,
    *,
    causal: bool,
) -> Tensor:
    """The whole of linear attention by its weights; causal, and documents apart, by slot."""
    mask = torch.ones(1, 1, query.shape[2], key.shape[2], dtype=torch.bool, device=query.device)
    mask = mask.tril() if causal else mask
    if marks.somebody is not None:
        mask = mask & marks.somebody[:, None, None, :]
    if marks.segments is not None:
        mask = mask & (marks.segments[:, None, :, None] == marks.segments[:, None, None, :])
    weight = dense_weights(query, key, feature_map, mask)
    value = value.repeat_interleave(query.shape[1] // key.shape[1], 1)
    return (weight @ value.to(weight.dtype)).to(query.dtype)
