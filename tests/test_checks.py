"""What is asked for is checked in one place and refused in the same words."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
import torch

import eyeline
from eyeline.checks import check_size, check_sizes, check_whole, probability, wide_dtype, widened
from eyeline.errors import InvalidArgument

SOURCE = Path(eyeline.__file__).parent
NO_NUMBERS: tuple[object, ...] = (True, 1.0, "1", None, torch.tensor(1))


@pytest.mark.parametrize("value", [0, -3, *NO_NUMBERS])
def test_sizes(value: object) -> None:
    with pytest.raises(InvalidArgument, match=r"^size=.*: a whole number from 1$"):
        check_size("size", value)
    with pytest.raises(InvalidArgument, match=r"^b=.*: a whole number from 1$"):
        check_sizes(a=1, b=value)
    with pytest.raises(InvalidArgument, match=r"^x=.*: a whole number from 7 to 2\^60 - 1$"):
        check_whole("x", value, least=7)


def test_what_fits() -> None:
    check_sizes(one=1, many=1 << 70)
    check_size("none", 0, least=0)
    check_size("pair", 2, even=True)
    check_whole("last", (1 << 60) - 1, least=0)
    with pytest.raises(InvalidArgument):
        check_whole("last", 1 << 60, least=0)
    for odd in (0, 1, 3, -2):
        with pytest.raises(InvalidArgument, match=f"pair={odd}: an even number from 2"):
            check_size("pair", odd, even=True)


def test_probabilities() -> None:
    assert probability("p", 0) == 0.0 and probability("p", 0.999) == 0.999
    for p in (1.0, -0.1, float("nan"), True, "0.1", None):
        with pytest.raises(InvalidArgument, match=r"^p=.*: a probability from 0 to below 1$"):
            probability("p", p)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_sums_are_wide(dtype: torch.dtype) -> None:
    due = torch.float64 if dtype is torch.float64 else torch.float32
    x = torch.ones(3, dtype=dtype)
    assert wide_dtype(x) is wide_dtype(dtype) is widened(x).dtype is due
    assert (widened(x) is x) == (dtype is due)


def test_nobody_else_says_so_in_other_words() -> None:
    """A message about a whole number is written once; the others are about several values."""
    others = re.compile(r"\}: (a whole number, at least|at least [012]$|an even number, at least)")
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.JoinedStr):
                assert not others.search(ast.unparse(node)[2:-1]), f"{path}: {ast.unparse(node)}"
