"""Linear attention with decay against its recurrence, token by token."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from eyeline import Tokens
from eyeline.errors import InvalidArgument, NotSupported
from eyeline.functional import (
    decayed_linear_attention,
    decayed_linear_attention_with_state,
    linear_attention,
)
from eyeline.testing.kernel import largest_tensor
from eyeline.tokens import NOBODY

B, H, HK, E, EV = 2, 6, 3, 5, 7
LENGTHS = [1, 2, 63, 64, 65, 131, 200]


def drawn(length: int, *, seed: int = 0) -> list[Tensor]:
    """Positive queries and keys, so that a normaliser stays away from 0."""
    generator = torch.Generator().manual_seed(seed)
    shapes = ((H, E), (HK, E), (HK, EV))
    q, k, v = (
        torch.randn(B, heads, length, width, generator=generator, dtype=torch.float64)
        for heads, width in shapes
    )
    return [q.abs().requires_grad_(), k.abs().requires_grad_(), v.requires_grad_()]


def gates(kind: str, length: int) -> Tensor | None:
    generator = torch.Generator().manual_seed(1)
    if kind == "none":
        return None
    if kind == "a number a head":
        return -torch.rand(HK, generator=generator, dtype=torch.float64)
    gate = -torch.rand(B, HK, length, generator=generator, dtype=torch.float64)
    if kind == "closed":  # some forget all, some nearly all, some nothing, side by side
        choice = torch.randint(0, 4, gate.shape, generator=generator)
        for number, log in ((0, -torch.inf), (1, -300.0), (2, 0.0)):
            gate[choice == number] = log
    return gate


KINDS = ["none", "a number a head", "gates", "closed"]


def step_by_step(
    given: list[Tensor],
    log_decay: Tensor | None,
    *,
    normalize: bool,
    tokens: Tokens | None = None,
    state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The definition, row by row and token by token."""
    query, key, value = given
    length, width = query.shape[2], value.shape[3]
    positions, documents = torch.zeros(B, length), torch.zeros(B, length)
    if tokens is not None:
        positions = tokens.positions.broadcast_to(B, length)
        if tokens.documents is not None:
            documents = tokens.documents.broadcast_to(B, length)
    outs, states = [], []
    for b in range(B):
        zeros = value.new_zeros(HK, E, width + normalize)
        s, before, rows = (zeros if state is None else state[b]), None, []
        for t in range(length):
            if int(positions[b, t]) == NOBODY:
                rows.append(value.new_zeros(H, width))
                continue
            document = int(documents[b, t])
            if before is not None and document != before:
                s = zeros
            before = document
            a = torch.ones(HK, dtype=value.dtype)
            if log_decay is not None:
                a = (log_decay if log_decay.dim() == 1 else log_decay[b, :, t]).exp()
            v = value[b, :, t]
            v = torch.cat((v, torch.ones_like(v[:, :1])), 1) if normalize else v
            s = a[:, None, None] * s + key[b, :, t, :, None] * v[:, None, :]
            out = torch.einsum("he,hev->hv", query[b, :, t], s.repeat_interleave(H // HK, 0))
            rows.append(out[:, :-1] / out[:, -1:] if normalize else out)
        outs.append(torch.stack(rows, 1))
        states.append(s)
    return torch.stack(outs), torch.stack(states)


def assert_alike(
    given: list[Tensor], log_decay: Tensor | None, *, normalize: bool, **rest: object
) -> None:
    """Values and all gradients, those of decays and of the first state too."""
    state = torch.rand(B, HK, E, EV + normalize, dtype=torch.float64).requires_grad_()
    inputs = [*given, state]
    if log_decay is not None:
        inputs.append(log_decay.requires_grad_())
    ours = decayed_linear_attention_with_state(
        *given, log_decay=log_decay, normalize=normalize, state=state, **rest
    )
    due = step_by_step(given, log_decay, normalize=normalize, state=state, **rest)
    for own, right in zip(ours, due, strict=True):
        torch.testing.assert_close(own, right, rtol=1e-10, atol=1e-10)
    above = [torch.randn_like(x) for x in due]
    slopes = [
        torch.autograd.grad(sum((x * y).sum() for x, y in zip(both, above, strict=True)), inputs)
        for both in (ours, due)
    ]
    for own, right in zip(*slopes, strict=True):
        torch.testing.assert_close(own, right, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("normalize", [False, True], ids=["plain", "normalised"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", LENGTHS)
def test_equals_the_recurrence(length: int, kind: str, normalize: bool) -> None:
    assert_alike(drawn(length), gates(kind, length), normalize=normalize)


def _tokens(kind: str, length: int) -> Tokens:
    slots = torch.arange(length)
    if kind == "left pads":
        return Tokens.padded([length, length - 40], length=length)
    if kind == "holes":
        return Tokens(torch.where((slots % 5 == 2) | (slots // 16 == 4), NOBODY, slots))
    if kind == "packed":
        return Tokens.packed([3, 60, 1, 1, length - 70], length=length)
    documents = torch.stack((slots // 37, slots // 64))
    positions = slots.repeat(2, 1)
    positions[0, 10:90], positions[1, -5:] = NOBODY, NOBODY
    return Tokens(positions, documents)


@pytest.mark.parametrize("normalize", [False, True], ids=["plain", "normalised"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("where", ["left pads", "holes", "packed", "packed with holes"])
def test_padding_and_documents(where: str, kind: str, normalize: bool) -> None:
    length = 150
    tokens = _tokens(where, length)
    assert_alike(drawn(length), gates(kind, length), normalize=normalize, tokens=tokens)


def test_what_stands_in_padding_is_not_read() -> None:
    tokens = _tokens("packed with holes", 150)
    given, gate = drawn(150), gates("gates", 150)
    clean = decayed_linear_attention(*given, log_decay=gate, tokens=tokens)
    padding = (tokens.positions == NOBODY)[:, None, :, None]
    spoiled = [x.detach().masked_fill(padding, torch.nan) for x in given[1:]]
    again = decayed_linear_attention(given[0], *spoiled, log_decay=gate, tokens=tokens)
    assert torch.equal(clean, again)
    assert not clean.masked_select(padding).any()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "sizes", [[1] * 70, [64, 6], [3, 67], [69, 1]], ids=["ones", "a", "b", "c"]
)
def test_goes_on_from_a_state(sizes: list[int], kind: str) -> None:
    given, gate = [x.detach() for x in drawn(70)], gates(kind, 70)
    whole, last = decayed_linear_attention_with_state(*given, log_decay=gate, normalize=True)
    state, outs, start = None, [], 0
    for size in sizes:
        cut = [x[:, :, start : start + size] for x in given]
        own = gate if gate is None or gate.dim() == 1 else gate[:, :, start : start + size]
        out, state = decayed_linear_attention_with_state(
            *cut, log_decay=own, normalize=True, state=state
        )
        outs.append(out)
        start += size
    torch.testing.assert_close(torch.cat(outs, 2), whole, rtol=0, atol=1e-12)
    torch.testing.assert_close(state, last, rtol=0, atol=1e-12)


def test_pieces_join(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eyeline.budgets.budgets.recurred", 1)
    assert_alike(
        drawn(200), gates("gates", 200), normalize=True, tokens=Tokens.packed([90, 100], length=200)
    )


def test_without_decay_it_is_linear_attention() -> None:
    query, key, value = drawn(150)
    ours = decayed_linear_attention(
        torch.nn.functional.elu(query) + 1, torch.nn.functional.elu(key) + 1, value, normalize=True
    )
    due = linear_attention(query, key, value, causal=True)
    torch.testing.assert_close(ours, due, rtol=0, atol=1e-12)


def test_no_decay_is_ever_divided_by() -> None:
    """A strong decay beside none: sums of logarithms, and differences of none, keep the small."""
    gate = torch.zeros(B, HK, 128)
    gate[:, :, ::7] = -1e4
    gate[:, :, 1::7] = -1e-3
    given = [x.detach().float() for x in drawn(128)]
    ours = decayed_linear_attention(*given, log_decay=gate)
    exact = decayed_linear_attention(*(x.double() for x in given), log_decay=gate.double())
    assert (ours.double() - exact).abs().max() < 2e-5
    leaf = gate.requires_grad_()
    decayed_linear_attention(*given, log_decay=leaf).sum().backward()
    assert leaf.grad is not None and leaf.grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_smaller_types(dtype: torch.dtype) -> None:
    given = [x.detach().to(dtype) for x in drawn(300)]
    gate = gates("gates", 300)
    assert gate is not None
    ours, state = decayed_linear_attention_with_state(*given, log_decay=gate, normalize=True)
    exact = decayed_linear_attention(*(x.double() for x in given), log_decay=gate, normalize=True)
    assert ours.dtype == dtype and state.dtype == torch.float32
    limit = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}[dtype]
    assert (ours.double() - exact).abs().max() < limit


def test_second_derivatives() -> None:
    given = [x[:1, :, :3, :2].detach().requires_grad_() for x in drawn(3)]
    gate = -torch.rand(1, HK, 3, dtype=torch.float64)

    def call(*x: Tensor) -> Tensor:
        return decayed_linear_attention(*x[:3], log_decay=x[3], normalize=True)

    assert torch.autograd.gradgradcheck(call, (*given, gate.requires_grad_()))


def test_memory_is_linear() -> None:
    """No tensor is larger than some times the inputs."""
    length = 4096
    given = [torch.rand(1, 2, length, 16).requires_grad_() for _ in range(3)]
    gate = -torch.rand(1, 2, length)

    def run() -> None:
        decayed_linear_attention(*given, log_decay=gate).sum().backward()

    assert largest_tensor(run) <= 1 << 20 < length * length / 8


@pytest.mark.parametrize("length", [0, 3])
def test_no_tokens_and_padding_alone(length: int) -> None:
    given = [x[:, :, :length] for x in drawn(3)]
    tokens = Tokens(torch.full((length,), NOBODY))
    state = torch.rand(B, HK, E, EV, dtype=torch.float64)
    out, after = decayed_linear_attention_with_state(*given, tokens=tokens, state=state)
    assert out.shape == (B, H, length, EV) and not out.any()
    assert torch.equal(after, state)


def test_refusals() -> None:
    query, key, value = (x.detach() for x in drawn(4))
    with pytest.raises(InvalidArgument, match=r"log_decay reaches 0\.5"):
        decayed_linear_attention(query, key, value, log_decay=torch.full((HK,), 0.5))
    with pytest.raises(InvalidArgument, match=r"log_decay \(2,\): it is \(3,\)"):
        decayed_linear_attention(query, key, value, log_decay=torch.zeros(2))
    with pytest.raises(InvalidArgument, match="3 queries and 4 keys"):
        decayed_linear_attention(query[:, :, 1:], key, value)
    with pytest.raises(InvalidArgument, match=r"state is .*float64 \(2, 3, 5, 8\)"):
        decayed_linear_attention(query, key, value, normalize=True, state=value.new_zeros(1))
    backwards = Tokens(torch.tensor([3, 2, 1, 0]))
    with pytest.raises(NotSupported, match="one after another"):
        decayed_linear_attention(query, key, value, tokens=backwards)
