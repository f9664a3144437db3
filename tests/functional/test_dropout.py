"""Dropout of weights: seeded, the same in every kernel and pass, and right in expectation."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from eyeline import (
    Causal,
    Full,
    Pattern,
    PerHead,
    Sinks,
    Tokens,
    Window,
    attention,
    attention_weights,
    dense_mask,
    explain,
    longformer,
    sliding_window,
    sparse_transformer,
    streaming,
)  # fmt: skip
from eyeline.errors import InvalidArgument, NotSupported
from eyeline.scores import Bias, ScoreMod, Softcap, Step

N, HEADS, KEY_HEADS = 67, 4, 2
PADDED = Tokens.padded([N, 41], side="left")


def tensors(length: int = N, width: int = 8) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    return tuple(
        torch.randn(2, heads, length, width, generator=generator, dtype=torch.float64)
        for heads in (HEADS, KEY_HEADS, KEY_HEADS)
    )  # type: ignore[return-value]


def seeded(seed: int, *args: object, **kwargs: object) -> Tensor:
    torch.manual_seed(seed)
    return attention(*args, **kwargs)  # type: ignore[arg-type]


def kept(seed: int, p: float, length: int = N, batch: int = 2, heads: int = 3) -> Tensor:
    """What each weight is multiplied by, (B, H, L, S): uniform weights, and a value that is 1."""
    q = torch.zeros(batch, heads, length, 4, dtype=torch.float64)
    v = torch.eye(length, dtype=torch.float64).expand(batch, heads, length, length)
    return length * seeded(seed, q, q, v, dropout_p=p, backend="reference")


PATTERNS: list[Pattern] = [
    Full(), Causal(), sliding_window(9), streaming(9, 2), Window(7, 3), sparse_transformer(8),
    longformer(5, [0, 30]), Causal() & ~Window(0, 0),
    PerHead([Causal(), Sinks(0), sliding_window(5), Full()]),
]  # fmt: skip


@pytest.mark.parametrize("backend", ["auto", "tiles", "reference", "sdpa"])
def test_nothing_is_dropped_at_0(backend: str) -> None:
    q, k, v = tensors()
    state = torch.get_rng_state()
    right = attention(q, k, v, Causal(), backend=backend)
    assert torch.equal(attention(q, k, v, Causal(), dropout_p=0.0, backend=backend), right)
    assert torch.equal(torch.get_rng_state(), state), "a number was drawn for nothing"


@pytest.mark.parametrize("backend", ["auto", "tiles", "reference"])
def test_the_seed_says_what_is_dropped(backend: str) -> None:
    q, k, v = tensors()
    first, again = (seeded(11, q, k, v, Causal(), dropout_p=0.3, backend=backend) for _ in "ab")
    assert torch.equal(first, again)
    assert not torch.allclose(first, attention(q, k, v, Causal(), dropout_p=0.3, backend=backend))
    assert not torch.allclose(first, seeded(12, q, k, v, Causal(), dropout_p=0.3, backend=backend))


@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
@pytest.mark.parametrize("tokens", [None, PADDED], ids=["plain", "left pads"])
def test_every_kernel_drops_the_same(pattern: Pattern, tokens: Tokens | None) -> None:
    inputs = [x.requires_grad_() for x in tensors()]
    found = []
    for backend in ("tiles", "reference"):
        out = seeded(
            3, *inputs, pattern, dropout_p=0.4, backend=backend, q_tokens=tokens, k_tokens=tokens
        )
        above = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)
        found.append((out, *torch.autograd.grad((out * above).sum(), inputs)))
    for ours, right in zip(*found, strict=True):
        torch.testing.assert_close(ours, right)


@pytest.mark.parametrize("budget", [20_000, 1 << 20])
def test_how_the_work_is_cut_does_not_matter(budget: int, monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = tensors(389)
    right = seeded(3, q, k, v, streaming(37, 3), dropout_p=0.4, backend="reference")
    monkeypatch.setattr("eyeline.budgets.budgets.piece", budget)
    found = seeded(3, q, k, v, streaming(37, 3), dropout_p=0.4, backend="tiles")
    torch.testing.assert_close(found, right)


def test_by_hand() -> None:
    """out = Σ m · w · v, with the m that uniform weights show, at every pair of every head."""
    q, k, v = tensors()
    m = kept(9, 0.25, heads=HEADS)
    weight = attention_weights(q, k, sliding_window(9))
    right = (m * weight) @ v.repeat_interleave(2, 1)
    found = seeded(9, q, k, v, sliding_window(9), dropout_p=0.25)
    torch.testing.assert_close(found, right)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_a_share_of_p_is_dropped_and_the_rest_is_scaled(p: float) -> None:
    m = kept(1, p, length=211)
    dropped = m == 0
    torch.testing.assert_close(m[~dropped], torch.full_like(m[~dropped], 1 / (1 - p)))
    for axes in ((0, 1, 2, 3), (2, 3), (1, 2, 3)):  # in all, in each head and in each row
        count = dropped.sum(axes).double()
        n = m.numel() / count.numel()
        assert ((count - p * n).abs() <= 5 * (n * p * (1 - p)) ** 0.5).all()
    for axis in (2, 3):  # for each key and each query: 1,266 numbers, so 5.5 deviations
        count = dropped.sum(axis).double()
        assert ((count - p * 211).abs() <= 5.5 * (211 * p * (1 - p)) ** 0.5 + 1).all()


def test_rows_heads_queries_and_keys_differ_from_each_other() -> None:
    """Two lines of the same tensor agree in half of their places at p = 0.5, no more."""
    m = (kept(2, 0.5, length=211) == 0).double() * 2 - 1
    for moved in (m.roll(1, 0), m.roll(1, 1), m.roll(1, 2), m.roll(1, 3), m.roll(7, 2), m.mT):
        assert abs(float((m * moved).mean())) <= 5 / m.numel() ** 0.5
    # The sum of two hashes: the product of four corners would show it, if it were not mixed.
    corners = m * m.roll(1, 2) * m.roll(1, 3) * m.roll((1, 1), (2, 3))
    assert abs(float(corners.mean())) <= 5 / m.numel() ** 0.5


@pytest.mark.parametrize("backend", ["tiles", "reference"])
def test_the_expectation_is_attention_without_it(backend: str) -> None:
    q, k, v = tensors(31)
    p, runs, pattern = 0.3, 300, sliding_window(7)
    right = attention(q, k, v, pattern)
    torch.manual_seed(0)
    outs = torch.stack(
        [attention(q, k, v, pattern, dropout_p=p, backend=backend) for _ in range(runs)]
    )
    # Var out = p / (1 - p) · Σ_j (w_j v_j)²; 1,984 numbers, so five deviations of their mean.
    weight = attention_weights(q, k, pattern)
    deviation = (p / (1 - p) * (weight**2 @ v.repeat_interleave(2, 1) ** 2)).sqrt()
    error = (outs.mean(0) - right).abs()
    assert (error <= 5 * deviation / runs**0.5).all()
    torch.testing.assert_close(outs.var(0).mean(), (deviation**2).mean(), rtol=0.1, atol=0)


@pytest.mark.parametrize("backend", ["tiles", "reference"])
@pytest.mark.parametrize("pattern", [sliding_window(3), Causal() & ~Window(0, 0)], ids=str)
def test_forward_and_backward_drop_the_same(backend: str, pattern: Pattern) -> None:
    inputs = [x.requires_grad_() for x in tensors(7, 3)]

    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return seeded(4, q, k, v, pattern, dropout_p=0.4, backend=backend)

    assert torch.autograd.gradcheck(call, inputs, fast_mode=True)


class BiasAndCap(ScoreMod):
    """A bias for each distance, then a softcap: both kinds of derivative."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(1)
        self.table = torch.randn(HEADS, 9, generator=generator, dtype=torch.float64)

    def steps(self) -> tuple[Step, ...]:
        return Bias(lambda d: self.table[:, d.clamp(-4, 4) + 4], (-4, 4)), Softcap(1.5)


