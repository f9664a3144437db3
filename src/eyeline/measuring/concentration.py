"""Where the weight of a real model lies: concentration on few keys, columns that are alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from eyeline.errors import InvalidArgument, NotSupported
from eyeline.exact.call import check_call
from eyeline.mechanisms import Exact, Mechanism
from eyeline.mechanisms.routed.scored import Scored, sheets
from eyeline.models import LanguageModel
from eyeline.planning.dense import settled
from eyeline.tokens import default_tokens

# What each layer of a language model looks with, while it reads a text.


class Look(NamedTuple):
    """One layer's queries (B, H, L, E) and keys (B, Hk, S, E), by its mechanism."""

    exact: Exact
    query: Tensor
    key: Tensor

    @property
    def scored(self) -> Scored:
        """The scores of all pairs that the layer's pattern allows."""
        options: dict[str, Any] = {"q_tokens": None, "k_tokens": None, "scale": self.exact.scale}
        call = check_call(self.query, self.key, self.key, self.exact.pattern, **options)
        q, k = default_tokens(self.query.shape[2], self.key.shape[2])
        return Scored(self.query, self.key, settled(call.pattern, q, k), q, k, call.scale)


def of_each_layer(
    model: LanguageModel, ids: Sequence[int], measure: Callable[[Look], Tensor]
) -> Tensor:
    """measure(look) of each layer in turn, (layers, …), while the model reads ids at once.

    Only what was measured is kept. Dropout is left out. Raises InvalidArgument for no ids, and
    NotSupported for a layer that does not look by exact attention, or changes its scores.
    """
    if not len(ids):
        raise InvalidArgument("there are no ids to read")
    found: list[Tensor] = []
    training = model.training
    with ExitStack() as after, torch.inference_mode():
        for mechanism in model.mechanisms:
            see = _seeing(_checked(mechanism), measure, found)
            handle = mechanism.register_forward_pre_hook(see, with_kwargs=True)
            after.callback(handle.remove)
        after.callback(model.train, training)
        model.eval().hidden(torch.tensor([list(ids)], device=model.embedding.weight.device))
    return torch.stack(found)


def _seeing(
    exact: Exact, measure: Callable[[Look], Tensor], found: list[Tensor]
) -> Callable[[nn.Module, tuple[Tensor, ...], dict[str, Any]], None]:
    def see(module: nn.Module, given: tuple[Tensor, ...], options: dict[str, Any]) -> None:
        found.append(measure(Look(exact, given[0], given[1])))

    return see


def _checked(mechanism: Mechanism) -> Exact:
    if not isinstance(mechanism, Exact):
        raise NotSupported(
            f"the weights of exact attention are measured, not of {type(mechanism).__name__}"
        )
    if mechanism.score_mods:
        raise NotSupported(f"scores that {mechanism.score_mods[0]} changes are not measured")
    return mechanism


# Concentration: on how few of the keys that a query may look at does its weight lie?
#
# Top-k attention rests on it: if 2 % of the pairs hold 95 % of the weight, the others need not be
# looked at.


def concentration(model: LanguageModel, ids: Sequence[int], *, share: float = 0.95) -> Tensor:
    """Mean over queries of (fewest keys whose weights sum to ``share``) / (keys allowed).

    For each layer and head, float64 (layers, heads), while the model reads ids under its own
    patterns. From 1/n, where each query looks at one key, to ``share``, where all weights are
    equal. The first queries of a causal text have few keys and so a large part of them. Queries
    that may look at nobody do not count; NaN where all are such. Weights are made for some
    queries at a time and never kept.

    Raises InvalidArgument for no ids and unless 0 < share ≤ 1, and NotSupported for mechanisms
    that are not exact attention.
    """
    if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0.0 < share <= 1.0:
        raise InvalidArgument(f"share={share!r}: a part of the weight, above 0 and up to 1")
    return of_each_layer(model, ids, partial(_of_heads, share=float(share)))


