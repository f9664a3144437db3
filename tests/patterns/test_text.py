"""str and parse are inverse; what does not parse is said with its place."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from eyeline.errors import PatternSyntaxError
from eyeline.patterns import (
    Causal,
    Explicit,
    Full,
    Pattern,
    Predicate,
    Sinks,
    Window,
    parse,
    sliding_window,
    streaming,
)  # fmt: skip
from strategies import patterns


@given(patterns)
def test_round_trip(pattern: Pattern) -> None:
    assert parse(str(pattern)) == pattern


@given(patterns, st.text(" \n\t", max_size=3))
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
    ],
)
def test_texts(text: str, pattern: Pattern) -> None:
    assert parse(text) == pattern


def test_canonical_text() -> None:
    text = "causal & (window(left=255, right=0) | sinks(4))"
    assert str(streaming(256, 4)) == text


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
        ("sinks(four)", "expected a whole number or none, found 'four'"),
        ("sinks(none)", "count=None"),
        ("sinks(1", "expected '\\)'|expected ','"),
        ("window(left=1, 2)", "without a name"),
        ("window(left=1, left=2)", "twice"),
        ("window(left=1, wide=2)", "wide"),
        ("explicit(5)", "explicit: mask is a int"),
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


@given(st.text("causlwindo()&|~,=# 0123456789none", max_size=40))
def test_any_text_parses_or_is_refused(text: str) -> None:
    try:
        assert parse(str(parse(text))) == parse(text)
    except PatternSyntaxError as error:
        assert str(error)