@pytest.mark.parametrize("tokens", [None, PADDED], ids=["plain", "left pads"])
def test_with_changed_scores(tokens: Tokens | None) -> None:
    mod = BiasAndCap()
    mod.table.requires_grad_()
    inputs = [*(x.requires_grad_() for x in tensors()), mod.table]
    found = []
    for backend in ("tiles", "reference"):
        out = seeded(
            3, *inputs[:3], streaming(9, 2), score_mod=mod, dropout_p=0.4, backend=backend,
            q_tokens=tokens, k_tokens=tokens,
        )  # fmt: skip
        found.append((out, *torch.autograd.grad(out.square().sum(), inputs)))
    for ours, right in zip(*found, strict=True):
        torch.testing.assert_close(ours, right)


@pytest.mark.parametrize("key_heads", [4, 2, 1])
def test_heads_that_share_keys_drop_weights_of_their_own(key_heads: int) -> None:
    q, k, v = tensors()
    k, v = (x[:, :1].repeat(1, key_heads, 1, 1) for x in (k, v))
    found = seeded(8, q, k, v, Causal(), dropout_p=0.5)
    repeated = (x[:, :1].repeat(1, HEADS, 1, 1) for x in (k, v))
    torch.testing.assert_close(found, seeded(8, q, *repeated, Causal(), dropout_p=0.5))


