"""Causal language models: each token is predicted from those before it."""

from __future__ import annotations

import math
from itertools import groupby
from typing import ClassVar, final

import torch
from torch import Tensor
from torch.nn import functional

from eyeline.models.base import LanguageModel
from eyeline.tokenizer import ByteTokenizer
from eyeline.training.processes import Processes
from eyeline.training.task import Batch, Task
from eyeline.training.texts import Texts
from eyeline.training.windows import Measured, Windows, half_windows
from eyeline.training.words import TextTokenizer

_MOST_MEASURED = 1 << 18
"""Tokens that are read to measure, at most."""


@final
class Language(Task[Tensor]):
    """loss = -Σ log p(id i + 1 | ids of the window up to i).

    Measured: ``loss``, nats per token; ``bits_per_byte`` = total loss / (ln 2 · bytes of the
    text), which compares across tokenizers; ``perplexity`` = exp(loss).
    """

    main: ClassVar[str] = "bits_per_byte"

    def __init__(
        self,
        model: LanguageModel,
        texts: Texts,
        tokenizer: TextTokenizer,
        *,
        length: int,
        batch_tokens: int,
        seed: int,
    ) -> None:
        self.model: LanguageModel = model
        self.digest, self._ids, self._length = texts.digest, texts.ids, length
        rows = max(1, batch_tokens // length)
        self._windows = Windows(texts.ids, texts.training, length=length, rows=rows, seed=seed)
        self.epoch = self._windows.count
        most = max(1, _MOST_MEASURED // length)
        self._measured = half_windows(texts.held_out, length=length, most=most)
        self._rows, self._tokenizer = rows, tokenizer
        trained, held = (sum(s.stop - s.start for s in x) for x in (texts.training, texts.held_out))
        self.facts = {"training_tokens": trained, "held_out_tokens": held}

    def batch(self, step: int, processes: Processes) -> Batch[Tensor]:
        total = self._windows.rows
        part, tokens = processes.part(total), total * self._length
        rows = self._windows.at(step, processes.share(total)) if part else None
        return Batch(rows, tokens, tokens, part)

    def loss(self, rows: Tensor) -> Tensor:
        rows = rows.to(self.model.embedding.weight.device)
        logits = self.model(rows[:, :-1])
        return functional.cross_entropy(
            logits.flatten(0, 1).float(), rows[:, 1:].flatten(), reduction="sum"
        )

    def measure(self) -> dict[str, float]:
        if not self._measured:
            return {}
        nats, tokens, size = 0.0, 0, 0
        for length, alike in groupby(self._measured, key=lambda window: window.length):
            windows = list(alike)
            for start in range(0, len(windows), self._rows):
                losses, targets = self._measured_losses(windows[start : start + self._rows], length)
                nats, tokens = nats + float(losses.double().sum()), tokens + len(losses)
                size += self._bytes(targets)
        loss = nats / tokens
        return {
            "loss": loss,
            "bits_per_byte": nats / (math.log(2) * size),
            "perplexity": math.exp(min(loss, 700.0)),
        }

    def _measured_losses(self, windows: list[Measured], length: int) -> tuple[Tensor, Tensor]:
        """The losses of the targets that count, and these targets."""
        starts = torch.tensor([window.start for window in windows])
        counts = torch.arange(length) >= torch.tensor([[window.seen] for window in windows])
        ids = self._ids[starts[:, None] + torch.arange(length + 1)].long()
        logits = self.model(ids[:, :-1].to(self.model.embedding.weight.device)).float().cpu()
        targets = ids[:, 1:][counts]
        return functional.cross_entropy(logits[counts], targets, reduction="none"), targets

    def _bytes(self, ids: Tensor) -> int:
        """How many bytes of text some ids are."""
        if isinstance(self._tokenizer, ByteTokenizer):
            return len(ids)
        return len(self._tokenizer.decode(ids.tolist()).encode())
