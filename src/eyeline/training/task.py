"""What a task is to the training loop: a model, batches by step, a loss, and a measure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from torch import Tensor

from eyeline.models.base import Model
from eyeline.training.processes import Processes

Rows = TypeVar("Rows")


@dataclass(frozen=True)
class Batch(Generic[Rows]):
    """The rows of one process, None if it has none of them.

    targets: how many losses the whole batch has, over all processes. tokens: of the whole batch.
    part: how much of the batch these rows are, from 0 to 1, be they long or short.
    """

    rows: Rows | None
    targets: int
    tokens: int
    part: float


class Task(ABC, Generic[Rows]):
    """Batches are a pure function of the step, 1, 2, …; ``epoch``: how many an epoch has.

    digest: of all data, so that a resumed run is told of other data. facts: what to tell of them.
    """

    main: ClassVar[str]
    """The measure that is shown while training goes on."""

    model: Model
    epoch: int
    digest: str
    facts: Mapping[str, Any]

    @abstractmethod
    def batch(self, step: int, processes: Processes) -> Batch[Rows]:
        """The rows that this process trains on in a step."""

    @abstractmethod
    def loss(self, rows: Rows) -> Tensor:
        """The sum of the losses of some rows, in nats."""

    @abstractmethod
    def measure(self) -> dict[str, float]:
        """How good the model is on what is held out; {} if nothing is. In eval mode."""

    def notes(self) -> dict[str, Any]:
        """What the trained folder says beside the model: names of classes, and the like."""
        return {}
