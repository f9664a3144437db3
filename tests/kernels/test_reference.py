"""The oracle against someone else, and the derivatives that only it has."""

from __future__ import annotations

import warnings
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from eyeline import Causal, Tokens, Window, attention, attention_weights, streaming
from eyeline.kernels import reference
from eyeline.testing.cases import Case


def tensors(length: int = 7, width: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    return tuple(
        torch.randn(2, heads, length, width, generator=generator, dtype=torch.float64)
        for heads in (4, 2, 2)
    )  # type: ignore[return-value]


def test_equals_torch() -> None:
    q, k, v = tensors(length=31)
    theirs = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, is_causal=True, enable_gqa=True, scale=0.7
    )
    ours = attention(q, k, v, Causal(), scale=0.7, backend="reference")
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_equals_flex_attention() -> None:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    q, k, v = (x.float() for x in tensors(length=128, width=16))
    pattern = streaming(size=13, sinks=3)
    block_mask = create_block_mask(pattern.mask_mod(), None, None, 128, 128, device="cpu")
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it advises to compile
        theirs = flex_attention(q, k, v, block_mask=block_mask, enable_gqa=True)
    ours = attention(q, k, v, pattern, backend="reference")
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_masked_self_attention_by_hand() -> None:
    """ "robot must obey orders": each word looks at itself and the words before it."""
    score = torch.tensor(
        [[0.11, 0.00, 0.81, 0.79], [0.19, 0.50, 0.30, 0.48], [0.53, 0.98, 0.95, 0.14],
         [0.81, 0.86, 0.38, 0.90]], dtype=torch.float64,
    )  # fmt: skip
    # With key = the identity and scale 1 the scores are the query itself.
    weight = attention_weights(
        score[None, None], torch.eye(4, dtype=torch.float64)[None, None], Causal(), scale=1.0
    )[0, 0]
    assert weight[0].tolist() == [1.0, 0.0, 0.0, 0.0]
    e = score.exp()
    torch.testing.assert_close(weight[1, :2], e[1, :2] / e[1, :2].sum())
    torch.testing.assert_close(weight[2, :3], e[2, :3] / (e[2, 0] + e[2, 1] + e[2, 2]))
    torch.testing.assert_close(weight.sum(1), torch.ones(4, dtype=torch.float64))
    zeros = torch.softmax(score.tril(), 1)
    assert (zeros[0] - weight[0]).abs().max() > 0.5, "a masked score of 0 is a score like any other"


CASES = [
    Case("causal", Causal(), 5, 5, heads=2, key_heads=1, width=3, value_width=2),
    Case(
        "an empty row and a pad", Window(1, 0) & ~Window(0, 0), 5, 5, heads=2, key_heads=2,
        width=2, value_width=2, tokens=(Tokens.listed([-1, 0, 1, 2, 3]),) * 2,
    ),
    Case(
        "documents", Causal(), 5, 5, heads=1, key_heads=1, width=2, value_width=2,
        tokens=(Tokens.packed([2, 3]),) * 2,
    ),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_first_second_and_forward_derivatives(case: Case) -> None:
    request = case.request()
    leaves = tuple(x.requires_grad_() for x in (request.query, request.key, request.value))

    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return reference.run(replace(request, query=q, key=k, value=v))[0]

    assert torch.autograd.gradcheck(call, leaves, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(call, leaves)


def test_vmap() -> None:
    q, k, v = tensors()
    many = torch.stack([q, 2 * q, -q])

    def call(x: Tensor) -> Tensor:
        return attention(x, k, v, Causal(), backend="reference")

    looped = torch.stack([call(x) for x in many])
    torch.testing.assert_close(torch.vmap(call)(many), looped)
