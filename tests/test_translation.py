"""Searches against every text there is, and against full runs without a cache."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from eyeline.errors import InvalidArgument, NotSupported
from eyeline.models import Transformer, TransformerConfig
from eyeline.patterns import Window, sliding_window
from eyeline.tokenizer import ByteTokenizer
from eyeline.translation import (
    beam_search,
    edit_distance,
    greedy,
    report,
    source_ids,
    target_ids,
    translate,
)

V, BOS, EOS = 5, 0, 1
SOURCES = [[1, 2, 3], [4], [0, 1, 2, 3, 4, 2, 1]]
ENDS: dict[str, Any] = {"bos": BOS, "eos": EOS}


def made(seed: int = 0, vocabulary: int = V, **choices: Any) -> Transformer:
    torch.manual_seed(seed)
    config = TransformerConfig(vocabulary, width=12, hidden=17, layers=2, heads=2, tied=False)
    model = Transformer(config, **choices).double()
    for x in model.parameters():
        if x.dim() > 1:
            nn.init.normal_(x, std=0.6)
    return model.eval().requires_grad_(False)


class FullRuns:
    """What a model gives without a cache, one run over a whole text after the other."""

    def __init__(self, model: Transformer, source: Sequence[int]) -> None:
        self._model, self._source = model, torch.tensor([source])
        self._known: dict[tuple[int, ...], list[float]] = {}

    def following(self, ids: tuple[int, ...]) -> list[float]:
        """log p of every id after these."""
        if ids not in self._known:
            logits = self._model(self._source, torch.tensor([[BOS, *ids]]))[0, -1]
            self._known[ids] = logits.log_softmax(-1).tolist()
        return self._known[ids]

    def log_p(self, ids: tuple[int, ...], *, end: bool) -> float:
        """log p(ids, and the end | source)."""
        wanted = (*ids, EOS) if end else ids
        return math.fsum(self.following(wanted[:i])[index] for i, index in enumerate(wanted))


def texts(most: int) -> list[tuple[int, ...]]:
    """Every text that comes to its end within so many ids, the end among them."""
    others = [index for index in range(V) if index != EOS]
    return [ids for n in range(most) for ids in itertools.product(others, repeat=n)]


def plain_beams(runs: FullRuns, *, beams: int, most: int, penalty: float) -> list[tuple[int, ...]]:
    """Beam search from the words of its description, to the last id: the finished texts."""
    live: list[tuple[int, ...]] = [()]
    done: list[tuple[float, tuple[int, ...]]] = []
    for _ in range(most):
        each = [
            (runs.log_p(ids, end=False) + extra, ids, index)
            for ids in live
            for index, extra in enumerate(runs.following(ids))
        ]
        each.sort(key=lambda one: -one[0])
        done += [
            (total / (len(ids) + 1) ** penalty, ids)
            for total, ids, index in each[:beams]
            if index == EOS
        ]
        live = [(*ids, index) for _, ids, index in each if index != EOS][:beams]
    done.sort(key=lambda one: (-one[0], one[1]))
    return [ids for _, ids in done[:beams]]


# --- Searches ------------------------------------------------------------------------------------


def test_beams_as_wide_as_everything_find_every_text_in_order() -> None:
    model, most = made(1), 4
    runs = [FullRuns(model, source) for source in SOURCES]
    for penalty in (0.0, 0.6, -1.0):
        found = beam_search(
            model, SOURCES, beams=320, max_new_tokens=most, length_penalty=penalty, **ENDS
        )
        for run, answers in zip(runs, found, strict=True):
            every = {
                ids: run.log_p(ids, end=True) / (len(ids) + 1) ** penalty for ids in texts(most)
            }
            best = sorted(every, key=lambda ids: -every[ids])
            finished = [one for one in answers if one.finished]
            assert [one.ids for one in finished] == best
            assert answers[: len(finished)] == finished
            for one in finished:
                assert math.isclose(one.score, every[one.ids], rel_tol=1e-9)


@pytest.mark.parametrize(
    "choices",
    [{}, {"pattern": sliding_window(2), "memory_pattern": Window(2, 2)}],
    ids=["given none", "windows"],
)
@pytest.mark.parametrize("beams", [1, 3])
def test_beams_are_those_of_full_runs(beams: int, choices: dict[str, Any]) -> None:
    """Pruned as the description says, and each score that of a run without a cache."""
    for seed, penalty in itertools.product(range(2), (0.0, 1.0)):
        model = made(seed, **choices)
        found = beam_search(
            model, SOURCES, beams=beams, max_new_tokens=5, length_penalty=penalty, **ENDS
        )
        for source, answers in zip(SOURCES, found, strict=True):
            runs = FullRuns(model, source)
            assert len(answers) == len({one.ids for one in answers}) == beams
            for one in answers:
                exact = runs.log_p(one.ids, end=one.finished)
                assert math.isclose(one.log_probability, exact, rel_tol=1e-9, abs_tol=1e-9)
                n = len(one.ids) + one.finished
                assert math.isclose(one.score, exact / n**penalty, rel_tol=1e-9, abs_tol=1e-9)
            finished = [one.ids for one in answers if one.finished]
            assert finished == plain_beams(runs, beams=beams, most=5, penalty=penalty)


def test_greedy_takes_the_likeliest_id_of_full_runs() -> None:
    for seed in range(4):
        model = made(seed)
        found = greedy(model, SOURCES, max_new_tokens=6, **ENDS)
        for source, one in zip(SOURCES, found, strict=True):
            runs = FullRuns(model, source)
            ids: tuple[int, ...] = ()
            while len(ids) < 6:
                index = max(range(V), key=runs.following(ids).__getitem__)
                if index == EOS:
                    break
                ids = (*ids, index)
            assert one.ids == ids and one.finished == (len(ids) < 6)
            exact = runs.log_p(ids, end=one.finished)
            assert math.isclose(one.log_probability, exact, rel_tol=1e-9)


def test_one_beam_without_penalty_is_greedy() -> None:
    for seed in range(4):
        one = greedy(made(seed), SOURCES, max_new_tokens=6, **ENDS)
        found = beam_search(
            made(seed), SOURCES, beams=1, max_new_tokens=6, length_penalty=0.0, **ENDS
        )
        for a, (b,) in zip(one, found, strict=True):
            assert a.ids == b.ids and math.isclose(a.score, b.score, rel_tol=1e-12)


@pytest.mark.parametrize(("first", "second"), [(0.5, 0.99), (0.7, 0.001)])
def test_it_goes_on_while_a_beginning_may_still_come_first(
    first: float, second: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The empty text ends at once, and a text that ends later has the better mean."""

    class Fixed:
        """p of the end: ``first``, then ``second``, and 0.999 after seven ids."""

        device = torch.device("cpu")

        def __init__(self, *given: object, copies: int) -> None:
            self.read = 0

        def step(self, ids: Tensor) -> Tensor:
            end = first if self.read == 0 else second if self.read < 7 else 0.999
            self.read += 1
            rest = 1 - end - 3e-9
            return torch.tensor([[1e-9, end, rest, 1e-9, 1e-9]]).log()

        def reorder(self, index: Tensor) -> None:
            assert index.tolist() == [0]

    monkeypatch.setattr("eyeline.translation.search.Writing", Fixed)
    (answers,) = beam_search(made(), [[2]], beams=1, max_new_tokens=8, length_penalty=1.0, **ENDS)
    assert answers[0].ids == ((2,) if second > 0.5 else (2,) * 7)


