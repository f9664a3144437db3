"""Classes of texts, from a table or from folders by label."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple, final

import torch
from torch import Tensor
from torch.nn import functional

from eyeline.errors import InvalidArgument
from eyeline.models.bert import BertClassifier
from eyeline.tokenizer import AnyTokenizer
from eyeline.tokens import Tokens
from eyeline.training.processes import Processes
from eyeline.training.rows import Row, RowOrder, padded
from eyeline.training.task import Batch, Task


class Labelled(NamedTuple):
    """ids (B, L), filled up on the right; tokens: where somebody stands; labels (B,)."""

    ids: Tensor
    tokens: Tokens | None
    labels: Tensor


def classes_of(rows: Sequence[Row]) -> list[str]:
    """The classes of a table, in order. Raises InvalidArgument if there is only one."""
    counts = Counter(row.second for row in rows)
    if len(counts) < 2:
        raise InvalidArgument(
            f"all {len(rows)} rows have the class {next(iter(counts))!r}: there is nothing to tell "
            "apart; at least two classes are needed"
        )
    first = rows[0]
    if counts[first.second] == 1 and first.line == 1 and len(rows) > 2 * len(counts):
        raise InvalidArgument(
            f"the class {first.second!r} stands in line 1 and nowhere else: if that line names the "
            f"columns, say so with --columns {first.first},{first.second}"
        )
    return sorted(counts)


@final
class Classification(Task[Labelled]):
    """loss = -Σ log p(class | text). A longer text than ``length`` is read up to there.

    Measured on held-out rows: ``loss``, nats a text; ``accuracy``; and ``commonest``, the accuracy
    of always naming the class that is commonest in training.
    """

    main: ClassVar[str] = "accuracy"

    def __init__(
        self,
        model: BertClassifier,
        rows: Sequence[Row],
        held_out: Sequence[Row],
        tokenizer: AnyTokenizer,
        *,
        classes: Sequence[str],
        length: int,
        batch_tokens: int,
        seed: int,
    ) -> None:
        self.model: BertClassifier = model
        self._classes = {name: place for place, name in enumerate(classes)}
        self._pad = tokenizer.pad_id
        self._rows = [self._read(row, tokenizer, length) for row in rows]
        self._held = [self._read(row, tokenizer, length) for row in held_out]
        sizes = [len(ids) for ids, _ in self._rows]
        self._order = RowOrder(sizes, batch_tokens=batch_tokens, seed=seed)
        self.epoch = self._order.count
        self._commonest = Counter(label for _, label in self._rows).most_common(1)[0][0]
        self._batch_tokens = batch_tokens
        self.digest = hashlib.sha256(repr((list(rows), list(held_out))).encode()).hexdigest()
        cut = sum(len(tokenizer.encode(r.first, special=False)) > length for r in rows)
        self.facts = {
            "training_rows": len(rows), "held_out_rows": len(held_out), "classes": list(classes),
            "texts_cut": cut,
        }  # fmt: skip

    def notes(self) -> dict[str, Any]:
        return {"classes": list(self._classes)}

    def batch(self, step: int, processes: Processes) -> Batch[Labelled]:
        chosen = self._order.at(step)
        longest = max(len(self._rows[row][0]) for row in chosen)
        mine = chosen[processes.share(len(chosen))]
        rows = self._together([self._rows[row] for row in mine]) if mine else None
        return Batch(rows, len(chosen), longest * len(chosen), processes.part(len(chosen)))

    def loss(self, rows: Labelled) -> Tensor:
        return functional.cross_entropy(self._logits(rows), rows.labels, reduction="sum")

    def measure(self) -> dict[str, float]:
        if not self._held:
            return {}
        held = sorted(self._held, key=lambda row: len(row[0]))
        each = max(1, self._batch_tokens // max(1, len(held[-1][0])))
        nats, right = 0.0, 0
        for start in range(0, len(held), each):
            rows = self._together(held[start : start + each])
            logits = self._logits(rows)
            nats += float(functional.cross_entropy(logits, rows.labels, reduction="sum"))
            right += int((logits.argmax(-1) == rows.labels).sum())
        common = sum(label == self._commonest for _, label in held)
        return {
            "loss": nats / len(held), "accuracy": right / len(held),
            "commonest": common / len(held),
        }  # fmt: skip

    def _logits(self, rows: Labelled) -> Tensor:
        ids = rows.ids.to(self.model.embedding.weight.device)
        return self.model(ids, q_tokens=rows.tokens).float().to(rows.labels.device)  # type: ignore[no-any-return]

    def _read(self, row: Row, tokenizer: AnyTokenizer, length: int) -> tuple[list[int], int]:
        ids = tokenizer.encode(row.first, special=False)[:length]
        if not ids:
            raise InvalidArgument(f"line {row.line}: the tokenizer knows nothing in {row.first!r}")
        if row.second not in self._classes:
            raise InvalidArgument(
                f"held-out line {row.line}: the class {row.second!r} is not among those trained on"
            )
        return ids, self._classes[row.second]

    def _together(self, rows: Sequence[tuple[list[int], int]]) -> Labelled:
        ids, tokens = padded([ids for ids, _ in rows], self._pad)
        return Labelled(ids, tokens, torch.tensor([label for _, label in rows]))
