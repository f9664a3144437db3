"""Recall against a reader whose memory is known, and the layout of the questions."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from eyeline.measuring import recall
from eyeline.measuring.recall import DIGITS, SENTENCES, examine, prepare


class Letters:
    """A tokenizer with one id for each character."""

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        return [ord(letter) % 128 for letter in text]


class Pairs(Letters):
    """One that joins a blank and the digit after it, as many do."""

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        ids: list[int] = []
        for one, two in zip(f"\0{text}", text, strict=False):
            if one == " " and two.isdigit():
                ids[-1] = 128 + int(two)
            else:
                ids.append(ord(two) % 128)
        return ids


class Reader:
    """Goes on as the text went on after the last 12 letters, if that is within its memory."""

    def __init__(self, memory: int) -> None:
        self.memory = memory

    def new_caches(self) -> list[list[int]]:
        return [[]]

    def __call__(
        self, ids: Tensor, *, caches: Sequence[list[int]], last_only: bool = False
    ) -> Tensor:
        seen = caches[0]
        logits = torch.zeros(1, ids.shape[1], 256)
        for place, index in enumerate(ids[0].tolist()):
            seen.append(index)
            logits[0, place, self.next(seen)] = 1.0
        return logits[:, -1:] if last_only else logits

    def next(self, seen: list[int]) -> int:
        tail, start = seen[-12:], max(len(seen) - self.memory, 0)
        for end in range(len(seen) - 1, start + 11, -1):
            if seen[end - 12 : end] == tail:
                return seen[end]
        return 0


def filler(length: int) -> list[int]:
    rng = random.Random(1)
    return [rng.randrange(97, 123) for _ in range(length)]


@pytest.mark.parametrize("tokenizer", [Letters(), Pairs()])
@pytest.mark.parametrize("memory", [10_000, 300])
def test_facts_are_found_as_far_as_the_memory_reaches(tokenizer: Letters, memory: int) -> None:
    exam = prepare(tokenizer, filler(2003))
    assert exam is not None and exam.distances == [50, 100, 200, 400, 800]
    scores = examine(Reader(memory), exam)  # type: ignore[arg-type]
    for distance, score in scores.items():
        assert score.asked == len({question.ask for question in exam.questions}) > 3
        assert score.share == (1.0 if distance + 60 < memory else 0.0), distance


def test_every_fact_is_asked_at_every_distance_that_far_after_it() -> None:
    exam = prepare(Letters(), filler(2003))
    assert exam is not None
    text = "".join(map(chr, exam.body))
    assert max(question.place for question in exam.questions) == len(exam.body) <= 2003
    for question in exam.questions:
        ask, answer = ("".join(map(chr, part)) for part in (question.ask, question.answer))
        fact = f"{ask}{answer}.\n"
        assert text.index(fact) + len(fact) == question.place - question.distance
        assert len(answer) == DIGITS and ask.strip() in SENTENCES
    assert [q.place for q in exam.questions] == sorted(q.place for q in exam.questions)


def test_questions_end_within_the_positions_there_are() -> None:
    """The fact at the end of the text is asked for after it: a model may have no position there."""
    whole = prepare(Letters(), filler(2003))
    assert whole is not None
    ends = [q.place + len(q.ask + q.answer) for q in whole.questions]
    exam = prepare(Letters(), filler(2003), longest=max(ends))
    assert exam == whole
    less = prepare(Letters(), filler(2003), longest=max(ends) - 1)
    assert less is not None and less.distances == [50, 100, 200, 400]
    assert less.body == whole.body and len(less.questions) == len(whole.questions) * 4 // 5


def test_a_joined_blank_belongs_to_the_answer() -> None:
    exam = prepare(Pairs(), filler(2003))
    assert exam is not None
    assert all(question.answer[0] >= 128 for question in exam.questions)


def test_one_wrong_digit_is_not_found() -> None:
    class Careless(Reader):
        def next(self, seen: list[int]) -> int:
            found = super().next(seen)
            return ord("0") if found == ord("7") else found

    exam = prepare(Letters(), filler(2003))
    assert exam is not None
    scores = examine(Careless(10_000), exam)  # type: ignore[arg-type]
    right = sum(ord("7") not in q.answer for q in exam.questions if q.distance == 50)
    assert 0 < right < scores[50].asked and scores[50].found == right


def test_a_question_leaves_no_trace() -> None:
    """A reader with a memory of nothing but the question would find it by the question before."""
    caches = Reader(10_000).new_caches()
    exam = prepare(Letters(), filler(2003))
    assert exam is not None

    class Watched(Reader):
        def new_caches(self) -> list[list[int]]:
            return caches

    examine(Watched(10_000), exam)  # type: ignore[arg-type]
    assert tuple(caches[0]) == exam.body


def test_the_numbers_follow_from_the_seed() -> None:
    first, again, other = (prepare(Letters(), filler(997), seed=seed) for seed in (0, 0, 1))
    assert first == again != other


def test_short_texts_have_fewer_facts_or_none() -> None:
    exam = prepare(Letters(), filler(499))
    assert exam is not None and exam.distances == [50, 100, 200]
    assert len(exam.questions) == 3 * 3
    assert prepare(Letters(), filler(397)) is None


def test_progress_is_told() -> None:
    exam = prepare(Letters(), filler(499))
    assert exam is not None
    told: list[tuple[str, int, int]] = []
    examine(Reader(99), exam, progress=lambda *step: told.append(step))  # type: ignore[arg-type]
    assert told == [("recall", number, 9) for number in range(9)]


def test_a_share_is_of_those_asked() -> None:
    assert recall.Score(3, 4).share == 0.75
