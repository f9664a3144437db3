"""Causal language models: each token is predicted from those before it."""

from __future__ import annotations

import math
from itertools import groupby
from typing import ClassVar, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from eyeline.errors import InvalidArgument
from eyeline.models.base import LanguageModel
from eyeline.planning import pair_ahead
from eyeline.tokenizer import AnyTokenizer, ByteTokenizer
from eyeline.training.processes import Processes
from eyeline.training.task import Batch, Task
from eyeline.training.texts import Measured, Texts, Windows, half_windows

# A language model is not to see what it is to predict: by its patterns, and by trying.


_MOST = 64


def check_causal(model: LanguageModel, length: int) -> None:
    """Raise InvalidArgument, naming a pair, if a token sees one that comes after it.

    Patterns are asked at this length (``looks_ahead``). Whatever a mechanism makes of them is
    tried on 64 tokens at most: a change of the last id must not change what is predicted before.
    Routing that saw the whole text ("edge") is refused: a loss helped by the future says nothing
    of what is written.
    """
    for layer, mechanism in enumerate(model.mechanisms):
        if mechanism.causality == "edge":
            raise InvalidArgument(
                f"layer {layer}, {type(mechanism).__name__}: {mechanism.no_cache}. A language "
                "model is to know nothing of the future: topk, threshold, sinkhorn, linear "
                "and exact patterns do not"
            )
    for pattern in model.patterns:
        ahead = pair_ahead(pattern, length, heads=model.config.heads)
        if ahead is not None:
            raise InvalidArgument(
                f"pattern {pattern}: token {ahead[0]} would see token {ahead[1]}, which comes "
                f"after it and is to be predicted; causal & ({pattern}) sees only what came before"
            )
    _try(model, min(length, _MOST))


@torch.no_grad()
def _try(model: LanguageModel, size: int) -> None:
    ids = torch.arange(size)[None] % model.config.vocabulary
    other = ids.clone()
    other[0, -1] = (other[0, -1] + 1) % model.config.vocabulary
    training = {module: module.training for module in model.modules()}
    model.eval()
    before, after = (model(x)[0, :-1] for x in (ids, other))
    for module, was in training.items():
        module.training = was
    changed = (before != after).any(-1).nonzero()
    if len(changed):
        raise InvalidArgument(
            f"mechanism {model.kinds[0][1]}: token {int(changed[0])} sees token {size - 1}, which "
            "comes after it and is to be predicted; it cannot train a causal language model"
        )


# The weights that a language model begins with: as large as its width allows.

_EMBEDDING = 0.05
_RESIDUAL = (".out", ".down")
"""The last projection of each part of a block, which adds to the residual."""


@torch.no_grad()
def draw(model: LanguageModel) -> None:
    """W ~ N(0, 1 / columns), over √(2 · layers) where it adds to the residual; E ~ N(0, 0.05²).

    Biases are 0. A width of 256 learns several times faster from it than from the 0.02 that is
    usual for a width of 768 and more; and the sum of all layers stays as large as one.
    """
    for name, module in model.named_modules():
        if not isinstance(module, nn.Linear) or module.weight is model.embedding.weight:
            continue
        std = module.in_features**-0.5
        if name.endswith(_RESIDUAL):
            std /= (2 * model.config.layers) ** 0.5
        nn.init.normal_(module.weight, std=std)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    nn.init.normal_(model.embedding.weight, std=_EMBEDDING)


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
        tokenizer: AnyTokenizer,
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