@pytest.mark.parametrize("backend", ["tiles", "reference"])
@pytest.mark.parametrize("pattern", [Causal(), streaming(9, 2), sparse_transformer(8)], ids=str)
def test_the_past_does_not_move_when_the_future_does(backend: str, pattern: Pattern) -> None:
    q, k, v = tensors()
    for now in (0, 30, N - 2):
        moved = [x.clone() for x in (q, k, v)]
        for x in moved:
            x[:, :, now + 1 :] += 3.0
        before, after = (
            seeded(6, *each, pattern, dropout_p=0.4, backend=backend) for each in ((q, k, v), moved)
        )
        assert torch.equal(before[:, :, : now + 1], after[:, :, : now + 1])
        assert not torch.equal(before[:, :, now + 1 :], after[:, :, now + 1 :])


def test_who_looks_at_nobody_gets_0_and_pads_stay_out() -> None:
    inputs = [x.requires_grad_() for x in tensors()]
    pattern = Causal() & ~Window(0, 0)
    out = seeded(1, *inputs, pattern, dropout_p=0.4, q_tokens=PADDED, k_tokens=PADDED)
    empty = ~dense_mask(pattern, q_tokens=PADDED, k_tokens=PADDED).any(-1)
    assert not out.transpose(1, 2)[empty].any()
    grads = torch.autograd.grad(out.sum(), inputs)
    assert all(g.isfinite().all() for g in grads)
    assert not grads[2][1, :, : N - 41].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_other_types_drop_the_same(dtype: torch.dtype) -> None:
    q, k, v = (x.to(dtype) for x in tensors())
    right = seeded(3, *(x.double() for x in (q, k, v)), sliding_window(9), dropout_p=0.4)
    for backend in ("tiles", "reference"):
        found = seeded(3, q, k, v, sliding_window(9), dropout_p=0.4, backend=backend)
        tolerance = 4 * torch.finfo(dtype).eps * float(right.abs().max())
        assert float((found.double() - right).abs().max()) <= tolerance


@pytest.mark.parametrize("p", [-0.1, 1.0, 1.5, float("nan"), "0.1", True, None])
def test_what_is_no_probability_is_refused(p: object) -> None:
    with pytest.raises(InvalidArgument, match=r"dropout_p=.*a probability from 0 to below 1"):
        attention(*tensors(), dropout_p=p)  # type: ignore[arg-type]


@pytest.mark.parametrize("backend", ["decode", "sdpa", "flex"])
def test_kernels_that_cannot_drop_refuse(backend: str) -> None:
    q, k, v = (x[:, :, :5].float() for x in tensors())
    with pytest.raises(NotSupported, match=f"backend '{backend}' cannot serve"):
        attention(q, k, v, dropout_p=0.1, backend=backend)


def test_a_query_or_two_may_drop_too() -> None:
    q, k, v = tensors()
    found = seeded(3, q[:, :, -2:], k, v, Causal(), dropout_p=0.4)
    right = seeded(3, q[:, :, -2:], k, v, Causal(), dropout_p=0.4, backend="reference")
    torch.testing.assert_close(found, right)


def test_weights_are_returned_as_they_are_before_it() -> None:
    """attention_weights and explain take no dropout_p: what they say does not change by chance."""
    q, k, v = tensors()
    calls: list[Callable[..., object]] = [attention_weights, explain]
    for call, arguments in zip(calls, ((q, k), (q, k, v)), strict=True):
        with pytest.raises(TypeError, match="dropout_p"):
            call(*arguments, dropout_p=0.1)


def test_a_probability_next_to_1_leaves_nothing() -> None:
    """The threshold of a 32-bit hash must not wrap around."""
    x = torch.ones(1, 2, 31, 4)
    assert not attention(x, x, x, dropout_p=1 - 1e-12, backend="tiles").any()
