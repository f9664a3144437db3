"""str and parse are inverse; what does not parse is said with its place."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from eyeline.errors import PatternSyntaxError
from eyeline.patterns import (
    Blocks,
    Causal,
    Chunks,
    Explicit,
    Full,
    Global,
    Pattern,
    PerHead,
    Predicate,
    Random,
    Sinks,
    Window,
    bigbird,
    longformer,
    parse,
    sliding_window,
    sparse_transformer,
    streaming,
)  # fmt: skip
from eyeline.patterns.parser import Parser
from eyeline.tokens import Points
from strategies import patterns, varying_patterns

BOUND: tuple[Pattern, ...] = (
    Explicit(torch.ones(3, 3, dtype=torch.bool)),
    Predicate(lambda b, h, q, k: q >= k),
)


@given(st.one_of(patterns, varying_patterns))
def test_round_trip(pattern: Pattern) -> None:
    text = str(pattern)
    assert parse(text) == pattern
    assert str(parse(text)) == text


@given(st.one_of(patterns, varying_patterns), st.lists(st.booleans(), min_size=6, max_size=6))
def test_round_trip_with_tensors(pattern: Pattern, signs: list[bool]) -> None:
    """Bound leaves among others: their numbers lead back to the same objects."""
    large = Blocks(torch.ones(17, 17, dtype=torch.bool), 3)
    for leaf, sign in zip((*BOUND, large) * 2, signs, strict=True):
        pattern = pattern & leaf if sign else PerHead([leaf, pattern])
    distinct = tuple(dict.fromkeys(pattern.bound))
    assert parse(str(pattern), distinct) == pattern


@given(st.one_of(patterns, varying_patterns), st.text(" \n\t", max_size=3))
def test_white_space_means_nothing(pattern: Pattern, space: str) -> None:
    assert parse(space + str(pattern).replace(" ", space) + space) == pattern


@pytest.mark.parametrize(
    ("text", "pattern"),
    [
        ("causal", Causal()),
        ("CAUSAL()", Causal()),
        ("window(3, none)", Window(3, None)),
        ("window(left=3, right=none)", Window(3, None)),
        ("streaming(512, 4)", streaming(512, 4)),
        ("streaming(size=512, sinks=4)", streaming(512, 4)),
        ("sliding_window(256)", sliding_window(256)),
        ("causal | sinks(1) & full", Causal() | (Sinks(1) & Full())),
        ("~causal & sinks(1)", ~Causal() & Sinks(1)),
        ("~(causal & sinks(1))", ~(Causal() & Sinks(1))),
        ("chunks(64)", Chunks(64)),
        ("chunks(64, 1, none)", Chunks(64, 1, None)),
        ("global(16)", Global(16)),
        ("global([0, 511,])", Global([0, 511])),
        ("global(tokens=[])", Global([])),
        ("blocks([[1, 0], [1, 1]], 64)", Blocks([[1, 0], [1, 1]], 64)),
        ("random(3, 64, layer=2)", Random(3, 64, layer=2)),
        ("per_head([causal, Sliding_Window(4)])", PerHead([Causal(), sliding_window(4)])),
        (
            "per_head(members=[~causal | sinks(1), (full)]) & full",
            PerHead([~Causal() | Sinks(1), Full()]) & Full(),
        ),
        ("longformer(128, [0, 7])", longformer(128, [0, 7])),
        ("bigbird(64, 3, 1, seed=5)", bigbird(64, 3, 1, seed=5)),
        ("sparse_transformer(64)", sparse_transformer(64)),
        ("sparse_transformer(64, fixed, width=8)", sparse_transformer(64, "fixed", 8)),
        ("sparse_transformer(64, kind=strided)", sparse_transformer(64, kind="strided")),
    ],
)
def test_texts(text: str, pattern: Pattern) -> None:
    assert parse(text) == pattern


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (streaming(256, 4), "causal & (window(left=255, right=0) | sinks(4))"),
        (Chunks(64), "chunks(64)"),
        (Chunks(64, 0, 1), "chunks(size=64, right=1)"),
        (Global([7, 0, 7]), "global([0, 7])"),
        (Blocks([[True, False], [1, 1]], 64), "blocks([[1, 0], [1, 1]], size=64)"),
        (Random(3, 64), "random(blocks_per_row=3, size=64)"),
        (PerHead([Causal() | Full(), Sinks(1)]), "per_head([causal | full, sinks(1)])"),
        (PerHead([Full()]) & Causal(), "per_head([full]) & causal"),
    ],
    ids=str,
)
def test_canonical_text(pattern: Pattern, text: str) -> None:
    assert str(pattern) == text
    assert parse(text) == pattern


@dataclass(frozen=True)
class Custom(Pattern):
    """An atom of a user, whose first argument has its default."""

    first: int = 1
    second: int = 2
    kind: str = "plain"
    flag: bool = False

    def allows(self, q: Points, k: Points) -> Tensor:
        return q.position == k.position


def test_what_has_its_default_is_left_out() -> None:
    parser = partial(Parser, vocabulary={"custom": Custom})
    for pattern, text in (
        (Custom(), "custom"),
        (Custom(5), "custom(5)"),
        (Custom(second=5), "custom(second=5)"),
        (Custom(kind="odd"), "custom(kind=odd)"),
        (Custom(3, flag=True), "custom(first=3, flag=1)"),
    ):
        assert str(pattern) == text
        assert parser(text).parse() == pattern


def test_bound_patterns_are_numbered_and_handed_back() -> None:
    mask = Explicit(torch.ones(3, 3, dtype=torch.bool))
    rule = Predicate(lambda b, h, q, k: q >= k)
    pattern = (mask | rule) & ~mask
    assert str(pattern) == "(explicit(#0) | predicate(#1)) & ~explicit(#0)"
    assert parse(str(pattern), (mask, rule)) == pattern
    with pytest.raises(PatternSyntaxError, match="2 were given"):
        parse("explicit(#2)", (mask, rule))
    with pytest.raises(PatternSyntaxError, match="is predicate, not explicit"):
        parse("explicit(#1)", (mask, rule))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "a pattern is missing"),
        ("causl & full", "unknown pattern 'causl'; the nearest known one is 'causal'.*character 1"),
        ("full & slidng_window(3)", "'sliding_window'.*character 8"),
        ("causal &", "a pattern is missing, at character 9"),
        ("causal full", "expected & or |.*character 8"),
        ("window(3)", "missing a required argument: 'right'"),
        ("window(-1, 2)", "left=-1"),
        ("sinks(four)", "count='four'.*character 1"),
        ("sinks(" + "four" * 90 + ")", "expected a whole number, none, a word.*character 7"),
        ("sinks(=4)", "expected a whole number.*found '='.*character 7"),
        ("sinks(4=4)", "no name.*character 7"),
        ("sinks(causal)", "count=Causal"),
        ("sinks(window)", "count='window'"),
        ("sinks(window & full)", "window: missing.*character 7"),
        ("per_head([window])", "window: missing.*character 11"),
        ("sinks(none)", "count=None"),
        ("sinks(1", "expected '\\)'|expected ','"),
        ("window(left=1, 2)", "without a name"),
        ("window(left=1, left=2)", "twice"),
        ("window(left=1, wide=2)", "wide"),
        ("explicit(5)", "explicit: mask is a int"),
        ("explicit(#0)", "0 were given, at character 10"),
        ("window(#0, 3)", "0 were given, at character 8"),
        ("full & per_head([causl])", "unknown pattern 'causl'.*'causal'.*character 18"),
        ("per_head([causal, causl(3)])", "unknown pattern 'causl'.*character 19"),
        ("per_head([causal full])", "expected ',' or ']'.*character 18"),
        ("per_head([causal", "expected ',' or ']'.*character 17"),
        ("per_head([3])", "member 0 is a int, not a pattern"),
        ("per_head(causal)", "is a Causal: give a list of patterns"),
        ("per_head([])", "members is empty"),
        ("[causal]", "expected a pattern, found '\\['"),
        ("global([1,,2])", "found ','.*character 11"),
        ("blocks([[1, 2]], 4)", "entry 2"),
        ("blocks([[1, 0], [1]], 4)", "rows of 2 and 1"),
        ("sparse_transformer(8, kind=foxed)", "kind='foxed'"),
        ("random(3, 64, seed=none)", "seed=None"),
        ("global([" + "1," * 4_500 + "])", "more than 4,096 entries, at character 8201"),
        ("global(" + "[" * 1000, "nested deeper than 50"),
        ("per_head([" * 900 + "causal", "nested deeper than 50"),
        ("causal)", "found '\\)'"),
        ("causal @ full", "unexpected '@', at character 8"),
        ("__import__('os')", "unknown pattern '__import__'|unexpected"),
        ("sinks(" + "9" * 40 + ")", "whole number"),
        ("a" * 1_000_000, "1,000,000 characters; the limit is 10,000"),
        ("(" * 1000 + "causal" + ")" * 1000, "nested deeper than 50"),
        ("~" * 1000 + "causal", "nested deeper than 50"),
    ],
)
def test_mistakes_are_shown_with_their_place(text: str, words: str) -> None:
    with pytest.raises(PatternSyntaxError, match=words) as caught:
        parse(text)
    assert len(str(caught.value)) < 300


@given(st.text("causlwindo()[]&|~,=# 0123456789none", max_size=40))
def test_any_text_parses_or_is_refused(text: str) -> None:
    try:
        assert parse(str(parse(text))) == parse(text)
    except PatternSyntaxError as error:
        assert str(error)
