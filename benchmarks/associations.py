"""Associative recall: pairs of a key and a value far back, and each key asked for again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

import torch
from torch import Tensor, nn
from torch.nn import functional

from eyeline.layers import MultiHeadAttention

from .harness import say

KEYS, VALUES, FILLERS = 64, 64, 64
VOCABULARY = KEYS + VALUES + FILLERS
WIDTH, HEADS = 64, 4
PAIRS = 32
Loss = Callable[[nn.Module], Tensor | None]


@dataclass(frozen=True)
class Texts:
    """ids (B, n); where (B, P): the places of keys that are asked for; values (B, P): answers."""

    ids: Tensor
    where: Tensor
    values: Tensor


@dataclass(frozen=True)
class Stage:
    """So many steps over texts of this length, `tokens` tokens at once."""

    length: int
    steps: int
    tokens: int


@dataclass(frozen=True)
class Course:
    """How a model is taught. block: see ``texts``. rate: of AdamW, falls to 0."""

    stages: tuple[Stage, ...]
    block: int | None = None
    rate: float = 1e-2


def texts(length: int, rows: int, generator: torch.Generator, block: int | None = None) -> Texts:
    """32 pairs, or n/8, at random places of the first three quarters, asked for in the last.

    Everything else is filler. Keys are different within a text, values may repeat. block: the
    pairs stand in blocks of so many places, 16 in each, and those of one block are asked for in
    one block too, if the last quarter holds a block.
    """
    last = length // 4
    block = block if block is not None and block <= last else None
    groups = 1 if block is None else last // block
    size, each = last // groups, min(length // 8, PAIRS if block is None else 16)
    home = _drawn(rows, 3 * groups, groups, generator)[..., None] * size
    among = last if block is None else size // 3
    # Three places for each pair that may stand there, so that it begins at an even or odd one.
    begins = 3 * _drawn(rows * groups, among, each, generator).view(rows, groups, each)
    begins = begins + torch.randint(2, begins.shape, generator=generator)
    begins = (begins if block is None else begins + home).flatten(1)
    where = _drawn(rows * groups, size, each, generator).view(rows, groups, each)
    where = (where + size * torch.arange(groups)[:, None]).flatten(1) + length - last
    return _written(length, begins, where, generator)


def _written(length: int, begins: Tensor, where: Tensor, generator: torch.Generator) -> Texts:
    rows, count = begins.shape
    keys = _drawn(rows, KEYS, count, generator)
    values = torch.randint(VALUES, (rows, count), generator=generator)
    ids = torch.randint(KEYS + VALUES, VOCABULARY, (rows, length), generator=generator)
    ids.scatter_(1, begins, keys).scatter_(1, begins + 1, values + KEYS).scatter_(1, where, keys)
    return Texts(ids, where, values)


class Recaller(nn.Module):
    """One layer: a token and the one before it in, what the layer sees, and from it a value."""

    def __init__(self, mechanism: nn.Module) -> None:
        super().__init__()
        self.own, self.before = (nn.Embedding(VOCABULARY, WIDTH) for _ in range(2))
        self.attention = MultiHeadAttention(WIDTH, HEADS, mechanism=mechanism)
        self.out = nn.Linear(WIDTH, VALUES)

    def forward(self, ids: Tensor, where: Tensor) -> Tensor:
        """ids (B, n) and the places asked (B, P) to logits (B, P, values)."""
        earlier = functional.pad(self.before(ids[:, :-1]), (0, 0, 1, 0))
        seen: Tensor = self.attention(self.own(ids) + earlier)
        asked = seen.gather(1, where[..., None].expand(-1, -1, WIDTH))
        logits: Tensor = self.out(asked)
        return logits


def trained(
    make: Callable[[], nn.Module], course: Course, extra: Loss, name: str
) -> tuple[Recaller, float]:
    """A model after all stages of its course; and the seconds it took."""
    torch.manual_seed(0)
    model, generator = Recaller(make()), torch.Generator().manual_seed(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=course.rate, weight_decay=0.0)
    total = sum(stage.steps for stage in course.stages)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / total)
    start = perf_counter()
    for stage in course.stages:
        right = 0.0
        for _ in range(stage.steps):
            rows = texts(stage.length, stage.tokens // stage.length, generator, course.block)
            right = 0.9 * right + 0.1 * _step(model, rows, optimizer, extra)
            schedule.step()
        seconds = perf_counter() - start
        say(f"recall: {name}: {stage.length:,} tokens: {right:.1%} right after {seconds:.0f} s")
    return model.eval(), perf_counter() - start


@torch.no_grad()
def accuracy(model: Recaller, length: int, block: int | None, batches: int) -> float:
    """The share of values that are right, over texts that were not trained on."""
    generator, found = torch.Generator().manual_seed(31), []
    for _ in range(batches):
        rows = texts(length, 8, generator, block)
        found.append(_right(model(rows.ids, rows.where), rows))
    return sum(found) / len(found)


def _step(model: Recaller, rows: Texts, optimizer: torch.optim.Optimizer, extra: Loss) -> float:
    logits = model(rows.ids, rows.where)
    loss, more = functional.cross_entropy(logits.flatten(0, 1), rows.values.flatten()), extra(model)
    optimizer.zero_grad()
    (loss if more is None else loss + more).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return _right(logits, rows)


def _right(logits: Tensor, rows: Texts) -> float:
    return float((logits.argmax(-1) == rows.values).double().mean())


def _drawn(rows: int, of: int, count: int, generator: torch.Generator) -> Tensor:
    """(rows, count): different numbers below `of`."""
    return torch.rand(rows, of, generator=generator).argsort(1)[:, :count]
