"""Keys that are picked by their scores, against loops over all pairs."""

from __future__ import annotations

import math
from itertools import product

import pytest
import torch
from torch import Tensor

from eyeline import Causal, Explicit, Full, Pattern, PerHead, Tokens, sliding_window
from eyeline.kernels.route import Route
from eyeline.mechanisms.routed import scored
from eyeline.mechanisms.routed.best import at_most, best, listed, weighty
from eyeline.mechanisms.routed.scored import Scored, allowed, multiplied, sheets
from eyeline.patterns import kept_apart
from eyeline.planning import pairs
from eyeline.testing.kernel import largest_tensor
from eyeline.tokens import NOBODY, default_tokens

B, H, HK, E, L, S = 2, 6, 3, 5, 11, 23
CAUSAL, FULL = Causal(), Full()
PATTERNS = [
    FULL,
    CAUSAL,
    sliding_window(4),
    PerHead([CAUSAL, FULL, CAUSAL, sliding_window(3), FULL, ~CAUSAL]),
    Explicit(torch.rand(B, 1, L, S, generator=torch.Generator().manual_seed(0)) < 0.3),
]


@pytest.fixture(params=[False, True], ids=["whole", "pieces"])
def small(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sheets of a few rows, and ranges of a few keys."""
    if request.param:
        monkeypatch.setattr("eyeline.budgets.budgets.scored", 60)
        monkeypatch.setattr(scored, "_FEWEST_ROWS", 2)
        monkeypatch.setattr(scored, "_RANGE", 4)


def given(pattern: Pattern, *, scale: float = 0.7, padded: bool = False) -> Scored:
    torch.manual_seed(1)
    query, key = torch.randn(B, H, L, E).double(), torch.randn(B, HK, S, E).double()
    q, k = default_tokens(L, S)
    if padded:
        positions = torch.arange(S).repeat(B, 1)
        positions[0, :4], positions[1, 9:12], positions[1, -1] = NOBODY, NOBODY, NOBODY
        documents = torch.where(positions == NOBODY, NOBODY, positions // 7)
        k = Tokens(positions, documents)
        q = k.last(L)
    return Scored(query, key, kept_apart(pattern, q, k), q, k, scale)


def scores(of: Scored) -> dict[tuple[int, int, int], dict[int, float]]:
    """Of each query, those of the keys that it may look at."""
    found = {}
    for b, h in product(range(B), range(H)):
        q, k = of.q_tokens.row(b), of.k_tokens.row(b)
        sees = of.rule.at(b, h).sees(q.points(axis=-2), k.points(axis=-1)).expand(L, S).tolist()
        queries, keys = of.query[b, h].tolist(), of.key[b, h // (H // HK)].tolist()
        for i, j in product(range(L), range(S)):
            own = found.setdefault((b, h, i), {})
            if sees[i][j]:
                pairs_of = zip(queries[i], keys[j], strict=True)
                own[j] = of.scale * sum(x * y for x, y in pairs_of)
    return found


def looked_at(route: Route) -> dict[tuple[int, int, int], list[int]]:
    """The keys of each query in the order of the blocks."""
    assert route.rows == 1 and route.step == route.columns and route.lanes == 1
    found: dict[tuple[int, int, int], list[int]] = {}
    for b, h, n in torch.cartesian_prod(
        *map(torch.arange, (*route.queries.shape[:2], route.blocks))
    ):
        slot = int(route.queries[b, h, 0, n])
        keys = route.keys[b, h, 0, n * route.step : (n + 1) * route.step].tolist()
        found.setdefault((int(b), int(h), slot), []).extend(x for x in keys if x != NOBODY)
    return found


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(("k", "scale"), [(1, 0.7), (5, -1.0), (50, 0.7)])
def test_the_k_best(pattern: Pattern, padded: bool, k: int, scale: float) -> None:
    of = given(pattern, scale=scale, padded=padded)
    route = best(of, k)
    assert route.columns == min(k, S)
    found = looked_at(route)
    for place, own in scores(of).items():
        ranked = sorted(own.items(), key=lambda pair: -pair[1])
        assert sorted(found[place]) == sorted(j for j, _ in ranked[:k])


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("t", [0.5, 0.11, 1e-9])
def test_all_from_a_weight_on(pattern: Pattern, padded: bool, t: float) -> None:
    of = given(pattern, padded=padded)
    found = looked_at(weighty(of, t))
    for place, own in scores(of).items():
        each = {j: math.exp(x) for j, x in own.items()}
        total = sum(each.values())
        expected = [j for j, x in each.items() if x / total >= t]
        if each and not expected:
            expected = [max(each, key=lambda j: each[j])]
        assert sorted(found.get(place, [])) == expected


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("k", [1, 2, 5, 9])
def test_of_equal_scores_the_first_slots(k: int) -> None:
    """Scores are small whole numbers, of which many are equal."""
    query = torch.ones(1, 1, 1, 1).double().expand(1, 1, 29, 1)
    key = torch.tensor([3, 1, 2, 3, 2, 2, 1, 3, 2, 0, 2, 2, 4, 2, 1, 2, 2, 3] + [2] * 11)
    q, tokens = default_tokens(29, 29)
    of = Scored(query, key.double().view(1, 1, -1, 1), CAUSAL, q, tokens, 1.0)
    found = looked_at(best(of, k))
    for i in range(29):
        ranked = sorted(range(i + 1), key=lambda j: (-int(key[j]), j))
        assert sorted(found[0, 0, i]) == sorted(ranked[:k])


def test_equal_weights_reach_their_share_and_else_the_first_is_taken() -> None:
    query, key = torch.zeros(1, 1, 12, 3), torch.randn(1, 1, 12, 3)
    of = Scored(query, key, CAUSAL, *default_tokens(12, 12), 1.0)
    found = looked_at(weighty(of, 0.25))
    for i in range(12):
        assert found[0, 0, i] == (list(range(i + 1)) if i < 4 else [0])


def test_scores_of_half_types_are_float32() -> None:
    of = given(CAUSAL)
    for dtype in (torch.bfloat16, torch.float16):
        half = of._replace(query=of.query.to(dtype), key=of.key.to(dtype))
        wide = half._replace(query=half.query.float(), key=half.key.float())
        assert all(sheet.scores.dtype == torch.float32 for sheet in sheets(half))
        assert torch.equal(best(half, 4).keys, best(wide, 4).keys)
        assert torch.equal(weighty(half, 0.1).keys, weighty(wide, 0.1).keys)


def test_lists_of_any_length() -> None:
    """Each query stands in as many blocks as it needs, and none holds another's keys."""
    torch.manual_seed(0)
    wanted = {
        (b, h, i): torch.randperm(S)[: int(torch.randint(0, 9, ()))].tolist()
        for b in range(B) for h in range(H) for i in range(L) if (b, h) != (1, 2)
    }  # fmt: skip
    drawn = [((b * H + h) * L + i, j) for (b, h, i), js in wanted.items() for j in js]
    mixed = [drawn[x] for x in torch.randperm(len(drawn)).tolist()]
    rows, slots = (torch.tensor(x) for x in zip(*mixed, strict=True))
    route = listed(rows, slots, (B, H, L), 4)
    found = looked_at(route)
    for place, keys in wanted.items():
        assert sorted(found.get(place, [])) == sorted(keys)
    assert all(not keys for place, keys in found.items() if place[2] == NOBODY)
    most = max(
        sum(-(-len(js) // 4) for (b, h, _), js in wanted.items() if (b, h) == head)
        for head in [(b, h) for b in range(B) for h in range(H)]
    )
    assert route.blocks == most
    nothing = rows.new_empty(0)
    for shape in ((B, H, L), (B, H, 0), (0, H, L)):
        assert listed(nothing, nothing, shape, 4).pairs == 0


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("pattern", PATTERNS[:3], ids=str)
@pytest.mark.parametrize("padded", [False, True])
def test_how_many_are_allowed(pattern: Pattern, padded: bool) -> None:
    of = given(pattern, padded=padded)
    for b in range(B):
        q, k = of.q_tokens.row(b), of.k_tokens.row(b)
        counts = allowed(of.rule, q, k)
        sees = of.rule.sees(q.points(axis=-2), k.points(axis=-1)).expand(L, S)
        assert counts.tolist() == sees.sum(1).tolist()
        assert int(counts.sum()) == pairs(pattern, q_tokens=q, k_tokens=k)
        assert int(counts.sum()) <= multiplied(of.rule, q, k) <= L * S


def test_the_future_is_not_multiplied_and_nothing_is_n_squared() -> None:
    n = 4099
    tokens = default_tokens(n, n)
    query, key = torch.randn(1, 2, n, 4), torch.randn(1, 1, n, 4)
    for pattern, most in ((FULL, 1.0), (CAUSAL, 0.57), (sliding_window(50), 0.1)):
        of = Scored(query, key, pattern, *tokens, 1.0)
        assert sum(x.scores.numel() for x in sheets(of)) <= most * 2 * n * n
        assert multiplied(pattern, *tokens) <= most * n * n
    for route in (lambda: best(of, 7), lambda: weighty(of, 0.1)):
        assert largest_tensor(route) < n * n / 4
    assert largest_tensor(lambda: allowed(CAUSAL, *tokens)) < n * n / 4


def test_empty() -> None:
    def route_of(batch: int, queries: int, keys: int) -> list[Route]:
        x, y = torch.randn(batch, 2, queries, 3), torch.randn(batch, 1, keys, 3)
        of = Scored(x, y, CAUSAL, *default_tokens(queries, keys), 1.0)
        return [best(of, 4), weighty(of, 0.2)]

    for sizes in ((0, 5, 5), (1, 0, 5), (1, 0, 0), (1, 5, 0), (1, 1, 1)):
        for route in route_of(*sizes):
            assert route.queries.shape[:3] == (sizes[0], 2, 1)
            assert (route.keys != NOBODY).sum() == (2 if sizes == (1, 1, 1) else 0)


def test_how_many_reach_a_weight() -> None:
    for number in (*range(2, 200), 1000):
        assert at_most(1 / number) == number
        assert at_most(1.001 / number) == number - 1


def test_whose_scores_a_row_is() -> None:
    """Each sheet's place among all results, by scores that name their pair."""
    query = torch.arange(B * H * L).double().view(B, H, L, 1)
    key = torch.ones(B, HK, S, 1).double()
    found: Tensor = torch.full((B * HK, H // HK, L), -1.0).double()
    of = Scored(query, key, FULL, *default_tokens(L, S), 1.0)
    for sheet in sheets(of):
        found[sheet.at] = sheet.scores[..., 0]
    assert torch.equal(found.view(B, H, L), query[..., 0])
