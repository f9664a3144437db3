"""Pairs of sequences: an encoder reads the one, a decoder writes the other."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import ClassVar, NamedTuple, final

import torch
from torch import Tensor

from eyeline.errors import InvalidArgument
from eyeline.models.transformer import Transformer
from eyeline.tokenizer import AnyTokenizer
from eyeline.tokens import Tokens
from eyeline.training.processes import Processes
from eyeline.training.rows import Row, RowOrder, padded
from eyeline.training.task import Batch, Task
from eyeline.translation import report, source_ids, target_ids, translate

_MOST_TRANSLATED = 500
"""Held-out pairs that are translated to measure, at most."""

Ids = tuple[list[int], list[int]]


class Pairs(NamedTuple):
    """source (B, S) and target (B, T), filled up on the right, and where somebody stands."""

    source: Tensor
    target: Tensor
    source_tokens: Tokens | None
    target_tokens: Tokens | None


@final
class SequencePairs(Task[Pairs]):
    """loss = -Σ log p(target i + 1 | source, target up to i), the end included.

    Measured on held-out pairs: ``loss``, nats a token; ``exact``, the share of greedy
    translations (of 500 pairs at most) that are the reference; ``error_rate`` in characters; and
    ``copy_exact``, what copying the source would get.

    Raises InvalidArgument for a pair that is longer than ``length``, with its line.
    """

    main: ClassVar[str] = "exact"

    def __init__(
        self,
        model: Transformer,
        rows: Sequence[Row],
        held_out: Sequence[Row],
        tokenizer: AnyTokenizer,
        *,
        length: int,
        batch_tokens: int,
        seed: int,
    ) -> None:
        self.model: Transformer = model
        self._tokenizer, self._pad = tokenizer, tokenizer.pad_id
        self._rows = [self._read(row, length) for row in rows]
        self._held = [self._read(row, length) for row in held_out]
        self._texts = list(held_out[:_MOST_TRANSLATED])
        # Whatever is filled up, a pair takes no more than its batch's longest side twice.
        sizes = [2 * max(map(len, pair)) for pair in self._rows]
        self._order = RowOrder(sizes, batch_tokens=batch_tokens, seed=seed)
        self.epoch, self._batch_tokens = self._order.count, batch_tokens
        self.digest = hashlib.sha256(repr((list(rows), list(held_out))).encode()).hexdigest()
        self.facts = {"training_pairs": len(rows), "held_out_pairs": len(held_out)}

    def batch(self, step: int, processes: Processes) -> Batch[Pairs]:
        chosen = [self._rows[row] for row in self._order.at(step)]
        mine = chosen[processes.share(len(chosen))]
        targets = sum(len(target) - 1 for _, target in chosen)
        tokens = sum(max(map(len, side)) for side in zip(*chosen, strict=True)) * len(chosen)
        part = processes.part(len(chosen))
        return Batch(self._together(mine) if mine else None, targets, tokens, part)

    def loss(self, rows: Pairs) -> Tensor:
        device = self.model.embedding.weight.device
        return self.model.losses(
            rows.source.to(device), rows.target.to(device),
            source_tokens=rows.source_tokens, target_tokens=rows.target_tokens,
        ).sum()  # fmt: skip

    def measure(self) -> dict[str, float]:
        if not self._held:
            return {}
        held = sorted(self._held, key=lambda pair: len(pair[0]) + len(pair[1]))
        each = max(1, self._batch_tokens // (len(held[-1][0]) + len(held[-1][1])))
        parts = [held[start : start + each] for start in range(0, len(held), each)]
        nats = sum(float(self.loss(self._together(part))) for part in parts)
        sources = [row.first for row in self._texts]
        references = [row.second for row in self._texts]
        # Caches have the type of the weights, so what is written in steps is computed in it.
        with torch.autocast(self.model.embedding.weight.device.type, enabled=False):
            answers = translate(self.model, self._tokenizer, sources, beams=1)
        found = report(sources, [best[0].text for best in answers], references)
        return {
            "loss": nats / sum(len(target) - 1 for _, target in held), "exact": found.exact,
            "error_rate": found.error_rate, "copy_exact": found.copy_exact,
        }  # fmt: skip

    def _read(self, row: Row, length: int) -> Ids:
        pair = source_ids(self._tokenizer, row.first), target_ids(self._tokenizer, row.second)
        longest = max(map(len, pair))
        if longest > length:
            raise InvalidArgument(
                f"line {row.line}: {longest} tokens are more than the length of {length}; take a "
                "longer length (--length), or leave the pair out"
            )
        return pair

    def _together(self, pairs: Sequence[Ids]) -> Pairs:
        source, source_tokens = padded([source for source, _ in pairs], self._pad)
        target, target_tokens = padded([target for _, target in pairs], self._pad)
        return Pairs(source, target, source_tokens, target_tokens)
