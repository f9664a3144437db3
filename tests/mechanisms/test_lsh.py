"""LSH attention against the matrix of how often pairs meet; the future, pads, documents, steps."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from eyeline import Causal, Full, Pattern, SameSegment, Tokens, Window, attention
from eyeline.caches import Marked
from eyeline.errors import InvalidArgument, NotSupported
from eyeline.layers import MultiHeadAttention
from eyeline.mechanisms.routed.kmeans import unit
from eyeline.mechanisms.routed.lsh import LSH, lsh_attention
from eyeline.patterns import Sinks
from eyeline.planning.cost import Asked
from eyeline.testing import Claims, check_mechanism
from eyeline.testing.kernel import largest_tensor
from eyeline.tokens import NOBODY, default_tokens
from routing.route_oracle import dense, meetings

B, H, L, E = 2, 3, 37, 5
FULL, CAUSAL = Full(), Causal()
BY = pytest.mark.parametrize("by", ["chunks", "buckets"])
PATTERNS = [FULL, CAUSAL, CAUSAL & Window(11, 0), ~SameSegment() | Window(3, 5)]


def made(by: str, pattern: Pattern = FULL, **options: object) -> LSH:
    chosen = {"bucket_size": 5, "rounds": 3, "buckets": 4, **options}
    return LSH(by=by, pattern=pattern, **chosen)  # type: ignore[arg-type]


def drawn(length: int = L, width: int = E, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(B, H, length, width, generator=generator, dtype=torch.float64)


def same(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)


def by_the_matrix(
    ours: LSH, query: Tensor, key: Tensor, value: Tensor, q: Tokens, k: Tokens
) -> Tensor:
    """Softmax over how often pairs meet; whoever meets nobody gets his own value."""
    count = meetings(ours.route(query, key, q_tokens=q, k_tokens=k), ours.pattern, q, k)
    out = dense(count, query, unit(key), value)[0]
    alone = ~count.any(-1) & (q.positions != NOBODY).expand(len(query), -1)[:, None]
    return torch.where(alone[..., None], value[:, :, key.shape[2] - query.shape[2] :], out)


def some_tokens(kind: str) -> Tokens:
    if kind == "plain":
        return default_tokens(L, L)[0]
    positions = torch.arange(L).repeat(B, 1)
    positions[0, :4], positions[1, 20:23] = NOBODY, NOBODY
    documents = (positions // 11).where(positions != NOBODY, NOBODY)
    return Tokens(positions, documents if kind == "documents" else None)


@BY
@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
@pytest.mark.parametrize("kind", ["plain", "pads", "documents"])
@pytest.mark.parametrize("buckets", [None, 4])
def test_equals_the_matrix(by: str, pattern: Pattern, kind: str, buckets: int | None) -> None:
    ours, tokens = made(by, pattern, buckets=buckets), some_tokens(kind)
    for queries in (L, 6):
        x, value = (y.requires_grad_() for y in (drawn(), drawn(width=3, seed=1)))
        query = x[:, :, L - queries :]
        q = tokens.last(queries)
        got = ours(query, x, value, q_tokens=q, k_tokens=tokens)
        want = by_the_matrix(ours, query, x, value, q, tokens)
        same(got, want)
        above = drawn(queries, 3, seed=2)
        grads = (torch.autograd.grad((y * above).sum(), (x, value)) for y in (got, want))
        for own, other in zip(*grads, strict=True):
            same(own, other)


@BY
@pytest.mark.parametrize("pattern", PATTERNS[:3], ids=str)
def test_one_bucket_is_exact_attention_over_the_others(by: str, pattern: Pattern) -> None:
    ours = made(by, pattern, bucket_size=40, buckets=1)
    x, value = (y.requires_grad_() for y in (drawn(), drawn(seed=1)))
    lonely = torch.arange(L) < (0 if pattern == FULL else 1)
    want = attention(x, unit(x), value, pattern & ~Window(0, 0))
    want = torch.where(lonely[:, None], value, want)
    got = ours(x, x, value)
    same(got, want)
    grads = (torch.autograd.grad((y * drawn(seed=2)).sum(), (x, value)) for y in (got, want))
    for own, other in zip(*grads, strict=True):
        same(own, other)
    same(lsh_attention(x, value, bucket_size=40, buckets=1, by=by, pattern=pattern), want)  # type: ignore[arg-type]


@BY
@pytest.mark.parametrize("pattern", [FULL, CAUSAL], ids=str)
def test_what_every_mechanism_shows(by: str, pattern: Pattern) -> None:
    claims = Claims(heads=H, kv_heads=H, head_dim=E, lengths=(0, 1, 24))
    check_mechanism(lambda: made(by, pattern, buckets=None if by == "chunks" else 4), claims)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_by_buckets_the_past_does_not_move(dtype: torch.dtype) -> None:
    ours, value = made("buckets", CAUSAL), drawn(seed=1).to(dtype)
    before = drawn().to(dtype)
    for cut in range(1, L, 5):
        after, other = before.clone(), value.clone()
        after[:, :, cut:], other[:, :, cut:] = 1e3, -7.0
        one, two = ours(before, before, value), ours(after, after, other)
        # A row may be added up in another order: its last bits are free, its route is not.
        exact = 1e-12 if dtype == torch.float64 else 1e-6
        torch.testing.assert_close(one[:, :, :cut], two[:, :, :cut], rtol=0, atol=exact)
    assert ours.causality == "functional" and ours.no_cache is None


def test_by_chunks_only_pairs_keep_order() -> None:
    ours, x, value = made("chunks", CAUSAL, buckets=None), drawn(), drawn(seed=1)
    assert ours.causality == "edge" and 'by="buckets"' in str(ours.no_cache)
    changed = x.clone()
    changed[:, :, 20:] = drawn(seed=5)[:, :, 20:]
    moved = ours(x, x, value)[:, :, :20] != ours(changed, changed, value)[:, :, :20]
    assert moved.any()  # which is why it does not say functional
    with pytest.raises(NotSupported, match="where chunks end"):
        MultiHeadAttention(H * E, H, mechanism=ours).new_cache()
    assert made("buckets").causality == "none"
    with pytest.raises(NotSupported, match="may look ahead"):
        MultiHeadAttention(H * E, H, mechanism=made("buckets")).new_cache()


@BY
@pytest.mark.parametrize("buckets", [None, 4])
def test_pads_leave_the_route_as_it_is(by: str, buckets: int | None) -> None:
    ours, x, value = made(by, CAUSAL, buckets=buckets), drawn(), drawn(seed=1)
    for side in ("left", "right"):
        tokens = Tokens.padded([L, 17], side)
        real = tokens.positions[1] != NOBODY
        out = ours(x, x, value, q_tokens=tokens, k_tokens=tokens)
        short = x[1:, :, real]
        same(out[1:, :, real], ours(short, short, value[1:, :, real]))
        assert not out[1][:, ~real].any()


@BY
@pytest.mark.parametrize("buckets", [None, 4])
def test_a_document_is_as_if_alone(by: str, buckets: int | None) -> None:
    ours, x, value = made(by, FULL, buckets=buckets), drawn(), drawn(seed=1)
    tokens = Tokens.packed([13, 1, 0, 23])
    out = ours(x, x, value, q_tokens=tokens, k_tokens=tokens)
    for part in (slice(0, 13), slice(13, 14), slice(14, L)):
        one = x[:, :, part]
        same(out[:, :, part], ours(one, one, value[:, :, part]))


@BY
def test_heads_and_rounds_hash_on_their_own(by: str) -> None:
    ours, x = made(by), drawn()[:, :1].expand(B, H, L, E)
    route = ours.route(x, x)
    for one, two in ((route.queries[:, 0], route.queries[:, 1]), route.queries.unbind(2)[:2]):
        assert not torch.equal(one, two)
    value = drawn(seed=1)
    few = made(by)(x[:, :2], x[:, :2], value[:, :2])
    same(few, ours(x, x, value)[:, :2])


def test_a_pair_that_meets_in_two_rounds_counts_twice() -> None:
    ours, x, value = made("chunks", rounds=7), drawn(), drawn(seed=1)
    tokens = default_tokens(L, L)[0]
    count = meetings(ours.route(x, x), FULL, tokens, tokens)
    assert count.max() > 1
    score = (x @ unit(x).mT / E**0.5).exp() * count
    same(ours(x, x, value), score / score.sum(-1, keepdim=True) @ value)


@pytest.mark.parametrize("step", [1, 2, 5, 16])
@pytest.mark.parametrize("pattern", [CAUSAL, CAUSAL & (Window(9, 0) | Sinks(2))], ids=str)
def test_decoding_equals_the_whole(step: int, pattern: Pattern) -> None:
    layer = MultiHeadAttention(H * E, H, mechanism=made("buckets", pattern)).double()
    layer.requires_grad_(False)
    x, tokens = drawn(L, H * E)[:, 0], Tokens.padded([L, 26], "left")
    whole, cache = layer(x, q_tokens=tokens), layer.new_cache(B)
    assert isinstance(cache.cache, Marked)
    for start in range(0, L, step):
        now = Tokens(tokens.positions[:, start : start + step])
        cache.cache.advance(now)
        got = layer(x[:, start : start + step], q_tokens=now, cache=cache)
        real = now.positions != NOBODY
        same(got[real], whole[:, start : start + step][real])


def test_kept_buckets_follow_the_cache() -> None:
    """Cut off, read on another way, with rows exchanged; and no other hashing's buckets."""
    layer = MultiHeadAttention(H * E, H, mechanism=made("buckets", CAUSAL)).double()
    layer.requires_grad_(False)
    x, cache = drawn(L, H * E)[:, 0], layer.new_cache(B)
    assert isinstance(cache.cache, Marked) and cache.cache.nbytes == 0

    def read(part: Tensor, start: int) -> Tensor:
        now = Tokens.arange(start, start + part.shape[1])
        cache.cache.advance(now)
        return layer(part, q_tokens=now, cache=cache)  # type: ignore[no-any-return]

    read(x[:, :20], 0)
    assert cache.cache.nbytes == 20 * B * H * (2 * E + 3) * 8
    cache.cache.truncate(11)
    cache.cache.reorder(torch.tensor([1, 0]))
    other = torch.cat([x[:, :11].flip(0), x[:, 11:]], 1)
    same(read(x[:, 11:], 11), layer(other)[:, 11:])
    assert layer.mechanism.cache_kind != made("buckets", CAUSAL, seed=1).cache_kind
    layer.mechanism.redraw()
    with pytest.raises(InvalidArgument, match="new_cache"):
        read(x[:, :1], L)


