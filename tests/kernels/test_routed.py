"""Attention along a route against the whole matrix of how often each pair meets."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from eyeline import Causal, Full, Pattern, PerHead, Tokens, Window
from eyeline.errors import InvalidArgument, NotSupported
from eyeline.kernels.route import Route
from eyeline.kernels.route_pieces import Routed
from eyeline.kernels.routed import run
from eyeline.mechanisms.routed.attend import coverage, routed_attention, routed_attention_with_lse
from eyeline.tokens import NOBODY, default_tokens
from routing.route_oracle import dense, meetings

B, H, HK, L, S, E = 2, 6, 3, 23, 29, 5
PATTERNS = [Full(), Causal(), Causal() & ~Window(0, 0)]
FULL = Full()


def drawn_route(rows: int, columns: int, step: int, *, labels: bool, band: bool) -> Route:
    """Any slots in any places, some of them nobody's, some twice."""
    torch.manual_seed(rows)
    blocks, lanes = 7, 3
    queries = torch.randint(-1, L, (B, H, lanes, blocks * rows))
    keys = torch.randint(-1, S, (B, H, lanes, (blocks - 1) * step + columns))
    marks = [torch.randint(0, 2, x.shape) if labels else None for x in (queries, keys)]
    shape = torch.rand(rows, columns) < 0.7 if band else None
    return Route(queries, keys, rows, columns, step, *marks, shape)


