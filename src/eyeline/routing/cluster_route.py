"""Queries of one cluster, block by block, and the keys that their centre looks at most."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from eyeline.kernels.route import Route
from eyeline.routing.at_once import at_once
from eyeline.routing.greatest import among_greatest
from eyeline.routing.standing import Standing, standing
from eyeline.tokens import NOBODY, Tokens


@torch.no_grad()
def best_keys(
    centres: Tensor, key: Tensor, topk: int, *, c_tokens: Tokens, k_tokens: Tokens
) -> Tensor:
    """The slots of the ``topk`` keys with the greatest centre·key, (B, H, C, k); -1 where none is.

    centres (B, H, C, E) look at keys (B, Hk, S, E) of their own document; k is at most S.
    """
    width = max(min(topk, key.shape[2]), 1)
    found = torch.full((*centres.shape[:3], width), NOBODY, device=key.device)
    key = key.repeat_interleave(centres.shape[1] // key.shape[1], 1)
    for b in range(key.shape[0]):
        own = standing(c_tokens.row(b), key.device)
        for there, slots in _together(own, standing(k_tokens.row(b), key.device)):
            best = _best(centres[b][:, there], key[b][:, slots], min(topk, len(slots)))
            found[b, :, there, : best.shape[2]] = slots[best]
    return found


def _together(centres: Standing, keys: Standing) -> list[tuple[Tensor, Tensor]]:
    """The slots of centres and keys of each document that has both."""
    of_keys = {each.document: keys.slots[each.start : each.stop] for each in keys.documents}
    return [
        (centres.slots[each.start : each.stop], of_keys[each.document])
        for each in centres.documents
        if each.document in of_keys
    ]


def _best(centres: Tensor, keys: Tensor, count: int) -> Tensor:
    """The places (H, c, count) of the keys, in their order."""
    step = at_once(keys.shape[0] * keys.shape[1])
    parts = [among_greatest(some @ keys.mT, count) for some in centres.split(step, 1)]
    return torch.cat(parts, 1).sort(2).values


@torch.no_grad()
def of_centres(best: Tensor) -> Route:
    """Each centre looks at its best keys (B, H, C, k): a block of one query."""
    count, width = best.shape[2:]
    centres = torch.arange(count, device=best.device).expand(*best.shape[:2], 1, -1)
    return Route(centres, best.flatten(2).unsqueeze(2), 1, width, width)


@torch.no_grad()
def of_members(chosen: Tensor, best: Tensor, rows: int) -> Route:
    """Each query looks at the best keys of its cluster: blocks of ``rows`` queries of one cluster.

    chosen (B, H, L): each query's cluster, -1 for nobody; best (B, H, C, k). A cluster of m
    queries has ⌈m / rows⌉ blocks, so that there are at most L / rows + C in all.
    """
    clusters = best.shape[2]
    flat = chosen.flatten(0, 1)
    sizes = _sizes(flat, clusters)
    blocks = (sizes + rows - 1) // rows
    first = blocks.cumsum(1) - blocks
    most = int(blocks.sum(1).max())
    order = flat.masked_fill(flat == NOBODY, clusters).argsort(dim=1, stable=True)
    ordered = flat.gather(1, order)
    before = (sizes.cumsum(1) - sizes).gather(1, ordered.clamp(min=0))
    rank = torch.arange(flat.shape[1], device=flat.device) - before
    place = first.gather(1, ordered.clamp(min=0)) * rows + rank
    place = place.masked_fill(ordered == NOBODY, most * rows)
    queries = flat.new_full((flat.shape[0], most * rows + 1), NOBODY)
    queries = queries.scatter_(1, place, order)[:, :-1]
    of_block = torch.searchsorted(blocks.cumsum(1), _count_up(flat, most), right=True)
    keys = functional.pad(best.flatten(0, 1), (0, 0, 0, 1), value=NOBODY)
    width = best.shape[3]
    keys = keys.gather(1, of_block[..., None].expand(-1, -1, width))
    shape = *chosen.shape[:2], 1, -1
    return Route(queries.view(shape), keys.view(shape), rows, width, width)


def _sizes(chosen: Tensor, count: int) -> Tensor:
    """How many chose each of ``count`` clusters, (R, count)."""
    sizes = chosen.new_zeros(chosen.shape[0], count + 1)
    slots = chosen.masked_fill(chosen == NOBODY, count)
    return sizes.scatter_add_(1, slots, torch.ones_like(chosen))[:, :-1].contiguous()


def _count_up(like: Tensor, stop: int) -> Tensor:
    """0 … stop - 1 in each row."""
    return torch.arange(stop, device=like.device).expand(like.shape[0], -1).contiguous()
