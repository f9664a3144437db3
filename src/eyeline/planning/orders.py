"""Queries and keys in the orders in which an atom's pairs lie densely."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from eyeline.patterns import View
from eyeline.planning.peeling import Peeled, Rule
from eyeline.tokens import NOBODY, Tokens
from eyeline.tokens.ordering import Ordering

# Groups smaller than a tile get smaller tiles, down to this edge.
_SMALLEST_TILE = 8
# An order with this many times more places than there are slots is not worth it.
_MOST_PADS = 4


class Arranged(NamedTuple):
    """A rule, for queries and keys as a view has them; an order of None is the one they have."""

    rule: Rule
    q_order: Ordering | None
    k_order: Ordering | None
    q_tokens: Tokens
    k_tokens: Tokens
    tile: int
    modulus: int


def arrange(peeled: Peeled, q: Tokens, k: Tokens, tile: int) -> list[Arranged] | None:
    """What is left of a pattern in each view. None if one would take far too many places."""
    found = [_arranged(view, rule, q, k, tile) for view, rule in peeled.within]
    kept = [each for each in found if each is not None]
    return kept if len(kept) == len(found) else None


def _arranged(view: View, rule: Rule, q: Tokens, k: Tokens, tile: int) -> Arranged | None:
    """Pick and order tokens as a view says.

    Groups of equal residue begin at tiles' edges and take equally many tiles, on both sides, so
    that what is done for one group is done for all.
    """
    q_slots, k_slots = view.q_slots, view.k_slots
    if view.modulus > 1:
        grouped = _grouped(view, q, k, tile)
        if grouped is None:
            return None
        q_slots, k_slots, tile = grouped
    (q_order, q), (k_order, k) = _ordered(q_slots, q), _ordered(k_slots, k)
    return Arranged(rule, q_order, k_order, q, k, tile, view.modulus)


def _ordered(slots: Tensor | None, tokens: Tokens) -> tuple[Ordering | None, Tokens]:
    if slots is None:
        return None, tokens
    order = Ordering.of(slots[None], tokens.length)
    return order, order.tokens(tokens)


def _grouped(view: View, q: Tokens, k: Tokens, tile: int) -> tuple[Tensor, Tensor, int] | None:
    # So many residues, of which hardly two tokens share one, are not worth a table.
    if view.modulus > _MOST_PADS * max(q.length, k.length, tile):
        return None
    q_slots, q_residue = _residues(q, view.q_slots, view.modulus)
    same = q is k and view.q_slots is view.k_slots
    k_slots, k_residue = (q_slots, q_residue) if same else _residues(k, view.k_slots, view.modulus)
    sizes = [torch.bincount(x, minlength=view.modulus) for x in (q_residue, k_residue)]
    met = (sizes[0] + sizes[1]).nonzero()[:, 0]
    if not len(met):
        return None
    number = torch.zeros_like(sizes[0]).index_put_((met,), torch.arange(len(met)))
    largest = int(torch.stack(sizes).max())
    tile = min(tile, max(_SMALLEST_TILE, 1 << (largest - 1).bit_length()))
    pitch = -(-largest // tile) * tile
    if len(met) * pitch > _MOST_PADS * max(q.length, k.length, tile):
        return None
    laid = _laid(q_slots, number[q_residue], pitch, len(met))
    return laid, laid if same else _laid(k_slots, number[k_residue], pitch, len(met)), tile


def _residues(tokens: Tokens, slots: Tensor | None, modulus: int) -> tuple[Tensor, Tensor]:
    """The slots that hold somebody, and the residue of each one's position."""
    slots = slots if slots is not None else torch.arange(tokens.length)
    position = tokens.positions[slots]
    real = position != NOBODY
    return slots[real], position[real] % modulus


def _laid(slots: Tensor, group: Tensor, pitch: int, groups: int) -> Tensor:
    """The slots of each group side by side, every group beginning at a multiple of pitch."""
    group, order = group.sort(stable=True)
    sizes = torch.bincount(group, minlength=groups)
    first = torch.arange(groups) * pitch - (sizes.cumsum(0) - sizes)
    laid = torch.full((groups * pitch,), NOBODY, dtype=torch.int64)
    laid[first[group] + torch.arange(len(group))] = slots[order]
    return laid
