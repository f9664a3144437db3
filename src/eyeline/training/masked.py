"""Masked language models: tokens are hidden, and guessed from both sides."""

from __future__ import annotations

import math
from typing import ClassVar, NamedTuple, final

import torch
from torch import Tensor

from eyeline.hashing import generator
from eyeline.models.bert import NOT_ASKED, BertMasked
from eyeline.training.processes import Processes
from eyeline.training.task import Batch, Task
from eyeline.training.texts import Texts, Windows, half_windows

_MOST_MEASURED = 1 << 18
ASKED, HIDDEN, CHANGED = 0.15, 0.8, 0.1


class Masked(NamedTuple):
    """ids (B, L) with some hidden or changed; targets (B, L): what stood there, -100 elsewhere."""

    ids: Tensor
    targets: Tensor


def hide(ids: Tensor, drawn: torch.Generator, *, mask_id: int, vocabulary: int) -> Masked:
    """15 % of the tokens are asked for, at least one a row.

    Of these 80 % are hidden behind the mask, 10 % are changed to any token that is not the mask,
    and 10 % stay as they are. Devlin et al. 2019.
    """
    chance = torch.rand(ids.shape, generator=drawn)
    asked = chance < ASKED
    asked[torch.arange(len(ids)), chance.argmin(1)] = True
    kind = torch.rand(ids.shape, generator=drawn)
    others = torch.randint(vocabulary - 1, ids.shape, generator=drawn)
    others += others >= mask_id
    seen = torch.where(asked & (kind < HIDDEN), mask_id, ids)
    seen = torch.where(asked & (kind >= 1 - CHANGED), others, seen)
    return Masked(seen, torch.where(asked, ids, NOT_ASKED))


@final
class MaskedLanguage(Task[Masked]):
    """loss = -Σ log p(token i | the text with token i hidden), over the tokens that are asked for.

    Measured on held-out text, with the same tokens hidden each time: ``loss``, nats a token, and
    ``accuracy``, the share that the likeliest guess gets right.
    """

    main: ClassVar[str] = "accuracy"

    def __init__(
        self,
        model: BertMasked,
        texts: Texts,
        *,
        mask_id: int,
        length: int,
        batch_tokens: int,
        seed: int,
    ) -> None:
        self.model: BertMasked = model
        self.digest, self._ids, self._length = texts.digest, texts.ids, length
        self._mask_id, self._seed = mask_id, seed
        rows = max(1, batch_tokens // length)
        self._windows = Windows(texts.ids, texts.training, length=length, rows=rows, seed=seed)
        self.epoch = self._windows.count
        most = max(1, _MOST_MEASURED // length)
        self._measured = half_windows(texts.held_out, length=length, most=most)
        trained, held = (sum(s.stop - s.start for s in x) for x in (texts.training, texts.held_out))
        self.facts = {"training_tokens": trained, "held_out_tokens": held}

    def batch(self, step: int, processes: Processes) -> Batch[Masked]:
        whole = self._hidden(self._windows.at(step)[:, :-1], "masks", step)
        share = processes.share(len(whole.ids))
        mine = Masked(whole.ids[share], whole.targets[share])
        targets = int((whole.targets != NOT_ASKED).sum())
        part = processes.part(len(whole.ids))
        return Batch(mine if part else None, targets, whole.ids.numel(), part)

    def loss(self, rows: Masked) -> Tensor:
        device = self.model.embedding.weight.device
        return self.model.losses(rows.ids.to(device), rows.targets.to(device)).sum()

    def measure(self) -> dict[str, float]:
        if not self._measured:
            return {}
        nats, right, count = 0.0, 0, 0
        device = self.model.embedding.weight.device
        for place, window in enumerate(self._measured):
            ids = self._ids[window.start : window.start + window.length][None].long()
            hidden = self._hidden(ids, "measured masks", place)
            asked = hidden.targets != NOT_ASKED
            logits = self.model(hidden.ids.to(device)).float().cpu()[asked]
            targets = hidden.targets[asked]
            nats += float(torch.nn.functional.cross_entropy(logits, targets, reduction="sum"))
            right += int((logits.argmax(-1) == targets).sum())
            count += len(targets)
        loss = nats / count
        return {"loss": loss, "accuracy": right / count, "perplexity": math.exp(min(loss, 700.0))}

    def _hidden(self, ids: Tensor, word: str, place: int) -> Masked:
        drawn = generator(self._seed, word, place)
        vocabulary = self.model.config.vocabulary
        return hide(ids, drawn, mask_id=self._mask_id, vocabulary=vocabulary)
