"""The front doors: attention, with its log-sum-exp, its weights, and the reasons for its kernel."""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch
from torch import Tensor

from eyeline.exact.call import Call, PatternLike, ScoreModLike, check_call, make_request
from eyeline.exact.compiled import compiled
from eyeline.exact.dispatch import choose, reasons
from eyeline.kernels import reference, tiles
from eyeline.memory import remembered, traced
from eyeline.patterns import Full
from eyeline.tokens import Tokens


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    pattern: PatternLike = Full(),
    *,
    score_mod: ScoreModLike = None,
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
    mask_mod. score_mod: what is done to scores, weights and output: a ScoreMod (ALiBi, T5Bias,
    Shaw, …), several in order, or a FlexAttention callable, which keeps all L·S scores.
    dropout_p: the probability with which a weight is left out; what remains is divided by
    1 - dropout_p; torch.manual_seed says which. scale: 1/√E when omitted.
    q_tokens, k_tokens: what stands in each slot. When omitted, keys stand at 0 … S-1 and the
    queries are the *last* L of them, so that a cached step equals the full run; torch's
    ``is_causal`` is upper-left.
    Under torch.autocast the inputs are cast to its type first, as SDPA does.
    backend: "auto", or a kernel that must serve or refuse: "decode", "sdpa", "tiles", "flex",
    "reference". "flex", torch's FlexAttention, is compiled when it is first used: by name only.

    A query that may look at nobody gets exactly 0 and finite gradients. NaN and inf inside the
    tensors are not searched for; masked slots may hold any number whose products are finite.

    Raises InvalidArgument for sizes, dtypes, devices or tokens that do not fit together, and
    NotSupported for a backend that refuses.
    Vaswani et al. 2017, "Attention Is All You Need".
    """
    call = check_call(
        query, key, value, pattern,
        scale=scale, q_tokens=q_tokens, k_tokens=k_tokens, score_mod=score_mod, dropout_p=dropout_p,
    )  # fmt: skip
    return _served(call, backend)[0]


def attention_with_lse(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    pattern: PatternLike = Full(),
    *,
    score_mod: ScoreModLike = None,
    scale: float | None = None,
    dropout_p: float = 0.0,
    q_tokens: Tokens | None = None,
    k_tokens: Tokens | None = None,
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """``attention`` and lse[i] = log Σ_j exp(score[i, j]): (B, H, L, Ev) and (B, H, L).

    score is scale · query[i]·key[j] with all that score_mod does to it; dropout does not change
    lse. lse is float32, or float64 for float64 inputs; -inf for a query that may look at nobody.
    Both are differentiable. Two results over disjoint keys merge exactly by their lse.
    """
    call = check_call(
        query, key, value, pattern, score_mod=score_mod, dropout_p=dropout_p,
        scale=scale, q_tokens=q_tokens, k_tokens=k_tokens, wants_lse=True,
    )  # fmt: skip
    out, lse = _served(call, backend)
    assert lse is not None
    return out, lse


def attention_weights(
    query: Tensor,
    key: Tensor,
    pattern: PatternLike = Full(),
    *,
    score_mod: ScoreModLike = None,
    scale: float | None = None,
    q_tokens: Tokens | None = None,
    k_tokens: Tokens | None = None,
) -> Tensor:
    """weight[i, j] = exp(scale · query[i]·key[j] - lse[i]): (B, H, L, S), for short inputs.

    Exactly 0 where i may not look at j; each row sums to 1, or to 0 for a query that may look at
    nobody. In the dtype of the query. Memory is L·S.
    """
    request = make_request(
        query, key, key, pattern, score_mod=score_mod, sums_values=False,
        scale=scale, q_tokens=q_tokens, k_tokens=k_tokens,
    )  # fmt: skip
    with torch.autocast(query.device.type, enabled=False):
        return reference.weights(request)[0].to(request.query.dtype)


def _served(call: Call, backend: str) -> tuple[Tensor, Tensor | None]:
    if traced():
        return compiled(call, backend)
    # After a graph break torch.compile would trace every function from here on, plans and all.
    return _untraced()(call, backend) if "torch._dynamo" in sys.modules else _run(call, backend)


def _run(call: Call, backend: str) -> tuple[Tensor, Tensor | None]:
    request = call.request()
    kernel = choose(request, backend)
    if not torch.is_autocast_enabled(request.query.device.type):
        return kernel.run(request)
    # The inputs have autocast's type already; inside, kernels keep sums in float32.
    with torch.autocast(request.query.device.type, enabled=False):
        return kernel.run(request)


@remembered(4)
def _untraced() -> Callable[[Call, str], tuple[Tensor, Tensor | None]]:
    """``_run`` with what it calls, kept from torch.compile. Importing that takes a second."""
    run: Callable[[Call, str], tuple[Tensor, Tensor | None]] = torch.compiler.disable(_run)
    return run


def explain(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    pattern: PatternLike = Full(),
    *,
    score_mod: ScoreModLike = None,
    scale: float | None = None,
    q_tokens: Tokens | None = None,
    k_tokens: Tokens | None = None,
) -> dict[str, str]:
    """Each kernel's answer to this call: "chosen", "could serve", or why it refuses.

    Where tiles are chosen, "plan" says what they compute for the first batch row and head, in
    which order, and what it costs.
    """
    request = make_request(
        query, key, value, pattern, score_mod=score_mod,
        scale=scale, q_tokens=q_tokens, k_tokens=k_tokens,
    )  # fmt: skip
    with torch.no_grad():
        answers = reasons(request)
        if answers[tiles.NAME] == "chosen":
            answers["plan"] = tiles.first_plan(request).summary
        return answers
