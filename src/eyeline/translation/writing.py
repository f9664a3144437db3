"""What a decoder remembers while it writes: its own keys, and those of what it reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from eyeline.errors import InvalidArgument, NotSupported
from eyeline.layers import Projected
from eyeline.models.transformer import Transformer
from eyeline.tokens import Tokens


@dataclass(frozen=True)
class Hypothesis:
    """A text that may be the answer.

    ids: what was written, without the ids that begin and end it. log_probability: log p(ids, and
    the end if it is finished | source), in nats. score: what it was ranked by. finished: whether
    it came to its end within the ids that were allowed.
    """

    ids: tuple[int, ...]
    log_probability: float
    score: float
    finished: bool


@final
class Writing:
    """Rows of target text that grow by one id a step: ``copies`` rows of each source, side by side.

    The sources are read once, and each layer's keys and values of them are made once.
    """

    def __init__(
        self, model: Transformer, sources: Sequence[Sequence[int]], *, copies: int = 1
    ) -> None:
        self._model, self.device = model, model.embedding.weight.device
        ids, tokens = _padded(sources)
        memory = model.encode(ids.to(self.device), source_tokens=tokens)
        projected = model.project(memory, source_tokens=tokens)
        self._memory = [_repeated(each, copies) for each in projected]
        self._caches = model.new_caches(len(sources) * copies)

    def step(self, ids: Tensor) -> Tensor:
        """log p of every id after these (R,): (R, vocabulary), float32 or float64.

        Raises NotSupported if the model gives no numbers, which weights that hold NaN do.
        """
        logits = self._model.decode(
            ids[:, None], self._memory, caches=self._caches, last_only=True
        )[:, 0]
        exact = logits if logits.dtype == torch.float64 else logits.float()
        log_p = exact.log_softmax(-1)
        if bool(log_p.isnan().any()):
            raise NotSupported("the model gives NaN for the next id: its weights are damaged")
        return log_p

    def reorder(self, index: Tensor) -> None:
        """Row r becomes what row index[r] was, a row of the same source."""
        for cache in self._caches:
            cache.reorder(index)


def check_call(
    model: Transformer,
    sources: Sequence[Sequence[int]],
    *,
    bos: int,
    eos: int,
    max_new_tokens: int,
) -> None:
    """Raise InvalidArgument for what no search can begin with."""
    if max_new_tokens < 1:
        raise InvalidArgument(f"max_new_tokens={max_new_tokens}: 1 or more")
    read, written = model.config.read_vocabulary, model.config.vocabulary
    for row, ids in enumerate(sources):
        if len(ids) == 0:
            raise InvalidArgument(f"source {row} is empty: give at least one id")
        if min(ids) < 0 or max(ids) >= read:
            wrong = min(ids) if min(ids) < 0 else max(ids)
            raise InvalidArgument(f"id {wrong} is not in the vocabulary of {read:,}")
    for name, index in (("bos", bos), ("eos", eos)):
        if not 0 <= index < written:
            raise InvalidArgument(f"{name}={index} is not in the vocabulary of {written:,}")


def _padded(sources: Sequence[Sequence[int]]) -> tuple[Tensor, Tokens | None]:
    """Ids (B, longest); tokens only if a row is padded."""
    lengths = [len(ids) for ids in sources]
    longest = max(lengths)
    ids = torch.tensor([[*row, *[0] * (longest - len(row))] for row in sources])
    return ids, None if min(lengths) == longest else Tokens.padded(lengths, "right")


def _repeated(projected: Projected, copies: int) -> Projected:
    key, value, tokens = projected
    if copies == 1:
        return projected
    if tokens is not None and tokens.batch is not None:
        tokens = Tokens(tokens.positions.repeat_interleave(copies, 0))
    return Projected(key.repeat_interleave(copies, 0), value.repeat_interleave(copies, 0), tokens)
