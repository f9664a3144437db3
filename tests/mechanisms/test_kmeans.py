"""k-means routing: the whole matrix of shared clusters, running centroids, and the loss."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from eyeline import (
    Causal,
    Full,
    Pattern,
    Tokens,
    Window,
    attention,
    cost,
    sliding_window,
)
from eyeline.errors import InvalidArgument, NotSupported
from eyeline.layers import MultiHeadAttention
from eyeline.mechanisms.base import auxiliary_loss, moving_buffers
from eyeline.mechanisms.routed.clusters import first_centroids, moved, sums
from eyeline.mechanisms.routed.kmeans import KMeans, kmeans_attention
from eyeline.testing.kernel import largest_tensor
from eyeline.tokens import NOBODY, default_tokens
from layers.dense import random
from routing.route_oracle import dense, meetings

B, H, HK, L, E, EV, C, W = 2, 6, 3, 23, 5, 3, 4, 7
FULL = Full()
PATTERNS = [Full(), Causal(), Causal() & ~Window(0, 0), sliding_window(5)]


def made(clusters: int = C, window: int = W, pattern: Pattern = FULL, **options: float) -> KMeans:
    seed = int(options.pop("seed", 0))
    ours = KMeans(clusters, window, num_heads=H, head_dim=E, pattern=pattern, seed=seed, **options)
    return ours.double().eval()


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


def documents() -> Tokens:
    positions = torch.arange(L).repeat(B, 1)
    positions[0, 4] = NOBODY
    named = (positions // 9).where(positions != NOBODY, NOBODY)
    return Tokens(positions, named)


@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
@pytest.mark.parametrize("kv_heads", [1, 3, 6])
def test_the_matrix_of_shared_clusters(kv_heads: int, pattern: Pattern) -> None:
    ours, inputs = made(pattern=pattern), heads(kv_heads=kv_heads)
    q, k = default_tokens(L, L)
    count = meetings(ours.route(*inputs[:2]), pattern, q, k)
    assert count.max() > 1 and (count.sum(-1) == 0).any()  # some in several clusters, some in none
    same_grads(ours(*inputs), dense(count, *inputs)[0], inputs)
    found = ours.explain(*inputs[:2])
    share = count.any(-1).double().mean()
    assert found["queries that look at somebody"] == f"{share:.1%}"
    assert found["causality"].startswith("none" if pattern == Full() else "edge: each cluster")


@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
def test_one_cluster_is_exact_attention(pattern: Pattern) -> None:
    ours, inputs, tokens = made(1, 99, pattern), heads(), documents()
    same_grads(ours(*inputs), attention(*inputs, pattern), inputs)
    got = ours(*inputs, q_tokens=tokens, k_tokens=tokens)
    same_grads(got, attention(*inputs, pattern, q_tokens=tokens, k_tokens=tokens), inputs)


@pytest.mark.parametrize("length", [1, 2, 6, 7, 8, 13, 14, 15])
def test_lengths(length: int) -> None:
    for queries, keys in ((length, length), (length, 29), (29, length)):
        inputs = heads(queries, keys)
        count = meetings(made().route(*inputs[:2]), FULL, *default_tokens(queries, keys))
        same_grads(made()(*inputs), dense(count, *inputs)[0], inputs)
    causal = made(pattern=Causal())
    inputs = heads(length, 29)
    count = meetings(causal.route(*inputs[:2]), Causal(), *default_tokens(length, 29))
    same_grads(causal(*inputs), dense(count, *inputs)[0], inputs)
    with pytest.raises(InvalidArgument, match="30 queries but 29 keys"):
        causal(*heads(30, 29))


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("place", ["left", "middle", "right"])
def test_pads_change_nothing(place: str, training: bool) -> None:
    lengths = [[*range(L)], [*range(9)]]
    cut = {"left": 0, "middle": 4, "right": 9}[place]
    lengths[1][cut:cut] = [NOBODY] * (L - 9)
    tokens = Tokens(torch.tensor(lengths))
    real = tokens.positions[1] >= 0
    results = []
    for garbage in (0.0, 1e4):
        ours, inputs = made(pattern=Causal()).train(training), [x.detach() for x in heads()]
        for x in inputs:
            x[1, :, ~real] = garbage
        inputs = [x.requires_grad_() for x in inputs]
        out = ours(*inputs, q_tokens=tokens, k_tokens=tokens)
        loss = (out**2).sum() + (ours.auxiliary if ours.auxiliary is not None else 0.0)
        grads = torch.autograd.grad(loss, inputs)
        assert not out[1][:, ~real].any() and not any(x[1][:, ~real].any() for x in grads)
        results.append((out, *grads, ours.centroids))
    for one, two in zip(*results, strict=True):
        assert torch.equal(one, two)
    if not training:
        short = made(pattern=Causal())(*(x[1:, :, real] for x in inputs))
        same(results[0][0][1:, :, real], short)


def test_documents_are_routed_apart() -> None:
    ours, tokens, inputs = made(pattern=Causal()), documents(), heads()
    count = meetings(
        ours.route(*inputs[:2], q_tokens=tokens, k_tokens=tokens),
        Causal(), tokens, tokens,
    )  # fmt: skip
    got = ours(*inputs, q_tokens=tokens, k_tokens=tokens)
    same_grads(got, dense(count, *inputs)[0], inputs)
    others = [x.detach().clone() for x in inputs]
    for x in others:
        x[:, :, :9] = 5 * x[:, :, :9].flip(-1) + 1
    again = ours(*others, q_tokens=tokens, k_tokens=tokens)
    assert torch.equal(got[:, :, 9:], again[:, :, 9:])
    assert not torch.equal(got[:, :, :9], again[:, :, :9])


def test_no_value_comes_from_the_future_but_routing_does() -> None:
    """Causality "edge": what stands after i has no influence by its value, only by its place."""
    ours, inputs = made(pattern=Causal()), heads()
    out = ours(*inputs)
    assert ours.causality == "edge" and made().causality == "none"
    other = inputs[2].detach().clone()
    other[:, :, 12:] += 7
    assert torch.equal(ours(*inputs[:2], other)[:, :, :12], out[:, :, :12])
    for grad in torch.autograd.grad(out[:, :, :12].sum(), inputs):
        assert not grad[:, :, 12:].any()
    moved_on = [x.detach().clone() for x in inputs]
    for x in moved_on[:2]:
        x[:, :, 12:] = -x[:, :, 12:]
    assert not torch.equal(ours(*moved_on)[:, :, :12], out[:, :, :12])
    layer = MultiHeadAttention(H * E, H, mechanism=KMeans(2, 3, num_heads=H, head_dim=E))
    with pytest.raises(NotSupported, match="takes the best of the whole text"):
        layer.new_cache()


def test_linear_in_values() -> None:
    ours, (q, k, v) = made(pattern=Causal()), [x.detach() for x in heads()]
    other = random(*v.shape, seed=5)
    same(ours(q, k, 2 * v + other), 2 * ours(q, k, v) + ours(q, k, other))
    assert not ours(q, k, 0 * v).any()
    some = ours(q, k, v).any(-1)
    same(ours(q, k, 0 * v + 3)[some], torch.full((int(some.sum()), EV), 3.0).double())


def test_rows_and_heads_are_their_own() -> None:
    ours, inputs = made(), heads()
    out = ours(*inputs)
    same(ours(*(x[1:] for x in inputs)), out[1:])
    few = KMeans(C, W, num_heads=2, head_dim=E).double().eval()
    few.centroids.copy_(ours.centroids[2:4])
    same(few(inputs[0][:, 2:4], *(x[:, 1:2] for x in inputs[1:])), out[:, 2:4])


def test_nobody() -> None:
    ours = made()
    inputs = heads()
    none = Tokens(torch.full((B, L), NOBODY))
    some = Tokens.padded([0, L])
    for k_tokens in (none, some):
        for training in (True, False):
            out = ours.train(training)(*inputs, q_tokens=Tokens.arange(0, L), k_tokens=k_tokens)
            assert not out[0].any()
            loss = out.square().sum() + (auxiliary_loss(ours) if training else 0.0)
            for grad in torch.autograd.grad(loss, inputs, allow_unused=True):
                assert grad is not None and grad.isfinite().all()
    assert not made()(*heads(3, 0)).any() and made()(*heads(3, 0)).shape == (B, H, 3, EV)
    assert made()(*heads(0, 3)).shape == (B, H, 0, EV)
    empty = made().train()
    empty(*heads(0, 0))
    assert not bool(empty.begun) and empty.auxiliary == 0.0
    zeros = [torch.zeros_like(x).requires_grad_() for x in inputs]
    loss = ours.train()(*zeros).sum() + ours.auxiliary
    assert all(x.abs().max() <= 20 for x in torch.autograd.grad(loss, zeros))


def loss_of(inputs: list[Tensor], centroids: Tensor, tokens: Tokens | None = None) -> Tensor:
    """Token by token: |x/|x| - nearest centroid|², the mean over heads, queries and keys."""
    found = []
    for x in inputs[:2]:
        for b in range(B):
            for h in range(H):
                for i in range(L):
                    if tokens is None or tokens.row(b).positions[i] >= 0:
                        y = x[b, h // (H // x.shape[1]), i]
                        far = (y / y.norm() - centroids[h]).square().sum(-1)
                        found.append(far.min())
    return torch.stack(found).mean()


def test_the_loss_and_its_gradient() -> None:
    inputs, tokens = heads(), documents()
    centroids = made().centroids
    for standing in (None, tokens):
        out, loss = kmeans_attention(
            *inputs, centroids, window=W, pattern=Causal(), q_tokens=standing, k_tokens=standing
        )
        same_grads(loss, loss_of(inputs, centroids, standing), inputs[:2])
        same(out, made(pattern=Causal())(*inputs, q_tokens=standing, k_tokens=standing))
    with pytest.raises(InvalidArgument, match=r"centroids \(5, 4, 5\): \(6, clusters, 5\)"):
        kmeans_attention(*inputs, centroids[:5], window=W)


def test_training_begins_then_moves_the_centroids() -> None:
    ours, inputs = made(commitment=0.5, decay=0.9, seed=4).train(), heads()
    drawn = ours.centroids.clone()
    q, k = (functional.normalize(x.detach(), dim=-1) for x in inputs[:2])
    k = k.repeat_interleave(H // HK, 1)
    x = torch.cat([y.transpose(0, 1).flatten(1, 2) for y in (q, k)], 1)
    first = first_centroids(x, C, 4)
    for step in range(2):
        before = first if step == 0 else ours.centroids.clone()
        ours(*inputs)
        assert ours.auxiliary is not None and bool(ours.begun)
        same(ours.auxiliary, 0.5 * loss_of(inputs, before))
        same(ours.centroids, moved(before, *sums(x, torch.cdist(x, before).argmin(-1), C), 0.9))
        same(ours.centroids.norm(dim=-1), torch.ones(H, C).double())
    assert not torch.equal(ours.centroids, drawn)
    kept = ours.centroids.clone()
    ours.eval()(*inputs)
    assert ours.auxiliary is None and torch.equal(ours.centroids, kept)


def test_training_begins_with_numbers_and_in_float32() -> None:
    ours, inputs = made().train(), [x.bfloat16().float() for x in heads()]
    broken = [x.detach().clone() for x in inputs]
    broken[0][0, 0, 3, 1] = float("nan")
    ours.float()(*broken)
    assert not ours.begun and ours.centroids.isfinite().all()
    other = copy.deepcopy(ours)
    ours(*inputs)
    with torch.autocast("cpu", torch.bfloat16):
        other(*inputs)
    assert ours.begun and other.begun
    torch.testing.assert_close(other.centroids, ours.centroids, atol=1e-6, rtol=0)
    with pytest.raises(InvalidArgument, match="centroids are up to nan"):
        kmeans_attention(*inputs, ours.centroids * float("nan"), window=3)


def test_what_is_stored() -> None:
    ours, inputs = made().train(), heads()
    ours(*inputs)
    fresh = made(seed=3)
    fresh.load_state_dict(ours.state_dict())
    assert bool(fresh.begun) and torch.equal(fresh(*inputs), ours.eval()(*inputs))
    assert not list(ours.parameters())
    assert len(moving_buffers(nn.ModuleList([ours, ours]))) == 2
    ours.train()(*inputs)
    twin = copy.deepcopy(ours)
    assert twin.auxiliary is None and torch.equal(twin.centroids, ours.centroids)


def test_losses_of_all_parts_are_added() -> None:
    parts = [made(seed=n).train() for n in range(3)]
    both = nn.ModuleList(parts)
    assert auxiliary_loss(both) is None and auxiliary_loss(nn.Linear(2, 2)) is None
    for part in parts[:2]:
        part(*heads())
    total = auxiliary_loss(both)
    assert total is not None
    same(total, parts[0].auxiliary + parts[1].auxiliary)  # type: ignore[operator]


def test_dropout_and_determinism() -> None:
    ours, inputs = made(pattern=Causal(), dropout=0.3), [x[:1] for x in heads()]
    state = torch.get_rng_state()
    want = ours(*inputs)
    assert all(torch.equal(ours(*inputs), want) for _ in range(30))
    assert torch.equal(made(pattern=Causal())(*inputs), want)
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.equal(made(seed=1).centroids, made().centroids)
    ours.begun.fill_(True)
    ours.decay = 1.0  # centroids stay
    mean = torch.stack([ours.train()(*inputs) for _ in range(50)]).mean(0)
    assert (mean - want).abs().mean() < 0.25 * (ours(*inputs) - want).abs().mean()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_types(dtype: torch.dtype) -> None:
    inputs = [x.detach().to(dtype) for x in heads()]
    ours = made().to(dtype)
    out = ours(*inputs)
    assert out.dtype == dtype
    centroids = ours.centroids
    exact = made()
    exact.centroids.copy_(centroids)
    # Routing is float32's; near ties may fall otherwise in float64.
    wide = exact.float()(*(x.float() for x in inputs))
    torch.testing.assert_close(out.float(), wide, rtol=0, atol=20 * torch.finfo(dtype).eps)
    ours.train()(*inputs)
    assert ours.auxiliary is not None and ours.auxiliary.dtype == torch.float32
    assert ours.centroids.dtype.itemsize >= 4  # a mean that creeps needs its bits


def test_autocast_and_a_layer() -> None:
    mechanism = KMeans(3, 5, num_heads=2, head_dim=4, pattern=Causal())
    layer = MultiHeadAttention(8, 2, num_kv_heads=1, mechanism=mechanism)
    x = torch.randn(2, 11, 8, generator=torch.Generator().manual_seed(0)).requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        out = layer(x)
        loss = auxiliary_loss(layer)
    assert out.dtype == torch.bfloat16 and loss is not None and loss.dtype == torch.float32
    (out.float().sum() + loss).backward()
    assert x.grad is not None and x.grad.isfinite().all()


def test_no_tensor_of_all_pairs() -> None:
    n = 2003
    ours = KMeans(31, 64, num_heads=1, head_dim=4, pattern=Causal())
    inputs = [torch.randn(1, 1, n, 4, requires_grad=True) for _ in range(3)]

    def run() -> None:
        (ours(*inputs).sum() + ours.auxiliary).backward()

    assert largest_tensor(run) < n**2 / 4


def test_work() -> None:
    ours = KMeans(C, W, num_heads=H, head_dim=E)
    found = cost(ours, 23)
    pairs = H * C * W * W
    assert found.pairs == pairs
    assert found.multiplications == H * C * 2 * 23 * E + pairs * 2 * E
    causal = cost(KMeans(C, W, num_heads=H, head_dim=E, pattern=Causal()), 23)
    assert causal.pairs == pairs * 24 // 46


def test_mistakes() -> None:
    for options in ({"clusters": 0}, {"window": 0}, {"decay": 1.0}, {"commitment": -1.0},
                    {"dropout": 1.0}):  # fmt: skip
        with pytest.raises(InvalidArgument, match=next(iter(options))):
            KMeans(**{"clusters": C, "window": W, "num_heads": H, "head_dim": E, **options})  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="kmeans was made for num_heads=6, head_dim=5"):
        made()(*(x[:, :3] for x in heads()))
    with pytest.raises(InvalidArgument, match="pattern is a str"):
        made(pattern="causal")  # type: ignore[arg-type]
    assert "clusters=4, window=7, causal" in repr(made(pattern=Causal()))
