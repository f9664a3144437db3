"""Recipes: a mechanism's name and options, as a value with a text form."""

from __future__ import annotations

import pytest

from eyeline.errors import InvalidArgument
from eyeline.mechanisms import Additive, Exact, ExtraKeys, Heads, Recipe, recipe
from eyeline.patterns import Causal

HEADS = Heads(6, 3, 7)


@pytest.mark.parametrize("text", ["exact", "additive", "additive(hidden=5)", "extra_keys(count=2)"])
def test_text_and_value_are_inverse(text: str) -> None:
    assert str(recipe(text)) == text
    assert recipe(str(recipe(text))) == recipe(text)
    assert hash(recipe(text)) == hash(recipe(text))


def test_a_recipe_makes_the_module() -> None:
    exact = recipe("exact").make(Causal(), HEADS, dropout=0.25)
    assert isinstance(exact, Exact) and exact.pattern == Causal() and exact.dropout == 0.25
    additive = recipe("additive(hidden=5)").make(Causal(), HEADS)
    assert isinstance(additive, Additive) and additive.w_q.shape == (6, 5, 7)
    extra = recipe("extra_keys(count=2)").make(Causal(), HEADS)
    assert isinstance(extra, ExtraKeys) and extra.key.shape == (3, 2, 7)


def test_values_are_numbers_and_words() -> None:
    read = Recipe("additive", (("hidden", None),))
    assert recipe(" additive( hidden = none ) ") == read


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("lookup", "there is no mechanism 'lookup'"),
        ("exact(count=1)", "exact takes scale"),
        ("extra_keys", "extra_keys takes count"),
        ("extra_keys(count=1, count=2)", "count is given twice"),
        ("extra_keys(count)", "not of the form name=value"),
        ("extra_keys(count=1+)", "a number or a word is due"),
        ("extra_keys(count=__import__('os'))", "not of the form"),
        ("(", "not of the form"),
        ("x" * 501, "not of the form"),
    ],
)
def test_refusals(text: str, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words.replace("(", r"\(")):
        recipe(text)
