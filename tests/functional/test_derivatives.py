"""Which derivatives exist: first ones in tiles, all of them in the reference; and autocast."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from eyeline import (
    Causal,
    Full,
    Pattern,
    Tokens,
    Window,
    attention,
    attention_weights,
    attention_with_lse,
    sliding_window,
    sparse_transformer,
    streaming,
)  # fmt: skip
from eyeline.errors import NotSupported
from eyeline.scores import Bias, Factor, Product, ScoreMod, Softcap, Step, Values

PATTERNS = [
    Full(), Causal(), streaming(3, 1), sparse_transformer(3), Causal() & ~Window(0, 0),
    Causal(),
]  # fmt: skip
PADDED = Tokens(torch.tensor([[-1, -1, 0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 5, 6]]))
PACKED = Tokens.packed([3, 4])


def tensors(length: int = 7, width: int = 3) -> list[Tensor]:
    generator = torch.Generator().manual_seed(2)
    return [
        torch.randn(
            2, heads, length, width, generator=generator, dtype=torch.float64
        ).requires_grad_()
        for heads in (4, 2, 2)
    ]


def tokens_of(pattern: Pattern) -> Tokens:
    return PACKED if pattern == PATTERNS[-1] else PADDED


class Everything(ScoreMod):
    """One of each kind of step, all of them trained."""

    def __init__(self, bias: Tensor, vector: Tensor) -> None:
        self.bias, self.vector = bias, vector

    def steps(self) -> tuple[Step, ...]:
        def line(distance: Tensor) -> Tensor:
            return self.bias[:, distance.clamp(-2, 2) + 2]

        def vectors(distance: Tensor) -> Tensor:
            return self.vector[:, distance.clamp(-2, 2) + 2]

        reach = (-2, 2)
        return (
            Bias(line, reach), Product(vectors, reach), Softcap(2.0), Factor(line, reach),
            Values(vectors, reach),
        )  # fmt: skip


def learned() -> list[Tensor]:
    generator = torch.Generator().manual_seed(4)
    return [
        torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()
        for shape in ((4, 5), (1, 5, 3))
    ]


def called(
    pattern: Pattern, backend: str, *, lse: bool = False
) -> Callable[..., tuple[Tensor, ...]]:
    tokens = tokens_of(pattern)

    def call(q: Tensor, k: Tensor, v: Tensor, *tables: Tensor) -> tuple[Tensor, ...]:
        mod = Everything(*tables) if tables else None
        door = attention_with_lse if lse else attention
        found = door(
            q, k, v, pattern, score_mod=mod, q_tokens=tokens, k_tokens=tokens, backend=backend
        )
        if not lse:
            return (found,)  # type: ignore[return-value]
        return found[0], found[1].masked_fill(found[1].isinf(), 0.0)

    return call


@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
@pytest.mark.parametrize("backend", ["tiles", "reference"])
def test_first_derivatives(pattern: Pattern, backend: str) -> None:
    """Of the output and of the log-sum-exp at once; every entry in one case, else at random."""
    fast = pattern != PATTERNS[2]
    call = called(pattern, backend, lse=True)
    assert torch.autograd.gradcheck(call, tensors(), fast_mode=fast)


@pytest.mark.parametrize("pattern", [PATTERNS[2], PATTERNS[3]], ids=str)
@pytest.mark.parametrize("backend", ["tiles", "reference"])
def test_first_derivatives_of_changed_scores(pattern: Pattern, backend: str) -> None:
    inputs = [*tensors(), *learned()]
    assert torch.autograd.gradcheck(called(pattern, backend, lse=True), inputs, fast_mode=True)


@pytest.mark.parametrize("pattern", PATTERNS[2:], ids=str)
def test_second_derivatives_of_the_reference(pattern: Pattern) -> None:
    inputs = [x[:1, ..., :2].detach().requires_grad_() for x in tensors()]
    pads = Tokens(PADDED.positions[0]) if tokens_of(pattern) is PADDED else PACKED

    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attention(q, k, v, pattern, q_tokens=pads, k_tokens=pads, backend="reference")

    assert torch.autograd.gradgradcheck(call, inputs, fast_mode=True)


def test_second_derivatives_of_changed_scores() -> None:
    few = [x[:1, :, :4].detach().requires_grad_() for x in tensors()]

    def call(*x: Tensor) -> Tensor:
        return attention(*x[:3], Causal(), score_mod=Everything(*x[3:]), backend="reference")

    assert torch.autograd.gradgradcheck(call, [*few, *learned()], fast_mode=True)


@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
def test_forward_mode_equals_backward_mode(pattern: Pattern) -> None:
    """⟨u, J t⟩ = ⟨Jᵀ u, t⟩ for a random direction t of the inputs and u of the output."""
    inputs, call = [*tensors(), *learned()], called(pattern, "reference")
    tangents = tuple(torch.randn_like(x) for x in inputs)
    (out,), (moved,) = torch.func.jvp(call, tuple(inputs), tangents)
    above = torch.randn_like(out)
    back = torch.autograd.grad(call(*inputs)[0], inputs, above)
    both = sum((g * t).sum() for g, t in zip(back, tangents, strict=True))
    torch.testing.assert_close((above * moved).sum(), both)


def test_the_hessian_of_the_reference_is_symmetric() -> None:
    q, k, v = (x[:1, :1, :3].detach() for x in tensors())

    def loss(x: Tensor) -> Tensor:
        return attention(x, k, v, Causal(), backend="reference").square().sum()

    hessian = torch.func.hessian(loss)(q).view(9, 9)
    torch.testing.assert_close(hessian, hessian.T)
    assert hessian[3:].any()


def test_vmap_over_the_reference() -> None:
    q, k, v = (x.detach() for x in tensors())
    many = torch.stack([q, 2 * q, -q])

    def call(x: Tensor) -> Tensor:
        return attention(x, k, v, streaming(3, 1), backend="reference")

    torch.testing.assert_close(torch.vmap(call)(many), torch.stack([call(x) for x in many]))

    def slope(x: Tensor) -> Tensor:
        return torch.func.grad(lambda y: call(y).square().sum())(x)

    torch.testing.assert_close(torch.vmap(slope)(many), torch.stack([slope(x) for x in many]))


def test_second_derivatives_of_tiles_are_refused_and_never_left_out() -> None:
    inputs = tensors()
    out = attention(*inputs, Causal(), backend="tiles")
    (first,) = torch.autograd.grad(out.square().sum(), inputs[:1], create_graph=True)
    words = 'has first derivatives only.*backend="reference"'
    again: list[Callable[[], object]] = [
        lambda: torch.autograd.grad(first.sum(), inputs[0], retain_graph=True),
        lambda: torch.autograd.grad(first.sum(), inputs, retain_graph=True, allow_unused=True),
        lambda: first.sum().backward(retain_graph=True),
        lambda: torch.autograd.gradgradcheck(called(Causal(), "tiles"), inputs, fast_mode=True),
    ]
    for differentiate in again:
        with pytest.raises(NotSupported, match=words):
            differentiate()


def test_second_derivatives_of_a_trained_table_are_refused() -> None:
    inputs, tables = tensors(), learned()
    mod = Everything(*tables)
    out = attention(*inputs, Causal(), score_mod=mod, backend="tiles")
    (first,) = torch.autograd.grad(out.square().sum(), tables[:1], create_graph=True)
    with pytest.raises(NotSupported, match="first derivatives only"):
        torch.autograd.grad(first.sum(), tables, allow_unused=True)


def test_first_derivatives_may_keep_their_graph() -> None:
    inputs = tensors()
    found = []
    for create_graph in (False, True):
        out = attention(*inputs, Causal(), backend="tiles")
        found.append(torch.autograd.grad(out.square().sum(), inputs, create_graph=create_graph))
    for plain, kept in zip(*found, strict=True):
        assert torch.equal(plain, kept)
        assert kept.requires_grad


@pytest.mark.parametrize("transform", ["jvp", "vmap", "grad"])
def test_tiles_refuse_the_transforms_of_functorch(transform: str) -> None:
    q, k, v = (x.detach() for x in tensors())

    def call(x: Tensor) -> Tensor:
        return attention(x, k, v, Causal(), backend="tiles").sum()

    run: dict[str, Callable[[], object]] = {
        "jvp": lambda: torch.func.jvp(call, (q,), (q,)),
        "vmap": lambda: torch.vmap(call)(torch.stack([q, q])),
        "grad": lambda: torch.func.grad(call)(q),
    }
    with pytest.raises(RuntimeError):
        run[transform]()


def test_only_the_gradients_asked_for() -> None:
    for wanted in range(3):
        inputs = [x.detach() for x in tensors()]
        inputs[wanted].requires_grad_()
        every = [x.detach().requires_grad_() for x in inputs]
        found = attention(*inputs, streaming(3, 1), backend="tiles").square().sum()
        right = attention(*every, streaming(3, 1), backend="reference").square().sum()
        (ours,) = torch.autograd.grad(found, inputs[wanted])
        torch.testing.assert_close(ours, torch.autograd.grad(right, every[wanted])[0])


@pytest.mark.parametrize("backend", ["tiles", "reference"])
def test_gradients_through_the_lse_alone(backend: str) -> None:
    """d lse / d score = weight, so Σ c·lse has the gradient scale · Σ_j c·weight·key."""
    q, k, v = tensors(31)
    _, lse = attention_with_lse(q, k, v, sliding_window(5), backend=backend)
    above = torch.linspace(-1, 1, lse.numel(), dtype=lse.dtype).view_as(lse)
    grads = torch.autograd.grad((lse * above).sum(), (q, k, v), allow_unused=True)
    weight = attention_weights(q, k, sliding_window(5)) * above[..., None] * 3**-0.5
    torch.testing.assert_close(grads[0], weight @ k.repeat_interleave(2, 1))
    torch.testing.assert_close(grads[1], (weight.mT @ q).unflatten(1, (2, 2)).sum(2))
    assert grads[2] is None or not grads[2].any()


@pytest.mark.parametrize("backend", ["auto", "tiles", "reference", "sdpa"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(backend: str, dtype: torch.dtype) -> None:
    """The inputs are rounded and no more: as near to float64 as SDPA under autocast is."""
    wide = [3 * x.detach() for x in tensors(131, 8)]
    inputs = [x.float().requires_grad_() for x in wide]
    exact = attention(*wide, sliding_window(17), backend="reference")
    mask = torch.ones(131, 131).bool().tril().triu(-16)
    with torch.autocast("cpu", dtype):
        out = attention(*inputs, sliding_window(17), backend=backend)
        theirs = torch.nn.functional.scaled_dot_product_attention(
            *inputs, attn_mask=mask, enable_gqa=True
        )
    assert out.dtype == dtype
    allowed = 2 * (theirs.double() - exact).abs().max() + torch.finfo(dtype).eps
    assert (out.double() - exact).abs().max() <= allowed
    grads = torch.autograd.grad(out.float().square().sum(), inputs)
    assert all(g.dtype == torch.float32 and g.isfinite().all() for g in grads)


@pytest.mark.parametrize("backend", ["tiles", "reference"])
def test_autocast_with_learned_terms_and_dropout(backend: str) -> None:
    inputs = [x.detach().float().requires_grad_() for x in (*tensors(67), *learned())]
    with torch.autocast("cpu", torch.bfloat16):
        torch.manual_seed(0)
        out = attention(
            *inputs[:3], streaming(9, 2), score_mod=Everything(*inputs[3:]), dropout_p=0.2,
            backend=backend,
        )  # fmt: skip
    assert out.dtype == torch.bfloat16
    torch.manual_seed(0)
    exact = attention(
        *(x.double() for x in inputs[:3]), streaming(9, 2), dropout_p=0.2, backend="reference",
        score_mod=Everything(*(x.double() for x in inputs[3:])),
    )  # fmt: skip
    assert (out.double() - exact).abs().max() <= 0.03 * exact.abs().max()
    grads = torch.autograd.grad(out.float().sum(), inputs)
    assert all(g.dtype == torch.float32 and g.isfinite().all() for g in grads)
