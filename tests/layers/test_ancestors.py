"""The ancestors against their papers' formulas, step by step and with plain loops."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn

from eyeline import Tokens
from eyeline.errors import InvalidArgument, NotSupported
from eyeline.layers.ancestors import (
    LSTMN,
    Decomposable,
    IntraDecoder,
    IntraTemporal,
    StructuredAttention,
    TemporalState,
)
from layers.dense import drawn, random

B, L, S, WIDTH, HIDDEN, MEMORY = 2, 7, 11, 5, 3, 6


def same(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)


def close(ours: Tensor, theirs: Tensor, inputs: list[Tensor]) -> None:
    """Outputs and all gradients."""
    same(ours, theirs)
    loss = random(*theirs.shape, seed=9)
    grads = (
        torch.autograd.grad((x * loss).sum(), inputs, retain_graph=True) for x in (ours, theirs)
    )
    for own, other in zip(*grads, strict=True):
        same(own, other)


def ready(layer: nn.Module) -> nn.Module:
    return drawn(layer.double())


# --- Lin 2017 ------------------------------------------------------------------------------------


def test_structured_attention() -> None:
    layer, x = ready(StructuredAttention(WIDTH, HIDDEN, 4)), random(B, L, WIDTH).requires_grad_()
    found = layer(x)
    for row in range(B):
        h = x[row]
        a = (layer.second.weight @ (layer.first.weight @ h.T).tanh()).softmax(-1)
        penalty = sum(
            ((a[r] * a[s]).sum() - (1 if r == s else 0)) ** 2 for r in range(4) for s in range(4)
        )
        inputs = [x, *layer.parameters()]
        close(found.embedding[row], a @ h, inputs)
        close(found.weights[row], a, inputs)
        close(found.penalty[row], penalty, inputs)  # type: ignore[arg-type]


def test_structured_pads_and_empty_sentences() -> None:
    layer, x = ready(StructuredAttention(WIDTH, HIDDEN, 4)), random(3, L, WIDTH)
    tokens = Tokens.padded([L, 4, 0], "right")
    x[1, 4:], x[2] = torch.nan, -1e4
    x.requires_grad_()
    found = layer(x, q_tokens=tokens)
    alone = layer(x[1:2, :4])
    same(found.embedding[1:2], alone.embedding)
    same(found.penalty[1:2], alone.penalty)
    assert not found.weights[1, :, 4:].any() and not found.embedding[2].any()
    assert float(found.penalty[2].detach()) == 4  # ‖0 - I‖²
    total = found.embedding.sum() + found.penalty.sum()
    grad = torch.autograd.grad(total, [x, *layer.parameters()])
    assert all(each.isfinite().all() for each in grad)
    assert not grad[0][1, 4:].any() and not grad[0][2].any()


# --- Cheng 2016 ----------------------------------------------------------------------------------


def lstmn(layer: LSTMN, x: Tensor) -> tuple[Tensor, Tensor]:
    """The equations for one row (L, width), a word at a time: (h, s)."""
    hs: list[Tensor] = []
    cs: list[Tensor] = []
    h_tilde = c_tilde = torch.zeros(WIDTH, dtype=x.dtype)
    weights = torch.zeros(len(x), len(x), dtype=x.dtype)
    for t, word in enumerate(x):
        if t:
            a = torch.stack([
                layer.score.weight[0] @ (
                    layer.tape.weight @ h + layer.own.weight @ word + layer.before.weight @ h_tilde
                ).tanh()
                for h in hs
            ])  # fmt: skip
            s = a.softmax(0)
            h_tilde = sum(w * h for w, h in zip(s, hs, strict=True))  # type: ignore[assignment]
            c_tilde = sum(w * c for w, c in zip(s, cs, strict=True))  # type: ignore[assignment]
            weights[t, :t] = s.detach()
        z = layer.gates.weight @ torch.cat((h_tilde, word)) + layer.gates.bias
        i, f, o, new = z.split(WIDTH)
        c = f.sigmoid() * c_tilde + i.sigmoid() * new.tanh()
        hs.append(o.sigmoid() * c.tanh())
        cs.append(c)
    return torch.stack(hs), weights


def test_lstmn() -> None:
    layer, x = ready(LSTMN(WIDTH, hidden=HIDDEN)), random(B, L, WIDTH).requires_grad_()
    want = [lstmn(layer, row) for row in x]  # type: ignore[arg-type]
    close(layer(x), torch.stack([h for h, _ in want]), [x, *layer.parameters()])
    same(layer.weights(x), torch.stack([s for _, s in want]))


@pytest.mark.parametrize("side", ["left", "right"])
def test_lstmn_skips_pads(side: str) -> None:
    layer, x, tokens = ready(LSTMN(WIDTH)), random(B, L, WIDTH), Tokens.padded([L, 4], side)
    real = tokens.positions[1] >= 0
    clean = layer(x, q_tokens=tokens)
    x[1][~real] = torch.nan
    x.requires_grad_()
    out = layer(x, q_tokens=tokens)
    assert torch.equal(out, clean) and not out[1][~real].any()
    for grad in torch.autograd.grad(out.sum(), list(layer.parameters()), retain_graph=True):
        assert grad.isfinite().all()
    same(out[1:, real], layer(x[1:, real]))
    weights = layer.weights(x, q_tokens=tokens)
    same(weights[1][real][:, real], layer.weights(x[1:, real])[0])
    assert not weights[1][~real].any() and not weights[1][:, ~real].any()
    assert not torch.autograd.grad(out.sum(), x)[0][1][~real].any()


def test_lstmn_does_not_know_the_future() -> None:
    layer, x = ready(LSTMN(WIDTH)), random(B, L, WIDTH)
    changed = x.clone()
    changed[:, 4:] = 1e3
    assert torch.equal(layer(x)[:, :4], layer(changed)[:, :4])
    assert layer(x[:, :0]).shape == (B, 0, WIDTH)
    assert layer.weights(x[:, :0]).shape == (B, 0, 0)


# --- Parikh 2016 ---------------------------------------------------------------------------------


def decomposable(layer: Decomposable, a: Tensor, b: Tensor) -> Tensor:
    """One pair of sentences, (La, width) and (Lb, width)."""

    def own(x: Tensor) -> Tensor:
        if layer.intra is None or layer.bias is None:
            return x
        key, most = layer.intra(x), layer.bias.max_distance
        rows = []
        for i in range(len(x)):
            f = torch.stack([
                key[i] @ key[j] + layer.bias.weight[max(-most, min(most, j - i)) + most, 0]
                for j in range(len(x))
            ])  # fmt: skip
            rows.append(f.softmax(0) @ x)
        return torch.cat((x, torch.stack(rows)), -1)

    a, b = own(a), own(b)
    e = layer.attend(a) @ layer.attend(b).T
    beta, alpha = e.softmax(1) @ b, e.T.softmax(1) @ a
    v = layer.compare(torch.cat((a, beta), -1)).sum(0)
    w = layer.compare(torch.cat((b, alpha), -1)).sum(0)
    scores: Tensor = layer.classify(layer.aggregate(torch.cat((v, w))))
    return scores


@pytest.mark.parametrize("intra", [False, True])
def test_decomposable(intra: bool) -> None:
    layer = ready(Decomposable(WIDTH, HIDDEN, classes=4, intra=intra, distance=2))
    a, b = random(B, L, WIDTH).requires_grad_(), random(B, S, WIDTH, seed=1).requires_grad_()
    want = torch.stack([decomposable(layer, *pair) for pair in zip(a, b, strict=True)])  # type: ignore[arg-type]
    close(layer(a, b), want, [a, b, *layer.parameters()])


@pytest.mark.parametrize("intra", [False, True])
@pytest.mark.parametrize("side", ["left", "right"])
def test_decomposable_pads(intra: bool, side: str) -> None:
    layer = ready(Decomposable(WIDTH, HIDDEN, classes=4, intra=intra, distance=2))
    a, b = random(B, L, WIDTH), random(B, S, WIDTH, seed=1)
    tokens = {"a_tokens": Tokens.padded([L, 4], side), "b_tokens": Tokens.padded([8, 0], length=S)}
    pads = [each.positions[1] < 0 for each in tokens.values()]
    clean = layer(a, b, **tokens)
    a[1][pads[0]], b[1][pads[1]] = 1e4, -1e4
    a.requires_grad_(), b.requires_grad_()
    out = layer(a, b, **tokens)
    assert torch.equal(out, clean)
    same(out[:1], layer(a[:1], b[:1, -8:]))
    same(out[1:], layer(a[1:, ~pads[0]], b[1:, :0]))
    grads = torch.autograd.grad(out.sum(), [a, b, *layer.parameters()])
    assert all(grad.isfinite().all() for grad in grads)
    assert not grads[0][1][pads[0]].any() and not grads[1][1].any()


def test_order_matters_only_with_intra() -> None:
    a, b = random(B, L, WIDTH), random(B, S, WIDTH, seed=1)
    plain, intra = (
        ready(Decomposable(WIDTH, HIDDEN, classes=4, intra=intra)) for intra in (False, True)
    )
    same(plain(a.flip(1), b.flip(1)), plain(a, b))
    assert (intra(a.flip(1), b) - intra(a, b)).abs().max() > 1e-3


# --- Paulus 2017 ---------------------------------------------------------------------------------


def temporal(layer: IntraTemporal, h: Tensor, m: Tensor) -> Tensor:
    """The weights of one row by the paper's own quotient."""
    e = (h @ layer.project.weight @ m.T).exp()
    rows = []
    for t in range(len(h)):
        quotient = e[t] if t == 0 else e[t] / e[:t].sum(0)
        rows.append(quotient / quotient.sum())
    return torch.stack(rows)


