"""What a kernel is asked to do, checked and complete: nothing is left to guess."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from torch import Tensor

from eyeline.patterns import Pattern
from eyeline.tokens import Tokens


@final
@dataclass(frozen=True, eq=False)
class Request:
    """One attention call.

    query (B, H, L, E), key (B, Hk, S, E), value (B, Hk, S, Ev), H a multiple of Hk; one dtype and
    device. q_tokens and k_tokens have L and S slots, and one batch row or B. wants_lse: whether
    the log-sum-exp is asked for too.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    pattern: Pattern
    q_tokens: Tokens
    k_tokens: Tokens
    scale: float
    wants_lse: bool = False

    @property
    def sizes(self) -> str:
        """The shapes, for messages."""
        shapes = (tuple(x.shape) for x in (self.query, self.key, self.value))
        return "query {}, key {}, value {}".format(*shapes)

    @property
    def groups(self) -> int:
        """Query heads to each key head, H / Hk."""
        return self.query.shape[1] // self.key.shape[1]
