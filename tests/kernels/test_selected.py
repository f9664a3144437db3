"""Routes of one query to a block, by sums of rows picked by index, against the whole matrix."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from eyeline import Causal, Full, Pattern, Tokens, Window
from eyeline.kernels import selected
from eyeline.kernels.route import Route
from eyeline.kernels.route_pieces import Routed
from eyeline.scores import Dropout
from eyeline.testing.kernel import largest_tensor
from eyeline.tokens import NOBODY, default_tokens
from routing.route_oracle import dense, meetings

B, H, HK, L, S, E = 2, 6, 3, 23, 29, 5
FULL = Full()
PACKED = Causal() & Window(None, 0)
"""The pattern that is tried with tokens that name documents."""
PATTERNS = [FULL, Causal(), Causal() & ~Window(0, 0), PACKED]


def drawn_route(columns: int, *, marked: bool) -> Route:
    """Any slots in any places, some nobody's, some twice."""
    torch.manual_seed(columns)
    blocks, lanes = 31, 2
    queries = torch.randint(-1, L, (B, H, lanes, blocks))
    keys = torch.randint(-1, S, (B, H, lanes, blocks * columns))
    if not marked:
        return Route(queries, keys, 1, columns, columns)
    labels = [torch.randint(0, 2, x.shape) for x in (queries, keys)]
    return Route(queries, keys, 1, columns, columns, *labels, torch.rand(1, columns) < 0.7)


def tokens(pattern: Pattern) -> tuple[Tokens, Tokens]:
    if pattern != PACKED:
        return default_tokens(L, S)
    k = torch.arange(S).repeat(B, 1)
    k[0, :4] = NOBODY
    documents = (k // 9).where(k != NOBODY, NOBODY)
    return Tokens(k[:, -L:], documents[:, -L:]), Tokens(k, documents)


def inputs(width: int = E) -> list[Tensor]:
    torch.manual_seed(3)
    shapes = ((B, H, L, E), (B, HK, S, E), (B, HK, S, width))
    return [torch.randn(shape, dtype=torch.float64).requires_grad_() for shape in shapes]


def work_of(
    route: Route, pattern: Pattern = FULL, steps: tuple[tuple[Dropout, int], ...] = ()
) -> Routed:
    return Routed(route, pattern, *tokens(pattern), E**-0.5, H // HK, steps)


@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
@pytest.mark.parametrize(("columns", "width"), [(1, 3), (7, E)])
@pytest.mark.parametrize("marked", [False, True], ids=["plain", "marked"])
def test_equals_the_matrix(
    marked: bool, columns: int, pattern: Pattern, width: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    if marked:  # and in pieces
        monkeypatch.setattr("eyeline.budgets.budgets.routed", 3000)
    route = drawn_route(columns, marked=marked)
    work, given = work_of(route, pattern), inputs(width)
    assert selected.serves(work)
    with torch.no_grad():
        found = selected.results(work, *given)
    expected = dense(meetings(route, pattern, work.q_tokens, work.k_tokens), *given)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)
    above, above_lse = torch.randn_like(found[0]), torch.randn_like(found[1])
    empty = found[1] == -torch.inf
    above_lse[empty] = 0.0
    for slope in (None, above_lse):
        loss = (expected[0] * above).sum()
        loss = loss if slope is None else loss + (expected[1] * slope)[~empty].sum()
        theirs_all = torch.autograd.grad(loss, given, retain_graph=True)
        lse = found[1].masked_fill(empty, torch.inf)
        with torch.no_grad():
            ours_all = selected.gradients(work, tuple(given), (found[0], lse), (above, slope))  # type: ignore[arg-type]
        for ours, theirs in zip(ours_all, theirs_all, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)


def test_what_it_serves() -> None:
    route = drawn_route(7, marked=False)
    assert not selected.serves(work_of(route, steps=((Dropout(0.1, 1), 0),)))
    queries, keys = route.queries[..., :8], route.keys
    assert not selected.serves(work_of(Route(queries, keys[..., :58], 1, 9, 7)))
    assert not selected.serves(work_of(Route(queries, keys[..., :28], 2, 7, 7)))


def test_half_types_and_pads() -> None:
    route, pattern = drawn_route(7, marked=False), PACKED
    work, given = work_of(route, pattern), [x.detach() for x in inputs()]
    exact = dense(meetings(route, pattern, work.q_tokens, work.k_tokens), *given)[0]
    for x in given[1:]:
        x[0, :, :4] = 1e4
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        out, lse = selected.results(work, *(x.to(dtype) for x in given))
        assert out.dtype == dtype and lse.dtype == torch.float32
        assert (out.double() - exact).abs().max() < 20 * torch.finfo(dtype).eps


def test_no_row_is_made_for_a_pair() -> None:
    n, columns, width = 1999, 31, 64
    queries = torch.arange(n).view(1, 1, 1, n)
    keys = torch.randint(0, n, (1, 1, 1, n * columns))
    work = Routed(Route(queries, keys, 1, columns, columns), FULL, *default_tokens(n, n), 1.0)
    given = [torch.randn(1, 1, n, width) for _ in range(3)]

    def run() -> None:
        out, lse = selected.results(work, *given)
        selected.gradients(work, tuple(given), (out, lse), (out, None))  # type: ignore[arg-type]

    assert largest_tensor(run) < n * columns * width / 2


def test_nobody_and_nothing() -> None:
    given = [x.detach() for x in inputs()]
    nobody = torch.full((B, H, 1, 3), NOBODY)
    for route in (
        Route(nobody, nobody.repeat(1, 1, 1, 2), 1, 2, 2),
        Route(nobody[..., :0], nobody[..., :0], 1, 2, 2),
    ):
        out, lse = selected.results(work_of(route), *given)
        assert not out.any() and (lse == -torch.inf).all()
        above = torch.ones_like(out), None
        known = out, lse.masked_fill(lse == -torch.inf, torch.inf)
        for grad in selected.gradients(work_of(route), tuple(given), known, above):  # type: ignore[arg-type]
            assert not grad.any()
