"""What a kernel is asked to do, checked and complete: nothing is left to guess."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from torch import Tensor

from eyeline.patterns import Pattern
from eyeline.scores import Called, OutputStep, ScoreStep, Step, WeightStep
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