def _of_heads(look: Look, share: float) -> Tensor:
    """Of each query head, (H,)."""
    scored = look.scored
    total, count = (torch.zeros(scored.shape[:2], dtype=torch.float64) for _ in range(2))
    for sheet in sheets(scored):
        part, some = _parts(sheet.scores, share)
        total[sheet.at[:2]] += part.sum(-1).cpu()
        count[sheet.at[:2]] += some.sum(-1).cpu()
    return (total / count).flatten()


def _parts(scores: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """What part of its allowed keys holds ``share`` of each row (…, C), and whether it has any.

    A few rounding errors of the whole are forgiven, so that share=1 does not hang on the last of
    the weights that add up to it.
    """
    weight = scores.double().softmax(-1).nan_to_num_(0.0)
    held = weight.sort(-1, descending=True).values.cumsum(-1)
    allowed = (scores > -torch.inf).sum(-1)
    short = held < share * (1.0 - 1e-12)
    fewest = short.sum(-1) + 1
    some = allowed > 0
    part = fewest.minimum(allowed).double() / allowed.clamp(min=1)
    return part, some


# Redundancy: how alike are the columns of attention matrices?
#
# What replaces many keys by few rests on it, as Linformer and compressed keys do: columns that
# repeat one another need not be kept apart.


class Redundancy(NamedTuple):
    """For each layer and head, float64 (layers, heads).

    rank: the effective rank of the matrix of weights A (n, n), exp(-Σ p_i log p_i) with
    p_i = σ_i / Σ σ, from 1 to n (Roy and Vetterli 2007). repeated: the share of columns whose
    cosine with an earlier one exceeds a limit.
    """

    rank: Tensor
    repeated: Tensor


def redundancy(model: LanguageModel, ids: Sequence[int], *, cosine: float = 0.99) -> Redundancy:
    """Effective rank and near-duplicate columns of softmax(QKᵀ/√E) of each layer and head.

    For short texts: whole matrices are made, one layer at a time, so memory is H·n² and time
    H·n³. Under a causal pattern a column is 0 above its diagonal, so columns far apart cannot be
    alike; patterns that look both ways show the most. Columns of zeros are like no other.

    Raises InvalidArgument for no ids and unless -1 ≤ cosine ≤ 1, and NotSupported for mechanisms
    that are not exact attention.
    """
    number = isinstance(cosine, (int, float)) and not isinstance(cosine, bool)
    if not number or not -1.0 <= cosine <= 1.0:
        raise InvalidArgument(f"cosine={cosine!r}: a number from -1 to 1")
    return Redundancy(
        *of_each_layer(model, ids, partial(_redundancy_of_heads, cosine=cosine)).unbind(1)
    )


def _redundancy_of_heads(look: Look, cosine: float) -> Tensor:
    """Rank and share of each query head, (2, H)."""
    weights = look.exact.weights(look.query, look.key)[0].double()
    return torch.stack([effective_rank(weights), repeated_columns(weights, cosine)]).cpu()


def effective_rank(matrices: Tensor) -> Tensor:
    """exp of the entropy of the singular values' shares: (…, m, n) to (…,), 0 for a zero matrix."""
    values = torch.linalg.svdvals(matrices)
    whole = values.sum(-1, keepdim=True)
    shares = values / whole.where(whole > 0.0, 1.0)
    entropy = torch.special.entr(shares).sum(-1)
    rank: Tensor = entropy.exp().where(whole[..., 0] > 0.0, 0.0)
    return rank


def repeated_columns(matrices: Tensor, cosine: float) -> Tensor:
    """The share of columns whose cosine with an earlier one exceeds a limit, (…, m, n) to (…,)."""
    length = matrices.norm(dim=-2, keepdim=True)
    columns = matrices / length.where(length > 0.0, 1.0)
    alike = columns.mT @ columns > cosine
    there = length[..., 0, :] > 0.0
    alike &= there.unsqueeze(-1) & there.unsqueeze(-2)
    share: Tensor = alike.tril(-1).any(-1).double().mean(-1)
    return share