def test_rows_together_are_rows_alone_and_the_same_again() -> None:
    model = made(2)
    together = beam_search(model, SOURCES, beams=3, max_new_tokens=6, **ENDS)
    assert together == beam_search(model, SOURCES, beams=3, max_new_tokens=6, **ENDS)
    for source, answers in zip(SOURCES, together, strict=True):
        (alone,) = beam_search(model, [source], beams=3, max_new_tokens=6, **ENDS)
        assert [one.ids for one in alone] == [one.ids for one in answers]
        assert [one.score for one in alone] == pytest.approx([one.score for one in answers])


def test_a_text_without_an_end_is_told_apart() -> None:
    model = made()
    nn.init.zeros_(model.head.weight)
    with torch.no_grad():
        model.decoder.blocks[-1].feed_forward_norm.bias.fill_(1.0)  # type: ignore[union-attr]
        model.head.weight[EOS] = -9.0  # the end is out of reach
        model.head.weight[3] = 9.0
    one = greedy(model, [[2]], max_new_tokens=4, **ENDS)[0]
    assert one.ids == (3, 3, 3, 3) and not one.finished
    (answers,) = beam_search(model, [[2]], beams=2, max_new_tokens=4, **ENDS)
    assert answers[0].ids == (3, 3, 3, 3) and not answers[0].finished


