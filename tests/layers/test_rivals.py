"""Convolution and recurrent layers: their formulas by position, pads, documents, the future."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from eyeline import Tokens
from eyeline.errors import InvalidArgument, NotSupported
from eyeline.layers.rivals import Convolution, Recurrent
from layers.dense import drawn, random

B, L, WIDTH = 2, 13, 5
CELLS = ["elman", "gru", "lstm"]


def same(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)


def convolution(kernel: int = 3, dilation: int = 1, causal: bool = False) -> Convolution:
    ours = Convolution(WIDTH, kernel, dilation=dilation, causal=causal).double()
    drawn(ours)
    return ours


def taps(ours: Convolution, x: Tensor, at: list[int], documents: list[int] | None) -> Tensor:
    """One row (L, width), token by token and tap by tap."""
    kernel, dilation = ours.conv.kernel_size[0], ours.conv.dilation[0]
    centre = kernel - 1 if ours.causal else kernel // 2
    rows = []
    for i, own in enumerate(at):
        total = ours.conv.bias * 1
        for t in range(kernel):
            wanted = own + (t - centre) * dilation
            for j, other in enumerate(at):
                near = documents is None or documents[i] == documents[j]
                if other == wanted and other >= 0 and near:
                    total = total + ours.conv.weight[:, :, t] @ x[j]
        rows.append(total if own >= 0 else 0 * total)
    return torch.stack(rows)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("kernel", "dilation"), [(1, 1), (2, 1), (3, 1), (4, 3), (5, 2), (7, 5)])
def test_convolution(kernel: int, dilation: int, causal: bool) -> None:
    ours = convolution(kernel, dilation, causal)
    x = random(B, L, WIDTH).requires_grad_()
    got, want = ours(x), torch.stack([taps(ours, row, list(range(L)), None) for row in x])
    same(got, want)
    loss, inputs = random(B, L, WIDTH, seed=9), [x, *ours.parameters()]
    grads = (torch.autograd.grad((y * loss).sum(), inputs) for y in (got, want))
    for own, other in zip(*grads, strict=True):
        same(own, other)


@settings(max_examples=40)
@given(st.data())
def test_convolution_is_by_position(data: st.DataObject) -> None:
    ours = convolution(
        data.draw(st.integers(1, 4)), data.draw(st.integers(1, 3)), data.draw(st.booleans())
    )
    at = data.draw(st.lists(st.integers(0, 16), min_size=1, max_size=9, unique=True))
    at = data.draw(st.permutations(at + [-1] * data.draw(st.integers(0, 2))))
    one = st.lists(st.integers(0, 1), min_size=len(at), max_size=len(at))
    documents = data.draw(st.none() | one)
    x = random(1, len(at), WIDTH)
    same(ours(x, q_tokens=Tokens.listed(at, documents))[0], taps(ours, x[0], at, documents))


@pytest.mark.parametrize("layer", [
    convolution(), convolution(4, 2, causal=True),
    *(drawn(Recurrent(WIDTH, cell=cell, layers=2).double()) for cell in CELLS),  # type: ignore[arg-type]
])  # fmt: skip
@pytest.mark.parametrize("side", ["left", "right", "middle"])
def test_pads_never_leak(layer: nn.Module, side: str) -> None:
    tokens = Tokens.padded([L, 6], "left" if side == "middle" else side)
    if side == "middle":
        places = [[*range(L)], [0, 1, -1, 2, 3, -1, -1, 4, 5, -1, -1, -1, -1]]
        tokens = Tokens(torch.tensor(places))
    real = tokens.positions[1] >= 0
    x = random(B, L, WIDTH)
    clean = layer(x, q_tokens=tokens)
    x[1][~real] = torch.nan
    x.requires_grad_()
    out = layer(x, q_tokens=tokens)
    assert torch.equal(out, clean)
    for grad in torch.autograd.grad(out.sum(), list(layer.parameters()), retain_graph=True):
        assert grad.isfinite().all()
    same(out[:1], layer(x[:1]))
    same(out[1:, real], layer(x[1:, real]))
    assert not out[1][~real].any()
    grad = torch.autograd.grad(out.square().sum(), x)[0]
    assert not grad[1][~real].any() and grad[1][real].all()


@pytest.mark.parametrize("cell", CELLS)
def test_recurrent_step_by_step(cell: str) -> None:
    ours = Recurrent(WIDTH, cell=cell)  # type: ignore[arg-type]
    drawn(ours.double())
    x, order = random(1, 5, WIDTH), [3, 0, 4, 1, 2]
    kinds = {"elman": nn.RNNCell, "gru": nn.GRUCell, "lstm": nn.LSTMCell}
    step = kinds[cell](WIDTH, WIDTH).double()
    step.load_state_dict({k.removesuffix("_l0"): v for k, v in ours.cell.state_dict().items()})
    state, rows = None, []
    for slot in (1, 3, 4, 0, 2):  # by position
        state = step(x[:, slot], state)
        rows.append(state[0] if cell == "lstm" else state)
    want = torch.stack([rows[at] for at in order], 1)
    same(ours(x, q_tokens=Tokens.listed(order)), want)


@pytest.mark.parametrize("layer", [
    convolution(3, 2, causal=True), Recurrent(WIDTH, cell="lstm").double(),
])  # fmt: skip
def test_the_past_does_not_know_the_future(layer: nn.Module) -> None:
    assert layer.causality == "functional"
    x = random(B, L, WIDTH)
    for last in range(L):
        changed = x.clone()
        changed[:, last + 1 :] = 1e3
        assert torch.equal(layer(x)[:, : last + 1], layer(changed)[:, : last + 1])


def test_reach() -> None:
    """With dilations 1, 2, 4 three layers of kernel 2 reach 7 tokens back, without 3."""
    for dilations, reach in (((1, 2, 4), 7), ((1, 1, 1), 3)):
        x = random(1, L, WIDTH).requires_grad_()
        y = x
        for dilation in dilations:
            y = convolution(2, dilation, causal=True)(y)
        grad = torch.autograd.grad(y[0, -1].sum(), x)[0][0]
        assert grad.any(-1).tolist() == [i >= L - 1 - reach for i in range(L)]


def test_empty_and_refusals() -> None:
    for layer in (Recurrent(WIDTH), Convolution(WIDTH, 3)):
        assert layer(torch.zeros(2, 0, WIDTH)).shape == (2, 0, WIDTH)
        with pytest.raises(InvalidArgument, match="batch first"):
            layer(torch.zeros(2, 3, WIDTH + 1))
        with pytest.raises(InvalidArgument, match="q_tokens has shape"):
            layer(torch.zeros(2, 3, WIDTH), q_tokens=Tokens.arange(0, 4))
        nobody = Tokens.padded([0, 0], length=4)
        assert not layer(torch.ones(2, 4, WIDTH), q_tokens=nobody).any()
    with pytest.raises(NotSupported, match="one document to the next"):
        Recurrent(WIDTH)(torch.zeros(1, 4, WIDTH), q_tokens=Tokens.packed([2, 2]))
    with pytest.raises(InvalidArgument, match="elman, gru, lstm"):
        Recurrent(WIDTH, cell="tree")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="kernel"):
        Convolution(WIDTH, 0)
