"""k-means of keys: a few centres that stand for all of them, each with the mean of its values."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from eyeline.mechanisms.places import Places
from eyeline.routing.lloyd import lloyd
from eyeline.routing.nearest import means


class Centroids(NamedTuple):
    """key (B, Hk, C, E), value (B, Hk, C, Ev), and size (B, Hk, C): how many keys each stands for.

    Where nobody chose a centre its size is 0, and so are its key and value.
    """

    key: Tensor
    value: Tensor
    size: Tensor


def centroids(key: Tensor, value: Tensor, order: Places, factor: int, rounds: int) -> Centroids:
    """⌈n / factor⌉ clusters of a row's n keys (B, Hk, S, E), by Lloyd's algorithm.

    The first centres are keys evenly spaced in the order of positions. In each round every key
    goes to the nearest centre (Euclid; of equal ones the first), and each centre to the mean of
    its keys. After the rounds keys choose once more. Which key chooses what has no gradient; means
    do. Nothing is drawn by chance. Sums of half types are float32.
    """
    keys, values = order.take(key), order.take(value)
    real = order.real[:, None].expand(key.shape[0], key.shape[1], -1)
    with torch.no_grad():
        chosen = _chosen(keys.to(_wide(key)), real, factor, rounds)
    shape, count = keys.shape[:2], -(-keys.shape[2] // factor)
    flat = [x.to(_wide(x)).flatten(0, 1) for x in (keys, values)]
    (key_mean, size), (value_mean, _) = (means(x, chosen.flatten(0, 1), count) for x in flat)
    found = key_mean.to(keys.dtype), value_mean.to(values.dtype), size.to(flat[0].dtype).squeeze(-1)
    return Centroids(*(x.unflatten(0, shape) for x in found))


def _chosen(keys: Tensor, real: Tensor, factor: int, rounds: int) -> Tensor:
    """Which centre each key goes to, (B, Hk, n); -1 for nobody."""
    if not keys.shape[2]:
        return real.long()
    first, live, rows, there = (x.flatten(0, 1) for x in (*_first(keys, real, factor), keys, real))
    return lloyd(rows, first, rounds, real=there, live=live).view(real.shape)


def _first(keys: Tensor, real: Tensor, factor: int) -> tuple[Tensor, Tensor]:
    """Evenly spaced keys, (B, Hk, C, E), and which of the C places a row uses, (B, Hk, C)."""
    there = real.sum(-1, keepdim=True)
    used = (there + factor - 1) // factor
    place = torch.arange(-(-keys.shape[2] // factor), device=keys.device)
    live = place < used
    slot = ((2 * place + 1) * there // (2 * used).clamp(min=1)).masked_fill(~live, 0)
    return keys.gather(2, slot[..., None].expand(-1, -1, -1, keys.shape[3])), live


def _wide(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)
