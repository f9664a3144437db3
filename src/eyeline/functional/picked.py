"""How keys are picked by their scores, for a call that was checked."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from eyeline.exact.call import Call, PatternLike, check_call
from eyeline.kernels.autograd import eager
from eyeline.patterns import SameDocument
from eyeline.routing import Route
from eyeline.routing.scored import Scored
from eyeline.tokens import Tokens


def picked(
    pick: Callable[[Scored], Route],
    query: Tensor,
    key: Tensor,
    pattern: PatternLike,
    *,
    scale: float | None,
    q_tokens: Tokens | None,
    k_tokens: Tokens | None,
) -> Route:
    """Whom each query looks at, of those that the pattern allows and that are of its document.

    It is not part of a graph: what is picked is not known before it runs.
    """
    call = check_call(query, key, key, pattern, scale=scale, q_tokens=q_tokens, k_tokens=k_tokens)
    return eager(lambda: _picked(pick, call))


def _picked(pick: Callable[[Scored], Route], call: Call) -> Route:
    q, k = call.standing
    rule = call.pattern
    if k.documents is not None:
        rule = rule & SameDocument()
    with torch.no_grad(), torch.autocast(call.query.device.type, enabled=False):
        return pick(Scored(call.query, call.key, rule, q, k, call.scale))
