"""Sparse Sinkhorn attention against loops; pads, lengths, documents, the future, caches."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from eyeline import Causal, Full, Pattern, Tokens, Window, attention
from eyeline.encodings import Rotary
from eyeline.errors import InvalidArgument, NotSupported
from eyeline.layers import MultiHeadAttention
from eyeline.mechanisms.routed.sinkhorn import Sinkhorn, sinkhorn_attention
from eyeline.planning.cost import Asked
from eyeline.testing.kernel import largest_tensor
from layers.dense import drawn, random
from routing.sinkhorn_oracle import attended, blocks_of, means

B, H, HK, L, E = 2, 6, 3, 13, 5
KINDS = [(network, pattern) for network in ("pairs", "table") for pattern in (Full(), Causal())]
every_kind = pytest.mark.parametrize(("network", "pattern"), KINDS, ids=str)
FULL = Full()


def made(network: str = "pairs", pattern: Pattern = FULL, **options: object) -> Sinkhorn:
    ours = Sinkhorn(
        int(options.pop("block", 4)), num_kv_heads=HK, head_dim=E,  # type: ignore[call-overload]
        network=network, blocks=30 if network == "table" else None, pattern=pattern, **options,
    )  # fmt: skip
    drawn(ours.double())
    return ours


def heads(length: int = L, keys: int | None = None, rows: int = B) -> list[Tensor]:
    keys = length if keys is None else keys
    shapes = (rows, H, length, E), (rows, HK, keys, E), (rows, HK, keys, E)
    return [random(*shape, seed=i) for i, shape in enumerate(shapes)]


def same(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)


def formula(
    ours: Sinkhorn,
    inputs: list[Tensor],
    q_at: list[int],
    k_at: list[int],
    row: int = 0,
    q_in: list[int] | None = None,
    k_in: list[int] | None = None,
) -> Tensor:
    """One batch row: queries and keys at these positions, -1 for nobody. (H, L, E)."""
    query, key, value = (x[row] for x in inputs)
    causal, groups = ours.causality == "functional", H // HK
    within = k_in if k_in is not None else [0] * len(k_at)
    members, out = list(blocks_of(k_at, within, ours.block)), []
    for h in range(HK):
        asking = query[h * groups : (h + 1) * groups]
        if not members or not q_at:
            out.append(torch.zeros_like(asking))
            continue
        taking, giving = means(key[h], k_at, within, ours.block, causal)
        if hasattr(ours.network, "weight"):
            scores = taking @ ours.network.weight[h][:, [n for _, n in members]]  # type: ignore[index, union-attr]
        else:
            a, b = ours.network.taking[h], ours.network.giving[h]  # type: ignore[index, union-attr]
            scores = (taking @ a) @ (giving @ b).mT / E**0.5
        out.append(
            attended(
                (asking, key[h], value[h]), scores / ours.temperature, ours.block,
                q_at=q_at, k_at=k_at, q_in=q_in, k_in=k_in, causal=causal,
                iterations=ours.iterations,
            )
        )  # fmt: skip
    return torch.cat(out)


@every_kind
@pytest.mark.parametrize(("length", "block"), [(1, 4), (8, 4), (11, 4), (5, 1), (9, 3)])
def test_formula(network: str, pattern: Pattern, length: int, block: int) -> None:
    ours = made(network, pattern, block=block, iterations=3)
    inputs = [x.requires_grad_() for x in heads(length)]
    at = list(range(length))
    got = ours(*inputs)
    want = torch.stack([formula(ours, inputs, at, at, row) for row in range(B)])
    same(got, want)
    loss = random(*want.shape, seed=9)
    parts = [*inputs, *ours.parameters()]
    options = {"allow_unused": True, "materialize_grads": True}
    grads = (torch.autograd.grad((x * loss).sum(), parts, **options) for x in (got, want))  # type: ignore[arg-type]
    for own, other in zip(*grads, strict=True):
        same(own, other)


@every_kind
def test_more_blocks_than_are_done_at_once(
    network: str, pattern: Pattern, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, inputs = made(network, pattern), [x.requires_grad_() for x in heads(20)]
    found = []
    for rows in (64, 2):
        monkeypatch.setattr("eyeline.budgets.budgets.mixed_rows", rows)
        monkeypatch.setattr("eyeline.mechanisms.routed.sorting._STEP", rows)
        monkeypatch.setattr("eyeline.budgets.budgets.numbers", rows)
        out = ours(*inputs)
        found.append([out, *torch.autograd.grad(out.square().sum(), [*inputs, *ours.parameters()])])
    for one, other in zip(*found, strict=True):
        same(one, other)


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_any_positions_documents_and_blocks(data: st.DataObject) -> None:
    network, pattern = data.draw(st.sampled_from(KINDS))
    ours = made(network, pattern, block=data.draw(st.integers(1, 6)), iterations=2)
    people = st.tuples(st.integers(0, 1), st.integers(0, 19))
    asking = data.draw(st.lists(people | st.just((0, -1)), min_size=1, max_size=5))
    keys = data.draw(st.lists(people, min_size=1, max_size=9, unique=True))
    keys += [(0, -1)] * data.draw(st.integers(0, 2))
    keys = data.draw(st.permutations(keys))
    q_in, q_at = (list(x) for x in zip(*asking, strict=True))
    k_in, k_at = (list(x) for x in zip(*keys, strict=True))
    inputs = [x.requires_grad_() for x in heads(len(asking), len(keys), rows=1)]
    tokens = Tokens.listed(q_at, q_in), Tokens.listed(k_at, k_in)
    try:
        got = ours(*inputs, q_tokens=tokens[0], k_tokens=tokens[1])
    except InvalidArgument:
        assert len({x for x in asking if x[1] >= 0}) < sum(x[1] >= 0 for x in asking)
        return  # queries are in blocks too
    want = formula(ours, inputs, q_at, k_at, 0, q_in, k_in)[None]
    same(got, want)
    if want.requires_grad:
        loss = random(*want.shape, seed=9)
        parts = [*inputs, *ours.parameters()]
        grads = (
            torch.autograd.grad((x * loss).sum(), parts, allow_unused=True, materialize_grads=True)
            for x in (got, want)
        )
        for own, other in zip(*grads, strict=True):
            same(own, other)


def peaked(order: list[int], size: float = 200.0) -> Tensor:
    """Scores by which block i takes block order[i]."""
    scores = torch.zeros(B, HK, len(order), len(order), dtype=torch.float64)
    scores[:, :, range(len(order)), order] = size
    return scores


@pytest.mark.parametrize("length", [20, 18])
def test_a_permutation_is_attention_over_two_blocks(length: int) -> None:
    order, inputs = [2, 0, 4, 1, 3], [x.requires_grad_() for x in heads(length)]
    number = torch.arange(length) // 4
    taken = torch.tensor(order)[number][:, None] == number
    assert not ((number[:, None] == number) & taken).any()
    due = attention(*inputs, (number[:, None] == number) | taken)
    got = sinkhorn_attention(*inputs, peaked(order), 4)
    same(got, due)
    for ours, theirs in zip(
        *(torch.autograd.grad(x.square().sum(), inputs) for x in (got, due)), strict=True
    ):
        same(ours, theirs)


def test_two_blocks_that_swap_are_full_attention() -> None:
    for length in (8, 7, 5):
        inputs = heads(length)
        for scale in (None, 0.0, -0.7):
            got = sinkhorn_attention(*inputs, peaked([1, 0]), 4, scale=scale)
            same(got, attention(*inputs, scale=scale))


@pytest.mark.parametrize("pattern", [Full(), Causal()], ids=str)
def test_a_block_that_holds_all_is_exact_attention(pattern: Pattern) -> None:
    inputs = [x.requires_grad_() for x in heads()]
    for block in (L, 40):
        got, due = made(pattern=pattern, block=block)(*inputs), attention(*inputs, pattern)
        same(got, due)
        for ours, theirs in zip(
            *(torch.autograd.grad(x.square().sum(), inputs) for x in (got, due)), strict=True
        ):
            same(ours, theirs)


@every_kind
@pytest.mark.parametrize("side", ["left", "right", "middle"])
def test_pads_change_nothing_wherever_they_lie(network: str, pattern: Pattern, side: str) -> None:
    ours, (q, k, v) = made(network, pattern), heads()
    if side == "middle":
        at = [0, 1, -1, -1, 2, 3, -1, 4, 5, 6, -1, 7, -1]
        tokens = Tokens(torch.tensor([list(range(L)), at]))
    else:
        tokens = Tokens.padded([L, 6], side)
    real = tokens.positions[1] >= 0
    inputs = [x.requires_grad_() for x in (q, k, v)]
    clean = ours(*inputs, q_tokens=tokens, k_tokens=tokens)
    spoiled = [x.detach().clone() for x in inputs]
    for x, garbage in zip(spoiled, (1e4, 1e4, -1e4), strict=True):
        x[1][:, ~real] = garbage
        x.requires_grad_()
    out = ours(*spoiled, q_tokens=tokens, k_tokens=tokens)
    assert torch.equal(out, clean)
    assert not out[1][:, ~real].any()
    first, second = (
        torch.autograd.grad(x.square().sum(), of) for x, of in ((clean, inputs), (out, spoiled))
    )
    for one, other in zip(first, second, strict=True):
        assert torch.equal(one, other)
        assert not other[1][:, ~real].any()
    same(out[:1], ours(*(x[:1] for x in inputs)))
    same(out[1:, :, real], ours(*(x[1:, :, real] for x in inputs)))


@pytest.mark.parametrize("network", ["pairs", "table"])
@pytest.mark.parametrize("padded", [False, True])
def test_the_past_does_not_know_the_future(network: str, padded: bool) -> None:
    assert made(network, Full()).causality == "none"
    ours, before = made(network, Causal(), block=3), heads()
    assert ours.causality == "functional"
    tokens = Tokens.padded([L, L - 2], "left") if padded else Tokens.arange(0, L)
    for last in range(L):
        after = [x.clone() for x in before]
        for x in after:
            x[:, :, last + 1 :] = 1e3 * x[:, :, last + 1 :].flip(-1) + 7
        first, second = (ours(*x, q_tokens=tokens, k_tokens=tokens) for x in (before, after))
        assert torch.equal(first[:, :, : last + 1], second[:, :, : last + 1])
    inputs = [x.requires_grad_() for x in before]
    out = ours(*inputs, q_tokens=tokens, k_tokens=tokens)[:, :, 7]
    for grad in torch.autograd.grad(out.sum(), inputs):
        assert not grad[:, :, 8:].any()


def test_linear_in_values() -> None:
    q, k, v = heads()
    other = random(B, HK, L, E, seed=3)
    for pattern in (Full(), Causal()):
        ours = made(pattern=pattern)
        same(ours(q, k, 2 * v + other), 2 * ours(q, k, v) + ours(q, k, other))
        assert not ours(q, k, 0 * v).any()
        same(ours(q, k, v * 0 + 3), torch.full_like(q, 3))


@every_kind
def test_nobody_at_all(network: str, pattern: Pattern) -> None:
    ours, inputs = made(network, pattern), [x.requires_grad_() for x in heads()]
    out = ours(*inputs, q_tokens=Tokens.arange(0, L), k_tokens=Tokens.padded([0, L]))
    assert not out[0].any() and out[1].any()
    for grad in torch.autograd.grad(out.square().sum(), [*inputs, *ours.parameters()],
                                    allow_unused=True, materialize_grads=True):  # fmt: skip
        assert grad.isfinite().all()
    for lengths in ((3, 0), (0, 0)) if pattern == Full() else ((0, 0),):
        empty = [x.requires_grad_() for x in heads(*lengths)]
        nothing = ours(*empty)
        assert nothing.shape == (B, H, lengths[0], E) and not nothing.any()
        nothing.sum().backward()
    assert ours(*heads(0, 5)).shape == (B, H, 0, E)


@every_kind
def test_queries_that_stand_elsewhere(network: str, pattern: Pattern) -> None:
    ours = made(network, pattern)
    inputs = heads(6, 11)
    rows = [formula(ours, inputs, list(range(5, 11)), list(range(11)), row) for row in range(B)]
    same(ours(*inputs), torch.stack(rows))
    more = heads(11, 6)
    if pattern == Causal():
        with pytest.raises(InvalidArgument, match="11 queries but 6 keys"):
            ours(*more)
    tokens = Tokens.arange(0, 11), Tokens.arange(0, 6)
    rows = [formula(ours, more, list(range(11)), list(range(6)), row) for row in range(B)]
    out = ours(*more, q_tokens=tokens[0], k_tokens=tokens[1])
    same(out, torch.stack(rows))
    assert out[:, :, :8].any(-1).all() and not out[:, :, 8:].any()  # no key in their block
    told = ours.explain(*more[:2], q_tokens=tokens[0], k_tokens=tokens[1])
    assert told["queries that look at somebody"] == f"{8 / 11:.1%}"


@pytest.mark.parametrize("network", ["pairs", "table"])
@pytest.mark.parametrize("step", [1, 2, 3, 4, 5, 12])
def test_decoding_from_a_cache_equals_the_whole(network: str, step: int) -> None:
    blocks = 9 if network == "table" else None
    mechanism = Sinkhorn(
        4, num_kv_heads=2, head_dim=E, network=network, blocks=blocks, pattern=Causal()  # type: ignore[arg-type]
    )  # fmt: skip
    layer = MultiHeadAttention(4 * E, 4, num_kv_heads=2, head_dim=E, mechanism=mechanism).double()
    drawn(layer)
    layer.requires_grad_(False)
    x, tokens = random(B, 23, 4 * E), Tokens.padded([23, 18], "left")
    whole, cache = layer(x, q_tokens=tokens), layer.new_cache(B)
    for start in range(0, 23, step):
        now = Tokens(tokens.positions[:, start : start + step])
        cache.cache.advance(now)
        got = layer(x[:, start : start + step], q_tokens=now, cache=cache)
        real = now.positions >= 0
        same(got[real], whole[:, start : start + step][real])


@every_kind
def test_documents_are_kept_apart(network: str, pattern: Pattern) -> None:
    ours, inputs, tokens = made(network, pattern), heads(), Tokens.packed([6, 7])
    whole = ours(*inputs, q_tokens=tokens, k_tokens=tokens)
    for start, end in ((0, 6), (6, 13)):
        there = Tokens.arange(0, end - start)
        alone = ours(*(x[:, :, start:end] for x in inputs), q_tokens=there, k_tokens=there)
        same(whole[:, :, start:end], alone)
        other = [x.clone() for x in inputs]
        for x in other:
            x[:, :, :start] = 1e3 * x[:, :, :start].flip(-1) + 7
            x[:, :, end:] = 1e3 * x[:, :, end:].flip(-1) + 7
        changed = ours(*other, q_tokens=tokens, k_tokens=tokens)
        assert torch.equal(changed[:, :, start:end], whole[:, :, start:end])


@every_kind
def test_rows_and_heads_are_independent(network: str, pattern: Pattern) -> None:
    ours, inputs = made(network, pattern), heads()
    whole = ours(*inputs)
    for row in range(B):
        same(ours(*(x[row : row + 1] for x in inputs))[0], whole[row])
    one = Sinkhorn(4, num_kv_heads=1, head_dim=E, network=network, pattern=pattern,
                   blocks=30 if network == "table" else None).double()  # type: ignore[arg-type]  # fmt: skip
    for h in range(HK):
        for mine, theirs in zip(one.parameters(), ours.parameters(), strict=True):
            mine.data.copy_(theirs[h : h + 1])
        alone = one(inputs[0][:, 2 * h : 2 * h + 2], *(x[:, h : h + 1] for x in inputs[1:]))
        same(alone, whole[:, 2 * h : 2 * h + 2])
    strided = [x.mT.contiguous().mT for x in inputs]
    same(ours(*strided), whole)


def test_a_layer_with_rotary_and_autocast() -> None:
    mechanism = Sinkhorn(3, num_kv_heads=2, head_dim=4, pattern=Causal())
    layer = MultiHeadAttention(16, 4, num_kv_heads=2, position=Rotary(4), mechanism=mechanism)
    x = random(2, 11, 16).float().requires_grad_()
    exact = layer(x)
    with torch.autocast("cpu", torch.bfloat16):
        half = layer(x)
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.float(), exact, rtol=0, atol=0.05)
    half.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in layer.parameters())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@every_kind
def test_types(network: str, pattern: Pattern, dtype: torch.dtype) -> None:
    ours, inputs = made(network, pattern), [x.to(dtype) for x in heads()]
    out = ours.to(dtype)(*inputs)
    assert out.dtype == dtype
    exact = ours.double()(*(x.double() for x in inputs))
    torch.testing.assert_close(out.double(), exact, rtol=0, atol=60 * torch.finfo(dtype).eps)


def test_sums_of_large_halves_do_not_overflow() -> None:
    ours, key = made().half(), (3e4 + random(B, HK, 12, E)).half()
    assert key.isfinite().all() and ours.matrix(key).isfinite().all()


@every_kind
def test_values_of_another_width(network: str, pattern: Pattern) -> None:
    ours, (q, k, v) = made(network, pattern), heads()
    wide = torch.cat((v, -v[..., :3]), -1)
    out = ours(q, k, wide)
    same(out[..., :E], ours(q, k, v))
    same(out[..., E:], -out[..., :3])


@pytest.mark.parametrize("pattern", [Full(), Causal()], ids=str)
def test_dropout_noise_and_determinism(pattern: Pattern) -> None:
    inputs, quiet = heads(), made(pattern=pattern)
    want = quiet(*inputs)
    assert torch.equal(quiet.train()(*inputs), quiet.eval()(*inputs))
    for options in ({"dropout": 0.3}, {"noise": 1.0}):
        ours = made(pattern=pattern, **options)
        ours.eval()
        state = torch.get_rng_state()
        assert all(torch.equal(ours(*inputs), want) for _ in range(30))
        assert torch.equal(torch.get_rng_state(), state)
        ours.train()
        torch.manual_seed(0)
        drawn_ones = torch.stack([ours(*inputs) for _ in range(80)])
        torch.manual_seed(0)
        assert torch.equal(ours(*inputs), drawn_ones[0])
        assert (drawn_ones[0] - want).abs().max() > 1e-2
        if "dropout" in options:
            mean, first = drawn_ones.mean(0), drawn_ones[0]
            assert (mean - want).abs().mean() < 0.3 * (first - want).abs().mean()


def step(ours: Sinkhorn, inputs: list[Tensor], tokens: Tokens) -> None:
    ours(*inputs, q_tokens=tokens, k_tokens=tokens).sum().backward()


def test_no_tensor_of_all_pairs() -> None:
    length = 2051
    for rule in (Full(), Causal()):
        ours = Sinkhorn(32, num_kv_heads=1, head_dim=4, pattern=rule)
        inputs = [torch.randn(1, 1, length, 4, requires_grad=True) for _ in range(3)]
        tokens = Tokens.arange(0, length)
        run = partial(step, ours, inputs, tokens)
        assert largest_tensor(run) < length**2 / 12


@pytest.mark.parametrize("network", ["pairs", "table"])
@pytest.mark.parametrize("pattern", [Full(), Causal()], ids=str)
@pytest.mark.parametrize("length", [7, 12])
def test_work_and_coverage_are_counted(network: str, pattern: Pattern, length: int) -> None:
    ours = made(network, pattern)
    pairs = mixed = taken = 0
    causal, blocks = pattern == Causal(), -(-length // 4)
    for i in range(length):
        own = i // 4
        others = [j for j in range(blocks) if not causal or j < own]
        pairs += sum(j // 4 == own and (not causal or j <= i) for j in range(length))
        pairs += sum(any(4 * j + t < length for j in others) for t in range(4))
        if i % 4 == 0:
            taken += len(others)
            mixed += sum(j // 4 in others for j in range(length))
    found = ours.work(Asked(length, heads=H))
    assert found.pairs == H * pairs
    scored = taken * E + 2 * blocks * E * E if network == "pairs" else blocks * E * 30
    assert found.multiplications == 2 * E * (H * pairs + HK * mixed) + HK * scored
    assert found.computed_multiplications >= found.multiplications
    told = ours.explain(*heads(length)[:2])
    assert told["keys that are looked at"] == told["queries that look at somebody"] == "100.0%"
    assert told["causality"].startswith(ours.causality)


def test_compiled() -> None:
    ours, inputs = made(pattern=Causal()), heads()
    graph = torch.compile(ours, backend="eager")
    same(graph(*inputs), ours(*inputs))


def test_matrix_is_what_is_taken() -> None:
    p = made(iterations=300).matrix(random(B, HK, 20, E))
    assert p.shape == (B, HK, 5, 5)
    for dim in (-1, -2):
        torch.testing.assert_close(p.sum(dim), torch.ones(B, HK, 5).double(), rtol=0, atol=1e-5)
    assert not made(pattern=Causal()).matrix(random(B, HK, 20, E)).triu().any()


def test_second_derivatives_are_refused() -> None:
    ours = made(pattern=Causal())
    inputs = [x.requires_grad_() for x in heads(8)]
    (slope,) = torch.autograd.grad(ours(*inputs).square().sum(), inputs[1:2], create_graph=True)
    with pytest.raises(NotSupported, match="sinkhorn attention has first derivatives only"):
        slope.sum().backward()


@pytest.mark.parametrize("pattern", [Window(2, 2), Causal() & Window(3, 0)], ids=str)
def test_other_patterns_are_refused_by_name(pattern: Pattern) -> None:
    with pytest.raises(NotSupported, match="mixtures of blocks"):
        made(pattern=pattern)
    with pytest.raises(NotSupported, match="mixtures of blocks"):
        sinkhorn_attention(*heads(), torch.zeros(B, HK, 4, 4), 4, pattern=pattern)


def test_refusals() -> None:
    ours, (q, k, v) = made(), heads()
    twice = Tokens.listed([0, 1, 1, *range(2, 12)])
    with pytest.raises(InvalidArgument, match="two tokens of a document stand at one position"):
        ours(q, k, v, q_tokens=twice, k_tokens=twice)
    with pytest.raises(InvalidArgument, match="made for num_kv_heads=3, head_dim=5"):
        ours(q, q, q)
    with pytest.raises(InvalidArgument, match="pairs, table"):
        made("sorted")
    with pytest.raises(InvalidArgument, match='only network="table"'):
        Sinkhorn(4, num_kv_heads=1, head_dim=2, blocks=3)
    with pytest.raises(InvalidArgument, match="blocks"):
        Sinkhorn(4, num_kv_heads=1, head_dim=2, network="table")
    short = Sinkhorn(4, num_kv_heads=HK, head_dim=E, network="table", blocks=3).double()
    with pytest.raises(InvalidArgument, match="block 3, and this sinkhorn has a table of 3 blocks"):
        short(q, k, v)
    for options in ({"temperature": 0.0}, {"iterations": 0}, {"noise": -1.0}, {"dropout": 1.0}):
        with pytest.raises(InvalidArgument, match=next(iter(options))):
            made(**options)
    with pytest.raises(InvalidArgument, match="4 blocks of 4 of 13 keys"):
        sinkhorn_attention(q, k, v, torch.zeros(B, HK, 3, 3), 4)
    with pytest.raises(InvalidArgument, match="block"):
        sinkhorn_attention(q, k, v, torch.zeros(B, HK, 4, 4), 0)
    layer = MultiHeadAttention(10, 2, mechanism=Sinkhorn(4, num_kv_heads=2, head_dim=5))
    with pytest.raises(NotSupported, match="later tokens change which blocks earlier ones saw"):
        layer.new_cache()
