"""Texts in, texts out: the ids that a pair of texts becomes, and translating a list of texts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from eyeline.errors import InvalidArgument, NotSupported
from eyeline.models.transformer import Transformer
from eyeline.translation.search import Hypothesis, beam_search, greedy

# How good translations are: exact match and character error rate, beside doing nothing.


@dataclass(frozen=True)
class Report:
    """Shares of 1, over pairs of a source and its reference.

    exact: answers that are the reference. error_rate: edits (characters put in, taken out or
    exchanged) from answers to references, over the characters of the references; it can be above
    1. copy_exact, copy_error_rate: the same of copying the source, the baseline. changed: pairs
    whose reference is not the source, where copying is always wrong; changed_exact: exact among
    them, 0 if there is none.
    """

    pairs: int
    exact: float
    error_rate: float
    copy_exact: float
    copy_error_rate: float
    changed: int
    changed_exact: float


def report(sources: Sequence[str], answers: Sequence[str], references: Sequence[str]) -> Report:
    """What ``Report`` says. Raises InvalidArgument for no pair, or lists of different lengths."""
    if not len(sources) == len(answers) == len(references) or not sources:
        raise InvalidArgument(
            f"{len(sources)} sources, {len(answers)} answers and {len(references)} references: "
            "one of each for every pair, and at least one pair"
        )
    characters = max(sum(map(len, references)), 1)
    pairs = list(zip(sources, answers, references, strict=True))
    right = [answer == reference for _, answer, reference in pairs]
    changed = [source != reference for source, _, reference in pairs]
    moved = sum(changed)
    return Report(
        pairs=len(pairs),
        exact=sum(right) / len(pairs),
        error_rate=sum(edit_distance(a, r) for _, a, r in pairs) / characters,
        copy_exact=(len(pairs) - moved) / len(pairs),
        copy_error_rate=sum(edit_distance(s, r) for s, _, r in pairs) / characters,
        changed=moved,
        changed_exact=sum(map(min, right, changed)) / moved if moved else 0.0,
    )


def edit_distance(one: str, other: str) -> int:
    """The fewest characters to put in, take out or exchange, from one text to the other.

    d[i, j] = min(d[i-1, j] + 1, d[i, j-1] + 1, d[i-1, j-1] + (one[i] ≠ other[j])), row by row.
    Levenshtein 1966; Wagner and Fischer 1974. Time is the product of the lengths.
    """
    if one == other:
        return 0
    above = list(range(len(other) + 1))
    for i, a in enumerate(one, 1):
        row = [i]
        for j, b in enumerate(other, 1):
            row.append(min(above[j] + 1, row[-1] + 1, above[j - 1] + (a != b)))
        above = row
    return above[-1]


Progress = Callable[[str, int, int], None]
"""(what, done, total), called after each batch."""

# As in the paper: a text may become so much longer than the one it comes from.
LONGER = 50


class TextIds(Protocol):
    """What is asked of a tokenizer: ``Tokenizer`` and ``ByteTokenizer`` are such."""

    @property
    def eos_ids(self) -> Collection[int]: ...
    @property
    def bos_id(self) -> int | None: ...
    def encode(self, text: str, *, special: bool = True) -> list[int]: ...
    def decode(self, ids: Sequence[int], *, special: bool = False) -> str: ...


@dataclass(frozen=True)
class Translation:
    """A text that may be the answer; the numbers as of ``Hypothesis``."""

    text: str
    log_probability: float
    score: float
    finished: bool


def end_id(tokenizer: TextIds) -> int:
    """The id that ends a text. Raises NotSupported if the tokenizer has none."""
    if not tokenizer.eos_ids:
        raise NotSupported("the tokenizer has no id that ends a text: sequence pairs need one")
    return min(tokenizer.eos_ids)


def begin_id(tokenizer: TextIds) -> int:
    """The id that begins what is written: bos, or what ends a text where there is no bos."""
    return tokenizer.bos_id if tokenizer.bos_id is not None else end_id(tokenizer)


def source_ids(tokenizer: TextIds, text: str) -> list[int]:
    """A text to be read: its ids and the end. Control words in it are ordinary text."""
    return [*tokenizer.encode(text, special=False), end_id(tokenizer)]


def target_ids(tokenizer: TextIds, text: str) -> list[int]:
    """A text to be written, as it is trained on: the beginning, its ids, the end."""
    ids = tokenizer.encode(text, special=False)
    return [begin_id(tokenizer), *ids, end_id(tokenizer)]


def translate(
    model: Transformer,
    tokenizer: TextIds,
    texts: Sequence[str],
    *,
    beams: int = 4,
    length_penalty: float = 1.0,
    max_new_tokens: int | None = None,
    batch: int = 32,
    progress: Progress | None = None,
) -> list[list[Translation]]:
    """For each text its translations, best first: ``beams`` of them, one for beams=1 (greedy).

    Arguments as of ``beam_search``. max_new_tokens: the longest source's number of ids and 50
    more, batch by batch, if not given. batch: how many texts are written together; those of
    similar length are.

    Raises InvalidArgument for an empty text, naming its place from 1.
    """
    for place, text in enumerate(texts, 1):
        if not text.strip():
            raise InvalidArgument(f"text {place} of {len(texts)} is empty: there is nothing in it")
    if batch < 1:
        raise InvalidArgument(f"batch={batch}: 1 or more")
    ids = [source_ids(tokenizer, text) for text in texts]
    order = sorted(range(len(ids)), key=lambda row: (len(ids[row]), row))
    found: dict[int, list[Translation]] = {}
    ends = {"bos": begin_id(tokenizer), "eos": end_id(tokenizer)} if texts else {}
    for start in range(0, len(order), batch):
        rows = order[start : start + batch]
        sources = [ids[row] for row in rows]
        most = max_new_tokens if max_new_tokens is not None else max(map(len, sources)) + LONGER
        if beams == 1:
            answers = [[one] for one in greedy(model, sources, max_new_tokens=most, **ends)]
        else:
            answers = beam_search(
                model, sources, beams=beams, length_penalty=length_penalty,
                max_new_tokens=most, **ends,
            )  # fmt: skip
        for row, answer in zip(rows, answers, strict=True):
            found[row] = [_text(tokenizer, one) for one in answer]
        if progress is not None:
            progress("translating", len(found), len(ids))
    return [found[row] for row in range(len(ids))]


def _text(tokenizer: TextIds, one: Hypothesis) -> Translation:
    text = tokenizer.decode(one.ids)
    return Translation(text, one.log_probability, one.score, one.finished)