def test_nothing_to_read_and_nothing_to_follow() -> None:
    assert beam_search(made(), [], **ENDS) == [] and greedy(made(), [], **ENDS) == []
    (answers,) = beam_search(made(), [[2]], beams=50, max_new_tokens=1, **ENDS)
    assert [one.finished for one in answers] == [True] + [False] * (V - 1)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"sources": [[2], []]}, "source 1 is empty"),
        ({"sources": [[2, 5]]}, "id 5 is not in the vocabulary of 5"),
        ({"sources": [[-1]]}, "id -1 is not in the vocabulary"),
        ({"max_new_tokens": 0}, "max_new_tokens=0"),
        ({"bos": 5}, "bos=5 is not in the vocabulary"),
        ({"eos": -1}, "eos=-1 is not in the vocabulary"),
        ({"beams": 0}, "beams=0"),
        ({"length_penalty": math.nan}, "length_penalty=nan"),
        ({"length_penalty": 99.0}, "length_penalty=99"),
    ],
)
def test_what_no_search_can_begin_with(change: dict[str, Any], said: str) -> None:
    asked: dict[str, Any] = {"sources": [[2]], **ENDS, **change}
    with pytest.raises(InvalidArgument, match=said):
        beam_search(made(), **asked)
    if not {"beams", "length_penalty"} & set(change):
        with pytest.raises(InvalidArgument, match=said):
            greedy(made(), **asked)


def test_damaged_weights_are_told() -> None:
    model = made()
    model.head.weight[3, 3] = math.nan
    with pytest.raises(NotSupported, match="NaN"):
        beam_search(model, [[2]], **ENDS)


# --- Texts ---------------------------------------------------------------------------------------


def test_a_pair_becomes_ids() -> None:
    tokens = ByteTokenizer()
    assert source_ids(tokens, "é<pad>") == [*"é<pad>".encode(), 257]
    assert target_ids(tokens, "ab") == [256, 97, 98, 257]


@pytest.mark.parametrize("beams", [1, 3])
def test_texts_are_answered_in_their_order(beams: int) -> None:
    model, tokens = made(vocabulary=260), ByteTokenizer()
    asked = ["one", "a text that is longer", "b", "another", "two"]
    said: list[tuple[int, int]] = []
    found = translate(
        model, tokens, asked, beams=beams, max_new_tokens=3, batch=2,
        progress=lambda what, done, total: said.append((done, total)),
    )  # fmt: skip
    assert said == [(2, 5), (4, 5), (5, 5)] and all(len(one) == beams for one in found)
    for text, answers in zip(asked, found, strict=True):
        (alone,) = translate(model, tokens, [text], beams=beams, max_new_tokens=3)
        assert [one.text for one in alone] == [one.text for one in answers]
    assert translate(model, tokens, []) == []
    with pytest.raises(InvalidArgument, match="text 2 of 2 is empty"):
        translate(model, tokens, ["a", " "])


def test_a_tokenizer_without_an_end_is_refused() -> None:
    class Endless:
        eos_ids: frozenset[int] = frozenset()
        bos_id = None

        def encode(self, text: str, *, special: bool = True) -> list[int]:
            return [2]

        def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
            return ""

    with pytest.raises(NotSupported, match="no id that ends a text"):
        source_ids(Endless(), "a")


# --- Scores --------------------------------------------------------------------------------------


def slowly(one: str, other: str) -> int:
    """The definition, by recursion."""
    if not one or not other:
        return len(one) + len(other)
    exchanged = slowly(one[1:], other[1:]) + (one[0] != other[0])
    return min(exchanged, slowly(one[1:], other) + 1, slowly(one, other[1:]) + 1)


@given(st.text("ab", max_size=5), st.text("abc", max_size=5))
def test_edit_distance_is_its_definition(one: str, other: str) -> None:
    assert edit_distance(one, other) == edit_distance(other, one) == slowly(one, other)


def test_a_report_counts() -> None:
    found = report(["Chad", "Peru", "Mali"], ["Tschad", "Peri", "Mali"], ["Tschad", "Peru", "Mali"])
    assert (found.pairs, found.changed, found.changed_exact) == (3, 1, 1.0)
    assert found.exact == found.copy_exact == 2 / 3
    assert found.error_rate == pytest.approx(1 / 14)
    assert found.copy_error_rate == pytest.approx(edit_distance("Chad", "Tschad") / 14)
    assert report(["a"], ["b"], ["a"]).changed_exact == 0.0
    for wrong in ([], ["a"]):
        with pytest.raises(InvalidArgument, match="one of each"):
            report(["a", "b"] if wrong else [], wrong, ["a", "b"] if wrong else [])