@BY
def test_seeds_dropout_and_determinism(by: str) -> None:
    ours, x, value = made(by, dropout=0.3).eval(), drawn(), drawn(seed=1)
    torch.manual_seed(5)
    want, after = ours(x, x, value), torch.rand(1)
    torch.manual_seed(5)
    assert torch.equal(after, torch.rand(1))  # nothing was drawn from torch's generator
    same(made(by)(x, x, value), want)
    ours.train()
    torch.manual_seed(0)
    drops = [ours(x, x, value) for _ in range(60)]
    assert not torch.equal(drops[0], drops[1])
    mean = (torch.stack(drops).mean(0) - want).abs().mean()
    assert mean < 0.25 * (drops[0] - want).abs().mean()
    ours.eval().redraw()
    assert not torch.equal(ours(x, x, value), want)
    assert torch.equal(ours(x, x, value), made(by, seed=1)(x, x, value))
    ours.redraw(0)
    assert torch.equal(ours(x, x, value), want)


@BY
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_smaller_types(by: str, dtype: torch.dtype) -> None:
    ours, x, value = made(by, CAUSAL), drawn().to(dtype), drawn(seed=1).to(dtype)
    got = ours(x, x, value)
    assert got.dtype == dtype
    tokens = default_tokens(L, L)[0]
    want = by_the_matrix(ours, x.double(), x.double(), value.double(), tokens, tokens)
    eps = {torch.float32: 1e-6, torch.float16: 4e-3, torch.bfloat16: 3e-2}[dtype]
    assert (got.double() - want).abs().max() < eps
    layer = MultiHeadAttention(H * E, H, mechanism=made(by, CAUSAL))
    y = drawn(L, H * E)[:, 0].float()
    with torch.autocast("cpu", torch.bfloat16):
        half = layer(y)
    assert half.dtype == torch.bfloat16
    half.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in layer.parameters())


