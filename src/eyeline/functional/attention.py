"""The front doors: attention, with its log-sum-exp, its weights, and the reasons for its kernel."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from eyeline.dispatch import choose, reasons
from eyeline.functional.checks import PatternLike, make_request
from eyeline.kernels import reference, tiles
from eyeline.kernels.request import Request
from eyeline.patterns import Full
from eyeline.tokens import Tokens


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    pattern: PatternLike = Full(),
    *,
    score_mod: Any = None,
    scale: float | None = None,
    dropout_p: float = 0.0,
    q_tokens: Tokens | None = None,
    k_tokens: Tokens | None = None,
    backend: str = "auto",
) -> Tensor:
    """out[i] = Σ_j softmax_j(scale · query[i]·key[j]) · value[j], over the j that i may look at.

    query: (B, H, L, E); key: (B, Hk, S, E); value: (B, Hk, S, Ev); H a multiple of Hk, query head
    h uses key head h // (H / Hk). One floating dtype and device. Returns (B, H, L, Ev).
    pattern: who may look at whom; also a bool tensor (True = may look) or a FlexAttention
    mask_mod. scale: 1/√E when omitted. q_tokens, k_tokens: what stands in each slot. When omitted,
    keys stand at 0 … S-1 and the queries are the *last* L of them, so that a cached step equals
    the full run; torch's ``is_causal`` is upper-left.
    Under torch.autocast the inputs are cast to its type first, as SDPA does.
    backend: "auto", or a kernel that must serve or refuse: "decode", "sdpa", "tiles", "flex",
    "reference". "flex", torch's FlexAttention, is compiled when it is first used: by name only.

    A query that may look at nobody gets exactly 0 and finite gradients. NaN and inf inside the
    tensors are not searched for; masked slots may hold any finite number.

    Raises InvalidArgument for sizes, dtypes, devices or tokens that do not fit together, and
    NotSupported for what is not built yet (score_mod, dropout_p) or a backend that refuses.
    Vaswani et al. 2017, "Attention Is All You Need".
    """
    request = make_request(
        query, key, value, pattern,
        scale=scale, q_tokens=q_tokens, k_tokens=k_tokens, score_mod=score_mod, dropout_p=dropout_p,
    )  # fmt: skip
    return _served(request, backend)[0]


def attention_with_lse(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    pattern: PatternLike = Full(),
    *,
    scale: float | None = None,
    q_tokens: Tokens | None = None,
    k_tokens: Tokens | None = None,
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """``attention`` and lse[i] = log Σ_j exp(scale · query[i]·key[j]): (B, H, L, Ev) and (B, H, L).

    lse is float32, or float64 for float64 inputs; -inf for a query that may look at nobody. Both
    are differentiable. Two results over disjoint keys merge exactly by their lse.
    """
    request = make_request(
        query, key, value, pattern,
        scale=scale, q_tokens=q_tokens, k_tokens=k_tokens, wants_lse=True,
    )  # fmt: skip
    out, lse = _served(request, backend)
    assert lse is not None
    return out, lse


def attention_weights(
    query: Tensor,
    key: Tensor,
    pattern: PatternLike = Full(),
    *,
    scale: float | None = None,
    q_tokens: Tokens | None = None,
    k_tokens: Tokens | None = None,
) -> Tensor:
    """weight[i, j] = exp(scale · query[i]·key[j] - lse[i]): (B, H, L, S), for short inputs.

    Exactly 0 where i may not look at j; each row sums to 1, or to 0 for a query that may look at
    nobody. In the dtype of the query. Memory is L·S.
    """
    request = make_request(
        query, key, key, pattern, scale=scale, q_tokens=q_tokens, k_tokens=k_tokens
    )
    with torch.autocast(query.device.type, enabled=False):
        return reference.weights(request)[0].to(request.query.dtype)


def _served(request: Request, backend: str) -> tuple[Tensor, Tensor | None]:
    kernel = choose(request, backend)
    if not torch.is_autocast_enabled(request.query.device.type):
        return kernel.run(request)
    # The inputs have autocast's type already; inside, kernels keep sums in float32.
    with torch.autocast(request.query.device.type, enabled=False):
        return kernel.run(request)


def explain(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    pattern: PatternLike = Full(),
    *,
    scale: float | None = None,
    q_tokens: Tokens | None = None,
    k_tokens: Tokens | None = None,
) -> dict[str, str]:
    """Each kernel's answer to this call: "chosen", "could serve", or why it refuses.

    Where tiles are chosen, "plan" says what they compute for the first batch row and head, in
    which order, and what it costs.
    """
    request = make_request(
        query, key, value, pattern, scale=scale, q_tokens=q_tokens, k_tokens=k_tokens
    )
    with torch.no_grad():
        answers = reasons(request)
        if answers[tiles.NAME] == "chosen":
            answers["plan"] = tiles.first_plan(request).summary
        return answers