def test_intra_temporal() -> None:
    layer = ready(IntraTemporal(WIDTH, memory_width=MEMORY))
    h, m = random(B, L, WIDTH).requires_grad_(), random(B, S, MEMORY, seed=1).requires_grad_()
    found, inputs = layer(h, m), [h, m, *layer.parameters()]
    want = torch.stack([temporal(layer, *row) for row in zip(h, m, strict=True)])  # type: ignore[arg-type]
    close(found.weights, want, inputs)
    close(found.context, want @ m, inputs)


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_many_steps_at_once_and_one_after_the_other(steps: int) -> None:
    layer = ready(IntraTemporal(WIDTH, memory_width=MEMORY))
    h, m = random(B, L, WIDTH).requires_grad_(), random(B, S, MEMORY, seed=1)
    tokens = Tokens.padded([S, 6])
    state: TemporalState | None = None
    rows = []
    for part in h.split(steps, 1):
        looked = layer(part, m, k_tokens=tokens, state=state)
        state = looked.state
        rows.append(looked.context)
    close(torch.cat(rows, 1), layer(h, m, k_tokens=tokens).context, [h, *layer.parameters()])


@pytest.mark.parametrize("side", ["left", "right"])
def test_intra_temporal_pads(side: str) -> None:
    layer = ready(IntraTemporal(WIDTH, memory_width=MEMORY))
    h, m = random(3, L, WIDTH), random(3, S, MEMORY, seed=1)
    q, k = Tokens.padded([L, 4, 3], side), Tokens.padded([S, 5, 0], side)
    hq, mk = q.positions >= 0, k.positions >= 0
    clean = layer(h, m, q_tokens=q, k_tokens=k)
    h[~hq], m[~mk] = 1e4, -1e4
    h.requires_grad_(), m.requires_grad_()
    found = layer(h, m, q_tokens=q, k_tokens=k)
    assert torch.equal(found.context, clean.context)
    same(found.context[1:2, hq[1]], layer(h[1:2, hq[1]], m[1:2, mk[1]]).context)
    assert not found.weights[1][~hq[1]].any() and not found.weights[1][:, ~mk[1]].any()
    assert not found.context[2].any()
    same(found.state.total[1:2], layer(h[1:2, hq[1]], m[1:2], k_tokens=k.row(1)).state.total)
    grads = torch.autograd.grad(found.context.square().sum(), [h, m, *layer.parameters()])
    assert all(grad.isfinite().all() for grad in grads)
    assert not grads[0][~hq].any() and not grads[1][~mk].any()


