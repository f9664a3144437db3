"""Recall: is a fact still found, so many tokens after it stood in the text?

Perplexity hides that loss: most tokens are guessed from their neighbours. So facts are planted
near the start of the text ("The locker at the swimming pool is number 4718."), and while it is
read on, each is asked for at several distances, by the beginning of its own sentence. It counts
as found if the model would write the number itself, every digit; a guess finds one in ten
thousand. All distances ask for the same facts, in one reading of the text.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from eyeline.caches import Cache
from eyeline.measuring.timing import Progress, silent
from eyeline.models import LanguageModel

# The sentences have little in common, so that finding one is not hindered by telling them apart.
SENTENCES = (
    "The telephone number of the bakery is",
    "The locker at the swimming pool is number",
    "The combination of grandmother's safe is",
    "The password of the library is",
    "The licence plate of the red truck is",
    "The room of the professor from Oslo is",
    "The code word for the night watch is",
    "The bank account of the gardener is",
)
DIGITS = 4
NEAREST = 50
# Tokens of the text between two facts; the part of the text that the facts may take, and how few
# of them are worth asking for, which may take twice that part.
_GAP, _PART, _FEWEST = 30, 4, 3


Ids = tuple[int, ...]


class Encoder(Protocol):
    """What is needed of a tokenizer."""

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """The ids of a text."""


@dataclass(frozen=True)
class Question:
    """Asked when the first ``place`` tokens are read: after ``ask`` the model should write answer.

    distance: how many tokens ago the fact ended.
    """

    place: int
    distance: int
    ask: Ids
    answer: Ids


@dataclass(frozen=True)
class Exam:
    """A text with facts in it, and the questions in the order in which they come up."""

    body: Ids
    questions: tuple[Question, ...]

    @property
    def distances(self) -> list[int]:
        """In tokens, the shortest first."""
        return sorted({question.distance for question in self.questions})


@dataclass(frozen=True)
class Score:
    """How many of the facts that were asked for at one distance were found."""

    found: int
    asked: int

    @property
    def share(self) -> float:
        """From 0 to 1."""
        return self.found / self.asked


def prepare(
    tokenizer: Encoder, filler: Sequence[int], *, longest: int | None = None, seed: int = 0
) -> Exam | None:
    """An exam as long as ``filler``, which is the text between and after the facts.

    Distances double from 50 on, as far as the text allows, and where the model has learned
    positions, as far as they leave room for the questions. None if it is too short for a few
    facts in its first half.
    """
    rng = random.Random(seed)
    body = list(filler[:_GAP])
    facts: list[tuple[int, Ids, Ids]] = []
    for sentence in SENTENCES:
        number = "".join(rng.choices("0123456789", k=DIGITS))
        fact = tokenizer.encode(f"\n{sentence} {number}.\n", special=False)
        room = len(filler) // (_PART if len(facts) >= _FEWEST else _PART // 2)
        if len(body) + len(fact) > room:
            break
        body += fact
        facts.append((len(body), *_question(tokenizer, sentence, number)))
        body += filler[len(body) : len(body) + _GAP]
    if len(facts) < _FEWEST:
        return None
    last = facts[-1][0]
    distances = _distances(len(filler) - last)
    body += filler[len(body) : last + distances[-1]]
    questions = [
        Question(end + distance, distance, ask, answer)
        for distance in distances
        for end, ask, answer in facts
    ]
    within = [each for each in questions if each.distance <= _farthest(questions, longest)]
    return Exam(tuple(body), tuple(sorted(within, key=lambda question: question.place)))


def _farthest(questions: Sequence[Question], longest: int | None) -> int:
    """The largest distance at which every question ends within the positions there are."""
    beyond = [
        question.distance
        for question in questions
        if longest is not None and question.place + len(question.ask + question.answer) > longest
    ]
    return min(beyond) - 1 if beyond else max(question.distance for question in questions)


@torch.inference_mode()
def examine(model: LanguageModel, exam: Exam, *, progress: Progress = silent) -> dict[int, Score]:
    """The score at each distance, under the model's own pattern.

    Between questions the text is read on with a cache, as in writing; each question is put to a
    copy of the cache, so that none is seen by the next.
    """
    caches, read = model.new_caches(), 0
    found = dict.fromkeys(exam.distances, 0)
    asked = dict.fromkeys(exam.distances, 0)
    for number, question in enumerate(exam.questions):
        progress("recall", number, len(exam.questions))
        if question.place > read:
            piece = exam.body[read : question.place]
            model(torch.tensor([piece]), caches=caches, last_only=True)
            read = question.place
        found[question.distance] += _answers(model, question, caches)
        asked[question.distance] += 1
    return {distance: Score(found[distance], asked[distance]) for distance in exam.distances}


def _answers(model: LanguageModel, question: Question, caches: Sequence[Cache]) -> bool:
    """Whether greedy writing gives the answer. Feeding it at once is the same, and cheaper."""
    ids = (*question.ask, *question.answer)
    logits = model(torch.tensor([ids]), caches=copy.deepcopy(caches))[0]
    written = logits[len(question.ask) - 1 : -1].argmax(-1)
    return tuple(written.tolist()) == question.answer


def _question(tokenizer: Encoder, sentence: str, number: str) -> tuple[Ids, Ids]:
    """The ids that ask and those of the answer: from where another number would differ."""
    other = f"{(int(number[0]) + 1) % 10}{number[1:]}"
    ids, others = (
        tokenizer.encode(f"\n{sentence} {digits}", special=False) for digits in (number, other)
    )
    pairs = zip(ids, others, strict=False)
    start = next(place for place, (one, two) in enumerate(pairs) if one != two)
    return tuple(ids[:start]), tuple(ids[start:])


def _distances(room: int) -> list[int]:
    distances = []
    distance = NEAREST
    while distance <= room:
        distances.append(distance)
        distance *= 2
    return distances