def test_a_vector_of_zeros_has_a_finite_gradient() -> None:
    x = drawn()
    x[:, :, 3:9] = 0
    x.requires_grad_()
    out = made("chunks", CAUSAL)(x, x, drawn(seed=1))
    assert out.isfinite().all()
    assert torch.autograd.grad(out.square().sum(), x)[0].isfinite().all()


@BY
@pytest.mark.parametrize("pattern", [FULL, CAUSAL], ids=str)
def test_no_n_squared(by: str, pattern: Pattern) -> None:
    x = torch.randn(1, 1, 2039, 4, requires_grad=True)
    ours = made(by, pattern, bucket_size=8, rounds=2)
    assert largest_tensor(lambda: ours(x, x, x).sum().backward()) < 2039**2 / 4
    last = x.detach()[:, :, -3:]
    assert largest_tensor(lambda: ours(last, x.detach(), x.detach())) < 2039 * 64


@BY
@pytest.mark.parametrize("pattern", [FULL, CAUSAL], ids=str)
@pytest.mark.parametrize("queries", [L, 4])
def test_work_and_what_is_told(by: str, pattern: Pattern, queries: int) -> None:
    ours, x = made(by, pattern), drawn()[:1]
    query = x[:, :, L - queries :]
    work = ours.work(Asked(queries, L, heads=H, head_dim=E, value_dim=7))
    route = ours.route(query, x)
    assert work.computed == route.pairs
    tokens = default_tokens(queries, L)
    found = meetings(route, pattern, *tokens)
    assert found.sum() <= work.pairs
    hashes = H * L * 3 * E * 2  # of 4 buckets two columns are multiplied
    assert work.computed_multiplications == work.computed * (E + 7) + hashes
    told = ours.explain(query, x)
    assert told["causality"].startswith(ours.causality)
    assert told["pairs computed"].startswith(f"{route.pairs:,} of {H * queries * L:,}")
    share = found.any(-1).double().mean()
    assert told["queries that look at somebody"] == f"{share:.1%}"
    assert told["keys that are looked at"] == f"{found.any(-2).double().mean():.1%}"


