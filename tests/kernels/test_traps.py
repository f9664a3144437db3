"""The traps of the fused CPU operator: if one of these changes, flash.py may be simplified."""

from __future__ import annotations

import torch

from eyeline.kernels import flash, product


def blocks() -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randn(2, 3, 5, 8, generator=generator) for _ in range(3))


def test_the_operator_is_there() -> None:
    q, _, v = blocks()
    assert flash.serves(q, v), "the fused operator is gone: tiles fall back to the plain product"
    assert not flash.serves(q, v[..., :3])
    assert not flash.serves(q.to(torch.float8_e5m2), v)


def test_it_gives_lse_0_for_an_empty_row() -> None:
    q, k, v = blocks()
    bias = torch.full((5, 5), -torch.inf)
    assert flash._FORWARD is not None
    _, lse = flash._FORWARD(q, k, v, 0.0, False, attn_mask=bias)
    assert (lse == 0).all()
    out, lse = flash.forward(q, k, v, torch.zeros(5, 5, dtype=torch.bool), 1.0)
    assert (lse == -torch.inf).all()
    assert not out.any()


def test_it_ignores_the_last_stride() -> None:
    q, k, v = blocks()
    stepped = q.repeat_interleave(2, 3)[..., ::2]
    assert flash._FORWARD is not None
    wrong = flash._FORWARD(stepped, k, v)[0]
    assert not torch.allclose(wrong, flash._FORWARD(q, k, v)[0])


def test_both_products_agree() -> None:
    q, k, v = blocks()
    mask = torch.rand(5, 5, generator=torch.Generator().manual_seed(1)) < 0.5
    mask[2] = False
    grad = torch.ones_like(q)
    out, lse = product.forward(q, k, v, mask, 0.3)
    for a, b in zip((out, lse), flash.forward(q, k, v, mask, 0.3), strict=True):
        torch.testing.assert_close(a, b)
    safe = lse.masked_fill(lse.isinf(), torch.inf)
    fused = flash.backward(grad, q, k, v, out, safe, mask, 0.3)
    plain = product.backward(grad, None, q, k, v, out, safe, mask, 0.3)
    for a, b in zip(plain, fused, strict=True):
        torch.testing.assert_close(a, b)