def inputs(width: int = E, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    torch.manual_seed(3)
    shapes = ((B, H, L, E), (B, HK, S, E), (B, HK, S, width))
    return [torch.randn(shape, dtype=dtype).requires_grad_() for shape in shapes]


def tokens() -> tuple[Tokens, Tokens]:
    k = torch.arange(S).repeat(B, 1)
    k[0, :4] = NOBODY
    documents = (k // 9).where(k != NOBODY, NOBODY)
    return Tokens(k[:, -L:], documents[:, -L:]), Tokens(k, documents)


@pytest.mark.parametrize("width", [E, 3], ids=["same", "narrow"])
@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
@pytest.mark.parametrize(("rows", "columns", "step"), [(4, 8, 4), (5, 3, 3), (1, 7, 7), (3, 11, 4)])
@pytest.mark.parametrize("marked", [False, True], ids=["plain", "marked"])
def test_equals_the_matrix(
    marked: bool, rows: int, columns: int, step: int, pattern: Pattern, width: int
) -> None:
    route = drawn_route(rows, columns, step, labels=marked, band=marked)
    q, k = tokens()
    given = inputs(width)
    found = routed_attention_with_lse(*given, route, pattern, q_tokens=q, k_tokens=k)
    expected = dense(meetings(route, pattern, q, k), *given)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)
    above = torch.randn(B, H, L, width, dtype=torch.float64)
    some = expected[1].detach() > -torch.inf
    for with_lse in (False, True):
        losses = [
            (out * above).sum() + (lse[some].sin().sum() if with_lse else 0.0)
            for out, lse in (found, expected)
        ]
        ours_all, theirs_all = (torch.autograd.grad(x, given, retain_graph=True) for x in losses)
        for ours, theirs in zip(ours_all, theirs_all, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)


PER_HEAD = PerHead([FULL, FULL, FULL, Causal(), Causal(), FULL])


@pytest.mark.parametrize("pattern", [FULL, PER_HEAD], ids=["one pattern", "per head"])
@pytest.mark.parametrize(("rows", "columns", "step"), [(4, 8, 4), (1, 7, 7)])
@pytest.mark.parametrize(("key_heads", "together"), [(HK, (3, 5)), (H, (1, 3))])
@pytest.mark.parametrize("strided", [False, True], ids=["dense", "strided"])
def test_heads_alone_and_together(
    strided: bool, key_heads: int, together: tuple[int, int], rows: int, columns: int, step: int,
    pattern: Pattern, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """together: how many times heads are taken in a row, of one pattern and of three."""
    route = drawn_route(rows, columns, step, labels=True, band=True)
    given = [x.detach() for x in inputs()]
    given[1:] = [x.repeat_interleave(key_heads // HK, 1) for x in given[1:]]
    if strided:  # as a layer's heads are
        given = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in given]
    given = [x.requires_grad_() for x in given]
    expected = dense(meetings(route, pattern, *tokens()), *given)
    above = torch.randn(B, H, L, E, dtype=torch.float64)
    due = torch.autograd.grad(expected[0], given, above)
    for places, count in ((1, H), (1 << 30, together[pattern == PER_HEAD])):
        monkeypatch.setattr("eyeline.budgets.budgets.routed_together", places)
        work = Routed(route, pattern, *tokens(), E**-0.5, H // key_heads)
        assert len(work.heads) == B * count
        out, lse = run(work, *given)
        slopes = torch.autograd.grad(out, given, above)
        for ours, theirs in zip((out, lse, *slopes), (*expected, *due), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("which", [0, 1, 2], ids=["query", "key", "value"])
def test_not_a_number_stays_in_its_head(which: int, rows: int) -> None:
    """An empty place reads something, but never what another head has."""
    route = drawn_route(rows, 7, 7, labels=False, band=False)
    given = [x.detach() for x in inputs()]
    given[1:] = [x.repeat_interleave(2, 1) for x in given[1:]]
    q, k = tokens()
    clean = routed_attention(*given, route, q_tokens=q, k_tokens=k)
    given[which][:, 0] = float("nan")
    found = routed_attention(*given, route, q_tokens=q, k_tokens=k)
    assert torch.equal(found[:, 1:], clean[:, 1:]) and found[:, 0].isnan().any()


@pytest.mark.parametrize(("queries", "keys"), [(0, 5), (5, 0), (0, 0)])
@pytest.mark.parametrize("rows", [1, 2])
def test_blocks_of_nobody(rows: int, queries: int, keys: int) -> None:
    route = Route(
        torch.full((1, 2, 1, 4 * rows), NOBODY), torch.full((1, 2, 1, 12), NOBODY), rows, 3, 3
    )
    given = [torch.zeros(1, 2, n, 5).requires_grad_() for n in (queries, keys, keys)]
    out, lse = routed_attention_with_lse(*given, route)
    assert out.shape == (1, 2, queries, 5) and not out.any() and bool((lse == -torch.inf).all())
    assert all(not x.any() for x in torch.autograd.grad(out.sum(), given))
    assert coverage(given[0], given[1], route) == (0.0, 0.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_smaller_types(dtype: torch.dtype) -> None:
    route = drawn_route(4, 8, 4, labels=False, band=False)
    given = [x.detach().to(dtype) for x in inputs()]
    found = routed_attention(*given, route)
    count = meetings(route, FULL, *default_tokens(L, S))
    exact = dense(count, *(x.double() for x in given))[0]
    assert found.dtype == dtype
    error = (found.double() - exact).abs().max()
    assert error < {torch.float32: 1e-6, torch.bfloat16: 2e-2, torch.float16: 3e-3}[dtype]


def test_what_stands_in_pads_is_not_read() -> None:
    route = drawn_route(4, 8, 4, labels=False, band=False)
    q, k = tokens()
    given = inputs()
    spoiled = [x.detach().clone() for x in given]
    spoiled[1][0, :, :4] = 1e4
    spoiled[2][0, :, :4] = 1e4
    one, two = (
        routed_attention(*x, route, Causal(), q_tokens=q, k_tokens=k) for x in (given, spoiled)
    )
    assert torch.equal(one, two)


def test_coverage() -> None:
    route = drawn_route(4, 8, 4, labels=True, band=True)
    q, k = tokens()
    count = meetings(route, Causal(), q, k)
    given = inputs()
    found = coverage(given[0], given[1], route, Causal(), q_tokens=q, k_tokens=k)
    there = [(x.positions != NOBODY)[:, None].expand(-1, H, -1) for x in (q, k)]
    assert found.queries == pytest.approx(float(count.any(-1)[there[0]].double().mean()))
    assert found.keys == pytest.approx(float(count.any(-2)[there[1]].double().mean()))


def test_dropout_is_right_on_average_and_seeded() -> None:
    route = drawn_route(4, 8, 4, labels=False, band=False)
    given = [x.detach() for x in inputs()]
    whole = routed_attention(*given, route)
    torch.manual_seed(0)
    drawn = [routed_attention(*given, route, dropout_p=0.3) for _ in range(100)]
    torch.manual_seed(0)
    assert torch.equal(drawn[0], routed_attention(*given, route, dropout_p=0.3))
    mean, spread = torch.stack(drawn).mean(0), torch.stack(drawn).std(0)
    assert ((mean - whole).abs() <= 5 * spread / 10 + 1e-12).all()
    assert (drawn[0] - whole).abs().max() > 0.1


def test_dropout_has_gradients() -> None:
    torch.manual_seed(2)
    slots = [torch.randint(-1, 5, (1, 2, 2, size)) for size in (6, 5)]
    route = Route(*slots, 2, 3, 1)
    given = [torch.randn(1, 2, 5, 2, dtype=torch.float64).requires_grad_() for _ in range(3)]

    def call(*x: Tensor) -> Tensor:
        torch.manual_seed(1)
        return routed_attention(*x, route, dropout_p=0.3)

    assert torch.autograd.gradcheck(call, given)


def test_second_derivatives_are_refused() -> None:
    given = inputs()
    out = routed_attention(*given, drawn_route(4, 8, 4, labels=False, band=False))
    (slope,) = torch.autograd.grad(out.sum(), given[:1], create_graph=True)
    with pytest.raises(NotSupported, match="along a route has first derivatives only"):
        slope.sum().backward()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda r: Route(r.queries, r.keys, 0, 8, 4), "at least 1"),
        (lambda r: Route(r.queries, r.keys, 4, 12, 4), "36 places of keys"),
        (lambda r: Route(r.queries, r.keys, 5, 8, 4), "blocks · rows"),
        (lambda r: Route(r.queries, r.keys, 4, 8, 4, q_labels=r.queries), "labels of both"),
        (lambda r: Route(r.queries, r.keys, 4, 8, 4, band=torch.ones(4, 4).bool()), "a band"),
        (lambda r: Route(r.queries + 1, r.keys, 4, 8, 4), "query slots beyond the 23"),
        (lambda r: Route(r.queries[:1], r.keys[:1], 4, 8, 4), "for 2 rows of 6 heads"),
    ],
)
def test_mistakes(change: Callable[[Route], Route], words: str) -> None:
    route = drawn_route(4, 8, 4, labels=False, band=False)
    with pytest.raises(InvalidArgument, match=words):
        routed_attention(*inputs(), change(route))