def test_refusals() -> None:
    ours, x, value = made("chunks", CAUSAL), drawn(), drawn(seed=1)
    for key in (drawn(seed=3), drawn()[:, :, :6], drawn().roll(1, 2)):
        with pytest.raises(InvalidArgument, match="pass the query as the key"):
            made("chunks")(x, key, value[:, :, : key.shape[2]])
    shifted = Tokens.arange(1, L + 1), Tokens.arange(0, L)
    with pytest.raises(InvalidArgument, match="pass the query as the key"):
        ours(x, x, value, q_tokens=shifted[0], k_tokens=shifted[1])
    with pytest.raises(InvalidArgument, match="3 query heads and 1 key heads"):
        ours(x, x[:, :1], value[:, :1])
    with pytest.raises(InvalidArgument, match="num_kv_heads=num_heads"):
        MultiHeadAttention(12, 4, num_kv_heads=2, mechanism=ours)
    with pytest.raises(InvalidArgument, match="num_kv_heads=num_heads"):
        ours.work(Asked(8, heads=4, kv_heads=2))
    with pytest.raises(InvalidArgument, match="dropout"):
        LSH(dropout=1.0)
    with pytest.raises(InvalidArgument, match="an even number"):
        lsh_attention(x, value, buckets=3)
    layer = MultiHeadAttention(H * E, H, mechanism=ours).double()
    with pytest.raises(InvalidArgument, match="pass the query as the key"):
        layer(drawn(L, H * E)[:, 0], drawn(L, H * E, seed=1)[:, 0])


def test_the_same_values_in_another_tensor_are_shared_too() -> None:
    ours, x, value = made("buckets", CAUSAL), drawn(), drawn(seed=1)
    assert torch.equal(ours(x, x.clone(), value), ours(x, x, value))
    x[0, 0, 3, 1] = torch.nan
    assert ours(x, x.clone(), value)[1].isfinite().all()
