"""Beam search: the best few beginnings of a text, each written on, until none can come before."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, final

import torch
from torch import Tensor

from eyeline.errors import InvalidArgument, NotSupported
from eyeline.layers import Projected
from eyeline.models.transformer import Transformer
from eyeline.tokens import Tokens

# What a decoder remembers while it writes: its own keys, and those of what it reads.


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
        tokens = tokens.mapped(lambda column: column.repeat_interleave(copies, 0))
    return Projected(key.repeat_interleave(copies, 0), value.repeat_interleave(copies, 0), tokens)


# Greedy search: the likeliest id at every step.


@torch.inference_mode()
def greedy(
    model: Transformer,
    sources: Sequence[Sequence[int]],
    *,
    max_new_tokens: int = 128,
    bos: int,
    eos: int,
) -> list[Hypothesis]:
    """y_i = argmax_y p(y | source, y_1 … y_{i-1}), for each source, until y_i is ``eos``.

    The sources are padded and written together; row by row the result is that of one alone, up
    to rounding. bos: the id that a text begins with. max_new_tokens: how many ids are chosen at
    most, the end among them. A score is the log-probability.

    Raises InvalidArgument for an empty source, ids outside the vocabulary, and max_new_tokens
    below 1.
    """
    check_call(model, sources, bos=bos, eos=eos, max_new_tokens=max_new_tokens)
    if not sources:
        return []
    writing = Writing(model, sources)
    last = torch.full((len(sources),), bos, device=writing.device)
    total = torch.zeros(len(sources), dtype=torch.float64)
    texts: list[list[int]] = [[] for _ in sources]
    open_rows = set(range(len(sources)))
    for _ in range(max_new_tokens):
        log_p, last = writing.step(last).max(-1)
        for row, (index, log_one) in enumerate(zip(last.tolist(), log_p.tolist(), strict=True)):
            if row not in open_rows:
                continue  # rows that are finished are fed on, and what they write is not looked at
            total[row] += log_one
            if index == eos:
                open_rows.discard(row)
            else:
                texts[row].append(index)
        if not open_rows:
            break
    return [
        Hypothesis(tuple(ids), log_p, log_p, row not in open_rows)
        for row, (ids, log_p) in enumerate(zip(texts, total.tolist(), strict=True))
    ]


@torch.inference_mode()
def beam_search(
    model: Transformer,
    sources: Sequence[Sequence[int]],
    *,
    beams: int = 4,
    max_new_tokens: int = 128,
    length_penalty: float = 1.0,
    bos: int,
    eos: int,
) -> list[list[Hypothesis]]:
    """Up to ``beams`` texts for each source, best log p(text | source) / n^length_penalty first.

    n counts the ids of a text and its end. At every step each of the ``beams`` best beginnings
    is followed by every id; those of the ``beams`` best among all that end in ``eos`` are
    finished, and the best that do not are the next beginnings. It stops where no beginning could
    still become one of the best: exact for every length_penalty. Texts that did not come to their
    end within max_new_tokens ids, the end among them, fill the places that are left after those
    that did.

    The sources are padded and written together; row by row the result is that of one alone, up
    to rounding. bos: the id that a text begins with. The same call gives the same texts.

    Raises InvalidArgument for an empty source, ids outside the vocabulary, and beams or
    max_new_tokens below 1. Graves 2012; Sutskever et al. 2014; the penalty: Wu et al. 2016.
    """
    check_call(model, sources, bos=bos, eos=eos, max_new_tokens=max_new_tokens)
    if beams < 1:
        raise InvalidArgument(f"beams={beams}: 1 or more")
    if not -10 <= length_penalty <= 10:
        raise InvalidArgument(f"length_penalty={length_penalty}: a number from -10 to 10")
    if not sources:
        return []
    rule = _Rule(beams, max_new_tokens, length_penalty, eos)
    writing = Writing(model, sources, copies=beams)
    found = [_Found(rule) for _ in sources]
    live = _first(len(sources), beams, bos, writing.device)
    for step in range(1, max_new_tokens + 1):
        log_p = writing.step(live.ids[:, :, -1].flatten()).view(len(sources), beams, -1)
        total = live.log_p[:, :, None] + log_p.double()
        _collect(found, live, total, rule)
        live, rows = _continued(live, total, rule)
        writing.reorder(rows)
        if _settled(found, live, rule, written=step):
            break
    for one, ids, log_ps in zip(found, live.ids.tolist(), live.log_p.tolist(), strict=True):
        one.fill(ids, log_ps)
    return [one.best for one in found]


class _Rule(NamedTuple):
    """What a search was asked for."""

    beams: int
    max_new_tokens: int
    length_penalty: float
    eos: int

    def score(self, log_p: float, length: int) -> float:
        return log_p / math.pow(length, self.length_penalty)

    def bound(self, log_p: float, written: int) -> float:
        """The best score that a beginning of so many ids can still come to.

        Its log-probability only falls, and n^length_penalty goes one way from the next n to the
        last.
        """
        ends = written + 1, self.max_new_tokens
        return max(self.score(log_p, n) for n in ends) if written < ends[1] else -math.inf


class _Live(NamedTuple):
    """Beginnings: ids (B, beams, 1 + written), bos first; log_p (B, beams), -inf for no text."""

    ids: Tensor
    log_p: Tensor


@final
class _Found:
    """The texts of one source so far, best first."""

    def __init__(self, rule: _Rule) -> None:
        self._rule = rule
        self.best: list[Hypothesis] = []

    def add(self, ids: Sequence[int], log_p: float) -> None:
        """A finished text: ids without its beginning and end."""
        score = self._rule.score(log_p, len(ids) + 1)
        self.best.append(Hypothesis(tuple(ids), log_p, score, True))
        self.best.sort(key=lambda one: (-one.score, one.ids))
        del self.best[self._rule.beams :]

    def settled(self, bound: float) -> bool:
        """Whether nothing with such a bound could come among the best."""
        return bound == -math.inf or (
            len(self.best) == self._rule.beams and bound <= self.best[-1].score
        )

    def fill(self, ids: Sequence[Sequence[int]], log_ps: Sequence[float]) -> None:
        """Unfinished texts for the places that are left; ids begin with bos."""
        texts = [
            Hypothesis(tuple(row[1:]), log_p, self._rule.score(log_p, len(row) - 1), False)
            for row, log_p in zip(ids, log_ps, strict=True)
            if log_p > -math.inf
        ]
        texts.sort(key=lambda one: (-one.score, one.ids))
        self.best += texts[: self._rule.beams - len(self.best)]


def _first(sources: int, beams: int, bos: int, device: torch.device) -> _Live:
    """One beginning a source; the other places are empty."""
    log_p = torch.full((sources, beams), -math.inf, dtype=torch.float64, device=device)
    log_p[:, 0] = 0.0
    return _Live(torch.full((sources, beams, 1), bos, device=device), log_p)


def _collect(found: Sequence[_Found], live: _Live, total: Tensor, rule: _Rule) -> None:
    """Takes the texts that end here: those among the best continuations, (B, beams, V)."""
    best = total.flatten(1).topk(rule.beams)
    beam, index = best.indices // total.shape[2], best.indices % total.shape[2]
    ends = (index == rule.eos) & (best.values > -math.inf)
    for row, place in ends.nonzero().tolist():
        ids = live.ids[row, beam[row, place], 1:].tolist()
        found[row].add(ids, float(best.values[row, place]))


def _continued(live: _Live, total: Tensor, rule: _Rule) -> tuple[_Live, Tensor]:
    """The best beginnings of one id more, and the row (B · beams,) from which each comes."""
    total[:, :, rule.eos] = -math.inf
    best = total.flatten(1).topk(rule.beams)
    beam, index = best.indices // total.shape[2], best.indices % total.shape[2]
    before = live.ids.gather(1, beam[:, :, None].expand(-1, -1, live.ids.shape[2]))
    first = torch.arange(len(beam), device=beam.device)[:, None] * rule.beams
    return _Live(torch.cat((before, index[:, :, None]), 2), best.values), (first + beam).flatten()


def _settled(found: Sequence[_Found], live: _Live, rule: _Rule, *, written: int) -> bool:
    """Whether all sources are done; the beginnings of those that are become empty places."""
    best = live.log_p.max(1).values.tolist()
    done = [one.settled(rule.bound(x, written)) for one, x in zip(found, best, strict=True)]
    if written < rule.max_new_tokens:
        live.log_p[torch.tensor(done, device=live.log_p.device)] = -math.inf
    return all(done)
