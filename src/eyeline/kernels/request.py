"""What a kernel is asked to do, checked and complete: nothing is left to guess."""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from typing import final

import torch
from torch import Tensor

from eyeline.checks import wide_dtype
from eyeline.memory import remembered
from eyeline.patterns import Pattern
from eyeline.planning import dense_mask
from eyeline.scores import Called, OutputStep, Pairs, ScoreStep, Step, WeightStep
from eyeline.tokens import Tokens


@final
@dataclass(frozen=True, eq=False)
class Request:
    """One attention call.

    query (B, H, L, E), key (B, Hk, S, E), value (B, Hk, S, Ev), H a multiple of Hk; one dtype and
    device. q_tokens and k_tokens have L and S slots, and one batch row or B. wants_lse: whether
    the log-sum-exp is asked for too. steps: what is done to scores, weights and output, in order.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    pattern: Pattern
    q_tokens: Tokens
    k_tokens: Tokens
    scale: float
    wants_lse: bool = False
    steps: tuple[Step, ...] = ()

    @property
    def sizes(self) -> str:
        """The shapes, for messages."""
        shapes = (tuple(x.shape) for x in (self.query, self.key, self.value))
        return "query {}, key {}, value {}".format(*shapes)

    @property
    def groups(self) -> int:
        """Query heads to each key head, H / Hk."""
        return self.query.shape[1] // self.key.shape[1]

    @property
    def score_steps(self) -> tuple[ScoreStep, ...]:
        """The steps that change scores."""
        return tuple(step for step in self.steps if isinstance(step, ScoreStep))

    @property
    def weight_steps(self) -> tuple[WeightStep, ...]:
        """The steps that change weights."""
        return tuple(step for step in self.steps if isinstance(step, WeightStep))

    @property
    def output_steps(self) -> tuple[OutputStep, ...]:
        """The steps that add to the output."""
        return tuple(step for step in self.steps if isinstance(step, OutputStep))

    @property
    def is_additive(self) -> bool:
        """Whether the steps do no more than add a number to each score."""
        return all(isinstance(step, ScoreStep) and step.additive for step in self.steps)

    @property
    def called(self) -> Called | None:
        """The callable among the steps, if there is one."""
        return next((step for step in self.steps if isinstance(step, Called)), None)


# Dense masks and biases of whole requests; masks are remembered for layers that ask again.


def mask_of(request: Request) -> Tensor:
    """Who may look at whom, bool, in a shape that broadcasts to (B, H, L, S)."""
    return _dense(*_key(request))


def visible(request: Request) -> tuple[Tensor | None, Tensor | None]:
    """A mask for a kernel that cannot serve empty rows, and the rows that see somebody.

    The mask is None where everything is visible; in it, an empty row looks at everybody. The
    second is bool (…, L, 1), or None where no row is empty: take the other rows out afterwards.
    """
    return _visible(*_key(request))


def additive(request: Request) -> tuple[Tensor | None, Tensor | None]:
    """``visible`` with what additive steps add: a bool mask, or numbers, (B or 1, H or 1, L, S)."""
    mask, some = visible(request)
    if not request.steps:
        return mask, some
    batch, heads, queries, _ = request.query.shape
    wide = wide_dtype(request.query)
    bias = request.query.new_zeros(batch, heads, queries, request.key.shape[2], dtype=wide)
    for step in request.score_steps:
        bias = step.define(bias, pairs_of(request))
    if mask is not None:
        bias = bias.masked_fill(~mask, -torch.inf)
    if bias.device.type != "cpu":
        # There SDPA wants the query's type. What is looked at most then loses least by rounding.
        bias = (bias - bias.detach().amax(-1, keepdim=True)).to(request.query.dtype)
    return bias, some


def pairs_of(request: Request) -> Pairs:
    """All pairs of the request, as the steps see them."""
    return Pairs(request.query, request.scale, request.q_tokens, request.k_tokens)


_Key = tuple[Pattern, Tokens, Tokens, int | None, int | None, torch.device]


def _key(request: Request) -> _Key:
    varies = bool(request.pattern.varies_by - {"length"})
    batch, heads = request.query.shape[:2] if varies else (None, None)
    tokens = request.q_tokens, request.k_tokens
    return (request.pattern, *tokens, batch, heads, request.query.device)


@remembered(16, unless=attrgetter("bound"))
def _dense(
    pattern: Pattern,
    q: Tokens,
    k: Tokens,
    batch: int | None,
    heads: int | None,
    device: torch.device,
) -> Tensor:
    if batch is not None and heads is not None:
        return dense_mask(pattern, q_tokens=q, k_tokens=k, batch=batch, heads=heads).to(device)
    mask = dense_mask(pattern, q_tokens=q, k_tokens=k).to(device)
    return mask.unsqueeze(1) if mask.dim() == 3 else mask


@remembered(16, unless=attrgetter("bound"))
def _visible(
    pattern: Pattern,
    q: Tokens,
    k: Tokens,
    batch: int | None,
    heads: int | None,
    device: torch.device,
) -> tuple[Tensor | None, Tensor | None]:
    mask = _dense(pattern, q, k, batch, heads, device)
    if bool(mask.all()):
        return None, None
    some = mask.any(-1, keepdim=True)
    return (mask, None) if bool(some.all()) else (mask | ~some, some)
