"""Attention over more keys than those of the sequence, merged exactly by the log-sum-exp."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from eyeline.functional import attention_with_lse
from eyeline.mechanisms.exact import Exact
from eyeline.patterns import Pattern
from eyeline.planning.cost import Work, numbers_in
from eyeline.scores import ScoreMod
from eyeline.tokens import NOBODY, Tokens


def looked(
    exact: Exact,
    pattern: Pattern,
    heads: tuple[Tensor, Tensor, Tensor],
    more: tuple[Tensor, Tensor],
    *,
    tokens: tuple[Tokens | None, Tokens | None],
    score_mods: tuple[ScoreMod, ...],
) -> Tensor:
    """softmax over the sequence's keys under a pattern and, at once, over more keys for everyone.

    heads: query (B, H, L, E), key (B, Hk, S, E) and value (B, Hk, S, Ev) of the sequence; more:
    keys (B or 1, Hk, m, E) and values (B or 1, Hk, m, Ev) that do not belong to it, to which no
    score modifier applies. With two log-sum-exps a and b the share of the second is
    1 / (1 + exp(a - b)).
    """
    query, key, value = heads
    p = exact.dropout if exact.training else 0.0
    out, lse = attention_with_lse(
        query, key, value, pattern, score_mod=score_mods, dropout_p=p,
        scale=exact.scale, q_tokens=tokens[0], k_tokens=tokens[1],
    )  # fmt: skip
    with torch.autocast(query.device.type, enabled=False):
        score = more_scores(query.to(out.dtype), more[0], exact.scale)
        weight = functional.dropout(score.softmax(-1), p, training=p > 0)
        share = (score.logsumexp(-1) - lse).sigmoid().unsqueeze(-1)
        extra = _grouped(weight, more[1].to(weight.dtype))
        return torch.lerp(out.to(extra.dtype), extra, share).to(out.dtype)


def without_nobody(out: Tensor, tokens: Tokens) -> Tensor:
    """out (B, H, L, Ev) with 0 where nobody asks: more keys are there for everyone, not for it."""
    nobody = (tokens.positions == NOBODY).to(out.device)
    return out.masked_fill(torch.atleast_2d(nobody)[:, None, :, None], 0.0)


def all_weights(
    exact: Exact,
    query: Tensor,
    key: Tensor,
    more: Tensor,
    *,
    q_tokens: Tokens | None,
    k_tokens: Tokens | None,
) -> Tensor:
    """The weights of the sequence's S keys, then of the m more: (B, H, L, S + m)."""
    own = exact.weights(query, key, q_tokens=q_tokens, k_tokens=k_tokens)
    _, lse = attention_with_lse(
        query, key, key, exact.pattern, score_mod=exact.score_mods,
        scale=exact.scale, q_tokens=q_tokens, k_tokens=k_tokens,
    )  # fmt: skip
    score = more_scores(query, more, exact.scale)
    share = (score.logsumexp(-1) - lse).sigmoid().unsqueeze(-1)
    both = torch.cat((own.to(score.dtype) * (1 - share), score.softmax(-1) * share), -1)
    return both.to(query.dtype)


def beyond(work: Work, pairs: int, module: nn.Module) -> Work:
    """The work with so many pairs more in each head, and a module's parameters."""
    more = work.call.heads * pairs
    return replace(
        work,
        pairs=work.pairs + more,
        computed=work.computed + more,
        multiplications=work.multiplications + more * work.call.products,
        computed_multiplications=work.computed_multiplications + more * work.call.products,
        numbers=work.numbers + numbers_in(module),
        backward=None,
    )


def more_scores(query: Tensor, key: Tensor, scale: float | None) -> Tensor:
    """scale · query · key, wide: (B, H, L, E) and (B or 1, Hk, m, E) to (B, H, L, m)."""
    scale = scale if scale is not None else 1.0 / math.sqrt(query.shape[-1])
    wide = torch.promote_types(query.dtype, torch.float32)
    return _grouped(query.to(wide), key.to(wide).transpose(-2, -1)) * scale


def _grouped(rows: Tensor, matrix: Tensor) -> Tensor:
    """(B, H, L, x) times (B or 1, Hk, x, y), each matrix for H / Hk heads: (B, H, L, y)."""
    shared = matrix.shape[1]
    heads = rows.reshape(rows.shape[0], shared, rows.shape[1] // shared, *rows.shape[2:])
    return (heads @ matrix.unsqueeze(2)).flatten(1, 2)
