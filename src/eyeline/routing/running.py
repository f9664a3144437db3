"""Running centroids: how they begin, and how they follow the vectors nearest to them."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from eyeline.routing.nearest import nearest, sums

_ROUNDS = 5


@torch.no_grad()
def first_centroids(x: Tensor, count: int, seed: int) -> Tensor:
    """Centroids (H, C, E) of length 1, for vectors x (H, n, E) of length 1, n at least 1.

    The first are vectors drawn by the seed, the same places in each head; then five rounds of
    k-means by x·centroid. A centroid that nobody is nearest to stays where it is.
    """
    drawn = torch.randperm(x.shape[1], generator=torch.Generator().manual_seed(seed))
    places = drawn[torch.arange(count) % x.shape[1]].to(x.device)
    centroids = x[:, places]
    for _ in range(_ROUNDS):
        centroids = moved(centroids, *sums(x, nearest(x, centroids), count), 0.0)
    return centroids


@torch.no_grad()
def moved(centroids: Tensor, total: Tensor, size: Tensor, decay: float) -> Tensor:
    """decay · centroid + (1 - decay) · mean of those who chose it, brought to length 1.

    total, size: the ``sums`` of those. Who is chosen by nobody stays.
    """
    mean = total / size.clamp(min=1)
    new = functional.normalize(torch.lerp(mean, centroids, decay), dim=-1)
    return torch.where(size > 0, new, centroids)
