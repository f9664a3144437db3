"""A language model is not to see what it is to predict: by its patterns, and by trying."""

from __future__ import annotations

from typing import Any, cast

import torch

from eyeline.errors import InvalidArgument
from eyeline.models.base import LanguageModel
from eyeline.planning import dense_mask

_MOST = 64


def check_causal(model: LanguageModel, length: int) -> None:
    """Raise InvalidArgument, naming a pair, if a token sees one that comes after it.

    Patterns are looked at up to ``length``, 64 at most. Whatever a mechanism makes of them is
    tried: a change of the last id must not change what is predicted before. Routing that saw the
    whole text ("edge") is refused: a loss helped by the future says nothing of what is written.
    """
    for layer, mechanism in enumerate(x.attention.attend for x in cast(Any, model.layers)):
        if getattr(mechanism, "causality", None) == "edge":
            raise InvalidArgument(
                f"layer {layer}, {type(mechanism).__name__}: {mechanism.no_cache}. A language "
                "model is to know nothing of the future: topk, threshold, sinkhorn, linear "
                "and exact patterns do not"
            )
    size = min(length, _MOST)
    heads = model.config.heads
    for pattern in model.patterns:
        future = dense_mask(pattern, size, batch=1, heads=heads).any(1)[0].triu(1)
        if future.any():
            query, key = (int(x) for x in future.nonzero()[0])
            raise InvalidArgument(
                f"pattern {pattern}: token {query} would see token {key}, which comes after it and "
                f"is to be predicted; causal & ({pattern}) sees only what came before"
            )
    _try(model, size)


@torch.no_grad()
def _try(model: LanguageModel, size: int) -> None:
    ids = torch.arange(size)[None] % model.config.vocabulary
    other = ids.clone()
    other[0, -1] = (other[0, -1] + 1) % model.config.vocabulary
    training = {module: module.training for module in model.modules()}
    model.eval()
    before, after = (model(x)[0, :-1] for x in (ids, other))
    for module, was in training.items():
        module.training = was
    changed = (before != after).any(-1).nonzero()
    if len(changed):
        raise InvalidArgument(
            f"mechanism {model.kinds[0][1]}: token {int(changed[0])} sees token {size - 1}, which "
            "comes after it and is to be predicted; it cannot train a causal language model"
        )
