"""Clustered queries against the paper's formula, one query at a time."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from eyeline import Causal, Full, Tokens, attention, cost, max_path_length
from eyeline.errors import InvalidArgument, NotSupported
from eyeline.layers import MultiHeadAttention
from eyeline.mechanisms.routed.clustered import ClusteredQueries, clustered_attention
from eyeline.mechanisms.routed.clusters import clustered
from eyeline.patterns import DocumentsApart, Window
from eyeline.testing.kernel import largest_tensor
from eyeline.tokens import NOBODY, default_tokens
from layers.dense import random
from routing.route_oracle import meetings

B, H, HK, L, E, EV, C, K = 2, 6, 3, 23, 5, 3, 4, 5


def made(clusters: int = C, topk: int = K, **options: float) -> ClusteredQueries:
    rounds = int(options.pop("rounds", 3))
    return ClusteredQueries(clusters, topk, rounds=rounds, **options).eval()


def heads(length: int = L, keys: int = L, kv_heads: int = HK) -> list[Tensor]:
    shapes = (B, H, length, E), (B, kv_heads, keys, E), (B, kv_heads, keys, EV)
    return [random(*shape, seed=n).requires_grad_() for n, shape in enumerate(shapes)]


def same(ours: Tensor, theirs: Tensor, atol: float = 1e-10) -> None:
    torch.testing.assert_close(ours, theirs, rtol=0, atol=atol)


def same_grads(got: Tensor, want: Tensor, inputs: list[Tensor]) -> None:
    same(got, want)
    above = random(*want.shape, seed=9)
    grads = [torch.autograd.grad((x * above).sum(), inputs) for x in (got, want)]
    for own, other in zip(*grads, strict=True):
        same(own, other)


def formula(
    ours: ClusteredQueries,
    inputs: list[Tensor],
    q_tokens: Tokens | None = None,
    k_tokens: Tokens | None = None,
) -> Tensor:
    """m · softmax(q K_top) V_top + Σ A_l v_l of the others, query by query."""
    query, key, value = inputs
    default = default_tokens(query.shape[2], key.shape[2])
    q = q_tokens if q_tokens is not None else default[0]
    k = k_tokens if k_tokens is not None else default[1]
    chosen = clustered(query.detach(), q, ours.clusters, ours.rounds)
    out = []
    for b in range(B):
        seen = DocumentsApart().sees(q.row(b).points(axis=-2), k.row(b).points(axis=-1))
        seen = seen.expand(query.shape[2], key.shape[2])
        for h in range(H):
            ks, vs = key[b, h // (H // key.shape[1])], value[b, h // (H // key.shape[1])]
            for i, cluster in enumerate(chosen[b, h].tolist()):
                mine = seen[i].nonzero().flatten()
                if cluster < 0 or not len(mine):
                    out.append(vs.sum() * torch.zeros(EV, dtype=vs.dtype))
                    continue
                centre = query[b, h][chosen[b, h] == cluster].mean(0)
                shared = (ks[mine] @ centre / math.sqrt(E)).softmax(0)
                best = shared.argsort(descending=True)[: ours.topk]
                rest = shared.argsort(descending=True)[ours.topk :]
                exact = (ks[mine[best]] @ query[b, h, i] / math.sqrt(E)).softmax(0)
                out.append(
                    shared[best].sum() * (exact @ vs[mine[best]]) + shared[rest] @ vs[mine[rest]]
                )
    return torch.stack(out).view(B, H, query.shape[2], EV)


def documents() -> Tokens:
    positions = torch.arange(L).repeat(B, 1)
    positions[0, 4] = NOBODY
    return Tokens(positions, (positions // 9).where(positions != NOBODY, NOBODY))


@pytest.mark.parametrize("kv_heads", [1, 3, 6])
@pytest.mark.parametrize(("queries", "keys"), [(L, L), (7, 29), (29, 4), (1, 1)])
def test_formula(queries: int, keys: int, kv_heads: int) -> None:
    inputs = heads(queries, keys, kv_heads)
    same_grads(made()(*inputs), formula(made(), inputs), inputs)


def test_documents_are_clustered_apart() -> None:
    ours, inputs, tokens = ClusteredQueries(C, K, rounds=3), heads(), documents()
    got = ours(*inputs, q_tokens=tokens, k_tokens=tokens)
    same_grads(got, formula(ours, inputs, tokens, tokens), inputs)
    others = [x.detach().clone() for x in inputs]
    for x in others:
        x[:, :, :9] = 5 * x[:, :, :9].flip(-1) + 1
    again = ours(*others, q_tokens=tokens, k_tokens=tokens)
    assert torch.equal(got[:, :, 9:], again[:, :, 9:])
    assert not torch.equal(got[:, :, :9], again[:, :, :9])


@pytest.mark.parametrize("tokens", [None, documents()], ids=["plain", "documents"])
def test_all_keys_or_a_cluster_each_is_exact_attention(tokens: Tokens | None) -> None:
    inputs, both = heads(), {"q_tokens": tokens, "k_tokens": tokens}
    for ours in (made(C, L), made(C, 99), made(L, 1), made(99, 2), made(1, L)):
        exact = attention(*inputs, Full(), **both)
        same_grads(ours(*inputs, **both), exact, inputs)


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 7, 8, 9])
def test_lengths(length: int) -> None:
    inputs = heads(length, length)
    same(made()(*inputs), formula(made(), inputs))


@pytest.mark.parametrize("place", ["left", "middle", "right"])
def test_pads_change_nothing(place: str) -> None:
    lengths = [[*range(L)], [*range(9)]]
    cut = {"left": 0, "middle": 4, "right": 9}[place]
    lengths[1][cut:cut] = [NOBODY] * (L - 9)
    tokens = Tokens(torch.tensor(lengths))
    real = tokens.positions[1] >= 0
    results = []
    for garbage in (0.0, 1e4):
        inputs = [x.detach() for x in heads()]
        for x in inputs:
            x[1, :, ~real] = garbage
        inputs = [x.requires_grad_() for x in inputs]
        out = made()(*inputs, q_tokens=tokens, k_tokens=tokens)
        grads = torch.autograd.grad((out**2).sum(), inputs)
        assert not out[1][:, ~real].any() and not any(x[1][:, ~real].any() for x in grads)
        results.append((out, *grads))
    for one, two in zip(*results, strict=True):
        assert torch.equal(one, two)
    same(results[0][0][1:, :, real], made()(*(x[1:, :, real] for x in inputs)))


def test_nobody() -> None:
    inputs = heads()
    for k_tokens in (Tokens(torch.full((B, L), NOBODY)), Tokens.padded([0, L])):
        for q_tokens in (Tokens.arange(0, L), k_tokens):
            out = made()(*inputs, q_tokens=q_tokens, k_tokens=k_tokens)
            assert not out[0].any()
            for grad in torch.autograd.grad(out.square().sum(), inputs):
                assert grad.isfinite().all()
    assert not made()(*heads(3, 0)).any() and made()(*heads(3, 0)).shape == (B, H, 3, EV)
    assert made()(*heads(0, 3)).shape == (B, H, 0, EV)


def test_linear_in_values_of_their_own_rows_and_heads() -> None:
    ours, (q, k, v) = made(), [x.detach() for x in heads()]
    other = random(*v.shape, seed=5)
    same(ours(q, k, 2 * v + other), 2 * ours(q, k, v) + ours(q, k, other))
    assert not ours(q, k, 0 * v).any()
    same(ours(q, k, 0 * v + 3), torch.full((B, H, L, EV), 3.0).double())
    same(ours(q[1:], k[1:], v[1:]), ours(q, k, v)[1:])
    same(ours(q[:, 2:4], k[:, 1:2], v[:, 1:2]), ours(q, k, v)[:, 2:4])


def test_dropout_and_determinism() -> None:
    ours, inputs = made(dropout=0.3), [x[:1, :2] for x in heads(kv_heads=H)]
    want = ours(*inputs)
    assert all(torch.equal(ours(*inputs), want) for _ in range(30))
    ours.train()
    mean = torch.stack([ours(*inputs) for _ in range(50)]).mean(0)
    assert (mean - want).abs().mean() < 0.25 * (ours(*inputs) - want).abs().mean()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_types(dtype: torch.dtype) -> None:
    inputs = [x.detach().to(dtype) for x in heads()]
    out = made()(*inputs)
    assert out.dtype == dtype
    wide = made()(*(x.float() for x in inputs))
    torch.testing.assert_close(out.float(), wide, rtol=0, atol=20 * torch.finfo(dtype).eps)


def test_a_layer_and_autocast() -> None:
    layer = MultiHeadAttention(8, 2, num_kv_heads=1, mechanism=ClusteredQueries(3, 4))
    x = torch.randn(2, 11, 8, generator=torch.Generator().manual_seed(0)).requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        out = layer(x)
    assert out.dtype == torch.bfloat16
    out.float().sum().backward()
    assert x.grad is not None and x.grad.isfinite().all()
    with pytest.raises(NotSupported, match="clusters hold queries of the whole text"):
        layer.new_cache()


def test_no_tensor_of_all_pairs() -> None:
    n = 2003
    ours = ClusteredQueries(20, 16, rounds=2)
    inputs = [torch.randn(1, 1, n, 4, requires_grad=True) for _ in range(3)]
    assert largest_tensor(lambda: ours(*inputs).sum().backward()) < n**2 / 4


def test_explained() -> None:
    ours, inputs = made(), heads()
    count = meetings(ours.route(*inputs[:2]), Full(), *default_tokens(L, L))
    assert (count.sum(-1) == K).all()
    found = ours.explain(*inputs[:2])
    assert found["keys that queries look at one by one"] == f"{count.any(-2).double().mean():.1%}"
    assert found["queries that look at somebody"] == "100.0%"
    assert found["causality"].startswith("none") and ours.causality == "none"
    assert max_path_length(ours, 23) == 1


def test_work() -> None:
    found = cost(made(), 23)
    pairs = C * (23 + K) + 23 * K
    assert found.pairs == pairs
    assert found.multiplications == C * 64 * (23 * 4 + 23) + pairs * 128


def test_explained_of_nothing() -> None:
    for queries, keys in ((0, 3), (0, 0), (3, 0)):
        q, k = torch.zeros(1, 2, queries, 4), torch.zeros(1, 2, keys, 4)
        assert "0 of 0" in ClusteredQueries(3, 2).explain(q, k)["pairs computed"]


def test_refusals() -> None:
    for pattern in (Causal(), Causal() & Window(3, 0)):
        with pytest.raises(NotSupported, match="cannot honour causal"):
            ClusteredQueries(C, K, pattern=pattern)
        with pytest.raises(NotSupported, match="cannot honour causal"):
            clustered_attention(*heads(), clusters=C, topk=K, pattern=pattern)
    for sizes in ({"clusters": 0}, {"topk": 0}, {"rounds": 0}, {"dropout": 1.0}):
        with pytest.raises(InvalidArgument, match=next(iter(sizes))):
            ClusteredQueries(**{"clusters": C, "topk": K, **sizes})  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="clustered topk"):
        clustered_attention(*heads(), clusters=C, topk=0)