def test_large_scores_and_the_future() -> None:
    layer = IntraTemporal(WIDTH).double()
    with torch.no_grad():
        layer.project.weight.copy_(300 * torch.eye(WIDTH))
    h, m = random(B, L, WIDTH), random(B, S, WIDTH, seed=1)
    found = layer(h, m)
    assert found.context.isfinite().all()
    same(found.weights.sum(-1), torch.ones(B, L).double())
    changed = h.clone()
    changed[:, 4:] = 1e3
    assert torch.equal(layer(changed, m).context[:, :4], found.context[:, :4])
    # What was looked at is looked at less: the same query again turns to what is left.
    calm = IntraTemporal(WIDTH).double()
    twice = calm(h[:, :1].expand(-1, 2, -1), m).weights
    same(twice[:, 1], torch.full((B, S), 1 / S, dtype=torch.float64))


def test_intra_decoder() -> None:
    layer, h = ready(IntraDecoder(WIDTH)), random(B, L, WIDTH).requires_grad_()
    e = torch.einsum("btd,de,bse->bts", h, layer.project.weight, h)
    rows = [torch.zeros(B, WIDTH).double()]
    rows += [torch.einsum("bs,bsd->bd", e[:, t, :t].softmax(-1), h[:, :t]) for t in range(1, L)]
    close(layer(h), torch.stack(rows, 1), [h, *layer.parameters()])
    same(layer.weights(h) @ h, layer(h))
    for t in range(1, L + 1):  # step by step
        same(layer(h[:, t - 1 : t], h[:, :t]), layer(h)[:, t - 1 : t])
    tokens = Tokens.padded([L, 4])
    garbage = h.detach().clone()
    garbage[1, :3] = 1e4
    out = layer(garbage, q_tokens=tokens)
    same(out[1:, 3:], layer(h[1:, 3:]))
    assert not out[1, :4].any()


