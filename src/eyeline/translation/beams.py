"""Beam search: the best few beginnings of a text, each written on, until none can come before."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, final

import torch
from torch import Tensor

from eyeline.errors import InvalidArgument
from eyeline.models.transformer import Transformer
from eyeline.translation.writing import Hypothesis, Writing, check_call


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
