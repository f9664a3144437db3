"""Faults that content-routed mechanisms had, each with what is right."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from eyeline import (
    GPT2,
    Causal,
    GPT2Config,
    KMeans,
    MultiHeadAttention,
    Pattern,
    PerHead,
    Predicate,
    Random,
    Sinkhorn,
    Threshold,
    Tokens,
    TopK,
    Window,
    attention,
    load,
    recipe,
    save,
)
from eyeline.caches import Layout
from eyeline.errors import InvalidArgument, NotSupported
from eyeline.functional import clustered_attention, kmeans_attention
from eyeline.mechanisms import LSH, ClusteredQueries
from eyeline.training.language import check_causal

N, E = 40, 8


def drawn(heads: int = 2, rows: int = 2, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    torch.manual_seed(0)
    return list(torch.randn(3, rows, heads, N, E, dtype=dtype).unbind())


def squares(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return (i * i + j * j) % 3 == 0


@pytest.mark.parametrize(
    "pattern", [Window(2**40, 0), Window(None, 2**33), Predicate(squares)], ids=str
)
@pytest.mark.parametrize("step", [1, 3001, 2**40])
def test_large_numbers(pattern: Pattern, step: int) -> None:
    given, tokens = drawn(), Tokens(torch.arange(N) * step)
    due = attention(*given, pattern, q_tokens=tokens, k_tokens=tokens)
    for mechanism in (
        TopK(N, pattern=pattern),
        Threshold(1e-300, pattern=pattern),
        _kmeans(pattern),
    ):
        found = mechanism(*given, q_tokens=tokens, k_tokens=tokens)
        torch.testing.assert_close(found, due, rtol=0, atol=1e-10)


def _kmeans(pattern: Pattern) -> nn.Module:
    return KMeans(1, N, num_heads=2, head_dim=E, pattern=pattern).double().eval()


@pytest.mark.parametrize("make", [lambda p: TopK(N, pattern=p), _kmeans], ids=["topk", "kmeans"])
def test_a_pattern_of_each_rows_length(make: Callable[[Pattern], nn.Module]) -> None:
    pattern, tokens = Random(4, 2), Tokens.padded([11, N], length=N)
    given = drawn()
    due = attention(*given, pattern, q_tokens=tokens, k_tokens=tokens)
    found = make(pattern)(*given, q_tokens=tokens, k_tokens=tokens)
    torch.testing.assert_close(found, due, rtol=0, atol=1e-10)


def test_patterns_of_a_length_are_not_read_in_steps() -> None:
    pattern = Causal() & Random(2, 2)
    for mechanism in (LSH(8, by="buckets", pattern=pattern), TopK(3, pattern=pattern)):
        assert "differs per length" in str(mechanism.no_cache)
    with pytest.raises(NotSupported, match="differs per length"):
        LSH(8, by="buckets", pattern=pattern).new_cache(
            Layout(1, 1, 1, E, E, torch.float32, torch.device("cpu"))
        )


def test_clusters_in_half_types_have_finite_gradients() -> None:
    torch.manual_seed(0)
    x = torch.randn(1, 2, 64, E).half().requires_grad_()
    out = clustered_attention(x, x, x, clusters=3, topk=4)
    (grad,) = torch.autograd.grad(out.float().sum() * 2**12, x)
    assert grad.isfinite().all()


@pytest.mark.parametrize("spread", [10.0, 30.0])
def test_clusters_with_large_scores(spread: float) -> None:
    query, key, value = (x.requires_grad_() for x in drawn(rows=1))
    wide = clustered_attention(query * spread, key, value, clusters=5, topk=7)
    above = torch.randn_like(wide)
    due = (wide, *torch.autograd.grad(wide, (query, key, value), above))
    small = [x.detach().float().requires_grad_() for x in (query, key, value)]
    out = clustered_attention(small[0] * spread, *small[1:], clusters=5, topk=7)
    for one, other in zip((out, *torch.autograd.grad(out, small, above.float())), due, strict=True):
        assert (one - other).abs().max() <= 2e-6 * spread * other.abs().max().clamp(min=1)


def test_sinkhorn_asked_before_the_keys_of_a_block() -> None:
    torch.manual_seed(0)
    sinkhorn = Sinkhorn(4, num_kv_heads=1, head_dim=E, pattern=Causal()).double().eval()
    keys, asked = Tokens.listed([0, 1, 2, 3, 4, 5, 6, 7, 10, 11]), Tokens.listed([9])
    query = torch.randn(1, 1, 1, E, dtype=torch.float64)
    key, value = torch.randn(2, 1, 1, 10, E, dtype=torch.float64).unbind()
    later = key.clone()
    later[:, :, 8:] += 5
    one, two = (sinkhorn(query, x, value, q_tokens=asked, k_tokens=keys) for x in (key, later))
    assert torch.equal(one, two)


def test_centroids_are_of_length_one() -> None:
    with pytest.raises(InvalidArgument, match="longer or shorter than 1"):
        kmeans_attention(*drawn(), torch.full((2, 3, E), 0.5), window=7)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_means_creep_in_half_types_too(dtype: torch.dtype) -> None:
    x, y = (torch.tensor([[[row] * 8]]) for row in ([1.0, 0.0], [0.8, 0.6]))
    found = []
    for kind in (torch.float32, dtype):
        kmeans = KMeans(1, 8, num_heads=1, head_dim=2).to(kind).train()
        kmeans(*[x.to(kind)] * 3)
        for _ in range(200):
            kmeans(*[y.to(kind)] * 3)
        found.append(kmeans.centroids)
    torch.testing.assert_close(*found, atol=0.003, rtol=0)


def test_centroids_stay_where_a_loss_is_not_finite() -> None:
    given = drawn()
    kmeans = KMeans(3, 20, num_heads=2, head_dim=E).double().train()
    kmeans(*given)
    before = kmeans.centroids.clone()
    kmeans(given[0] * torch.nan, *given[1:])
    assert torch.equal(kmeans.centroids, before)


def test_language_models_that_project_apart_refuse_shared_keys() -> None:
    config = GPT2Config(50, width=32, hidden=64, layers=1, heads=4, trained_length=80)
    with pytest.raises(NotSupported, match="its queries are its keys"):
        GPT2(config, Causal(), mechanism=recipe("lsh(by=buckets)"))


def test_routing_that_saw_the_future_trains_no_language_model() -> None:
    config = GPT2Config(50, width=32, hidden=64, layers=1, heads=4, trained_length=80)
    model = GPT2(config, Causal(), mechanism=recipe("kmeans(clusters=3, window=8)"))
    with pytest.raises(InvalidArgument, match="each cluster takes the best of the whole text"):
        check_causal(model, 20)
    frozen = GPT2(config, Causal(), mechanism=recipe("topk(k=3)"))
    frozen.layers[0].eval()
    check_causal(frozen, 20)
    assert frozen.training and not frozen.layers[0].training


def test_what_clusters_tell() -> None:
    query, key, _ = drawn()
    told = ClusteredQueries(20, 3).explain(query[:, :, :5], key)
    assert told["pairs of clusters and keys"] == f"{2 * 2 * 5 * N:,}"
    tokens = Tokens.packed([13, N - 13])
    told = ClusteredQueries(6, 3).explain(query, key, q_tokens=tokens, k_tokens=tokens)
    assert "of its document" in told["keys that are looked at"]
    first, second = -(-6 * 13 // N), -(-6 * (N - 13) // N)
    assert told["pairs of clusters and keys"] == f"{4 * (first * 13 + second * (N - 13)):,}"


def test_not_a_number_is_seen() -> None:
    query, key, value = drawn()
    query[0, 0, 3] = torch.nan
    for mechanism in (TopK(3), Threshold(0.1)):
        out = mechanism(query, key, value)
        assert out[0, 0, 3].isnan().all() and not out[0, 0, 4].isnan().any()


def test_running_means_are_loaded_as_they_were(tmp_path: Path) -> None:
    config = GPT2Config(50, width=32, hidden=64, layers=1, heads=4, trained_length=80)
    model = GPT2(config, Causal(), mechanism=recipe("kmeans(clusters=3, window=8)"))
    save(model, tmp_path)
    found = load(tmp_path, dtype=torch.bfloat16, packed=False).model
    kept = {name: x for name, x in found.state_dict().items() if name.endswith("centroids")}
    assert found.embedding.weight.dtype == torch.bfloat16 and kept
    assert all(torch.equal(x, model.state_dict()[name]) for name, x in kept.items())


def test_heads_of_the_pattern_are_checked() -> None:
    for mechanism in (
        KMeans(3, 5, num_heads=4, head_dim=8, pattern=PerHead([Causal(), Causal()])),
        TopK(3, pattern=PerHead([Causal(), Causal()])),
    ):
        with pytest.raises(InvalidArgument):
            MultiHeadAttention(32, 4, mechanism=mechanism)