# --- All -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_types_and_autocast(dtype: torch.dtype) -> None:
    h, m = torch.randn(2, 5, WIDTH), torch.randn(2, 7, WIDTH)
    exact = IntraTemporal(WIDTH)
    half = deepcopy(exact).to(dtype)
    found = half(h.to(dtype), m.to(dtype))
    assert found.context.dtype == dtype and found.state.total.dtype == torch.float32
    torch.testing.assert_close(found.context.float(), exact(h, m).context, atol=0.05, rtol=0.05)
    decoder = IntraDecoder(WIDTH)
    with torch.autocast("cpu", torch.bfloat16):
        cast = decoder(h)
    torch.testing.assert_close(cast.float(), decoder(h), atol=0.1, rtol=0.1)


def test_refusals() -> None:
    packed = Tokens.packed([3, 4])
    x = torch.zeros(1, L, WIDTH)
    with pytest.raises(NotSupported, match="one document to the next"):
        LSTMN(WIDTH)(x, q_tokens=packed)
    with pytest.raises(NotSupported, match="one document to the next"):
        IntraTemporal(WIDTH)(x, x, q_tokens=packed)
    with pytest.raises(NotSupported, match="one document to the next"):
        IntraTemporal(WIDTH)(x, x, k_tokens=packed)
    for wrong in (
        lambda: StructuredAttention(WIDTH, 0, 2),
        lambda: LSTMN(WIDTH, hidden=0),
        lambda: Decomposable(WIDTH, 3, classes=0),
        lambda: IntraTemporal(0),
        lambda: IntraDecoder(-1),
    ):
        with pytest.raises(InvalidArgument, match="a whole number"):
            wrong()
    with pytest.raises(InvalidArgument, match="probability"):
        Decomposable(WIDTH, 3, classes=2, dropout=1.0)
    for layer in (StructuredAttention(WIDTH, 2, 2), LSTMN(WIDTH), IntraDecoder(WIDTH)):
        with pytest.raises(InvalidArgument, match="batch first"):
            layer(torch.zeros(1, L, WIDTH + 1))
