"""One reading of a text: how long it takes, how much of that is attention, how much memory."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from time import perf_counter
from typing import Any, final

import torch
from torch import Tensor, nn

from eyeline.caches import Cache
from eyeline.generation import stream
from eyeline.measuring.memory import Peak
from eyeline.models import LanguageModel


@dataclass(frozen=True)
class Reading:
    """A text read once into empty caches.

    seconds: from ids to the logits of what follows. attention_seconds: of these, inside attention
    proper (projections and rotary encoding not counted). peak_bytes: memory beyond what was held
    before, or None where that is not measured. hidden: (1, L, width), what the head reads.
    """

    seconds: float
    attention_seconds: float
    peak_bytes: int | None
    hidden: Tensor
    caches: Sequence[Cache]


@torch.inference_mode()
def read(model: LanguageModel, ids: Tensor) -> Reading:
    """Reads ids (1, L) in one step."""
    caches = model.new_caches()
    with Peak() as peak, AttentionClock(model) as clock:
        start = perf_counter()
        hidden = model.hidden(ids, caches=caches)
        model.head(hidden[:, -1:])
        seconds = perf_counter() - start
    return Reading(seconds, clock.seconds, peak.bytes, hidden, caches)


def writing_speed(model: LanguageModel, reading: Reading, tokens: int) -> float:
    """Tokens per second, greedy, after the text that was read. The caches grow by them."""
    with torch.inference_mode():
        first = int(model.head(reading.hidden[:, -1:]).argmax())
    writer = stream(model, [first], max_new_tokens=tokens + 1, caches=reading.caches)
    for _ in writer:
        pass
    return writer.tokens_per_second


@final
class AttentionClock:
    """``with AttentionClock(model) as clock: …``: seconds spent inside the model's attention."""

    def __init__(self, model: nn.Module) -> None:
        self.seconds = 0.0
        self._model, self._start, self._hooks = model, 0.0, ExitStack()

    def __enter__(self) -> AttentionClock:
        for name, module in self._model.named_modules():
            if name.endswith(".attend"):
                for hook in (
                    module.register_forward_pre_hook(self._begin),
                    module.register_forward_hook(self._end),
                ):
                    self._hooks.callback(hook.remove)
        return self

    def __exit__(self, *_: object) -> None:
        self._hooks.close()

    def _begin(self, *_: Any) -> None:
        self._start = perf_counter()

    def _end(self, *_: Any) -> None:
        self.seconds += perf_counter() - self._start
