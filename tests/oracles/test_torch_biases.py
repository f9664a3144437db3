"""torch's two causal biases, upper-left and lower-right, are Causal with tokens said or omitted."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right, causal_upper_left
from torch.nn.functional import scaled_dot_product_attention

from eyeline import Causal, Tokens, attention, dense_mask

SIZES = [(1, 1), (7, 7), (5, 13), (1, 11), (67, 131)]
# "auto" hands some of these to torch itself; the others are our own.
BACKENDS = ["auto", "tiles", "reference"]


def inputs(queries: int, keys: int) -> list[Tensor]:
    torch.manual_seed(0)
    shapes = [(2, 3, queries, 8), (2, 3, keys, 8), (2, 3, keys, 8)]
    return [torch.randn(shape, requires_grad=True) for shape in shapes]


def agree(theirs: Tensor, ours: Tensor, tensors: list[Tensor]) -> None:
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)
    above = torch.randn_like(theirs)
    both = (torch.autograd.grad(out, tensors, above) for out in (theirs, ours))
    for want, found in zip(*both, strict=True):
        torch.testing.assert_close(found, want, rtol=0, atol=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("queries", "keys"), [*SIZES, (13, 5)])
def test_upper_left_is_causal_with_queries_from_zero(queries: int, keys: int, backend: str) -> None:
    bias = causal_upper_left(queries, keys)
    tokens = {"q_tokens": Tokens.arange(0, queries), "k_tokens": Tokens.arange(0, keys)}
    assert torch.equal(dense_mask(Causal(), **tokens), bias._materialize())
    tensors = inputs(queries, keys)
    theirs = scaled_dot_product_attention(*tensors, attn_mask=bias)
    agree(theirs, attention(*tensors, Causal(), backend=backend, **tokens), tensors)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("queries", "keys"), SIZES)
def test_lower_right_is_causal_with_tokens_omitted(queries: int, keys: int, backend: str) -> None:
    bias = causal_lower_right(queries, keys)
    assert torch.equal(dense_mask(Causal(), queries, keys), bias._materialize())
    tensors = inputs(queries, keys)
    theirs = scaled_dot_product_attention(*tensors, attn_mask=bias)
    agree(theirs, attention(*tensors, Causal(), backend=backend), tensors)


def test_where_lower_right_gives_nan_a_query_that_sees_nobody_gives_zero() -> None:
    queries, keys, early = 13, 5, 8
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that these rows are NaN
        bias = causal_lower_right(queries, keys)
    tokens = {"q_tokens": Tokens.arange(0, queries), "k_tokens": Tokens.arange(early, queries)}
    assert torch.equal(dense_mask(Causal(), **tokens), bias._materialize())
    query, key, value = inputs(queries, keys)
    ours = attention(query, key, value, Causal(), **tokens)
    assert not ours[:, :, :early].any()
    theirs = scaled_dot_product_attention(query[:, :, early:], key, value, is_causal=True)
    torch.testing.assert_close(ours[:, :, early:], theirs, rtol=0, atol=1e-5)
