"""Score modifiers along a route, and its weights, against the dense formulas of the papers."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from eyeline import Causal, Full, Pattern, Tokens, dense_mask
from eyeline.errors import NotSupported
from eyeline.functional import (
    routed_attention,
    routed_attention_weights,
    routed_attention_with_lse,
)
from eyeline.kernels.route import Route
from eyeline.kernels.route_pieces import Routed
from eyeline.kernels.routed import run
from eyeline.scores import ALiBi, Dropout, ScoreMod, Shaw, Softcap
from eyeline.testing.cases import trained
from eyeline.tokens import NOBODY
from routing.route_oracle import meetings
from scores.formulas import BATCH, HEADS, KEY_HEADS, MODS, WIDTH, Call, dense

N = 19
NAMES = [name for name, _, _ in MODS]


@dataclass(frozen=True)
class Counted(Call):
    """A dense formula in which each pair counts ``times``, (B, H, L, S)."""

    times: Tensor

    def weights(self, score: Tensor) -> Tensor:
        return super().weights(score + self.times.clamp(min=1).to(score.dtype).log())


def drawn_route(rows: int, columns: int, step: int) -> Route:
    """Any slots in any places, some of them padding, some twice, some of two labels."""
    torch.manual_seed(rows)
    queries = torch.randint(-1, N, (BATCH, HEADS, 3, 6 * rows))
    keys = torch.randint(-1, N, (BATCH, HEADS, 3, 5 * step + columns))
    labels = [torch.randint(0, 2, x.shape) for x in (queries, keys)]
    return Route(queries, keys, rows, columns, step, *labels)


def even_route() -> Route:
    """Neighbours in order: each block of 5 attends to itself and to the block before."""
    slots = torch.full((20,), NOBODY)
    slots[:N] = torch.arange(N)
    keys = torch.cat((torch.full((5,), NOBODY), slots))
    lanes = (BATCH, HEADS, 1, -1)
    return Route(slots.expand(lanes), keys.expand(lanes), 5, 10, 5)


ROUTES = {
    "drawn": drawn_route(4, 8, 4), "even": even_route(), "single rows": drawn_route(1, 6, 6),
}  # fmt: skip


def tokens() -> Tokens:
    positions = torch.arange(N).repeat(BATCH, 1) * 2
    positions[0, :3] = NOBODY
    return Tokens(positions)


def drawn(value_width: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    torch.manual_seed(3)
    shapes = ((HEADS, WIDTH), (KEY_HEADS, WIDTH), (KEY_HEADS, value_width))
    given = [torch.randn(BATCH, h, N, e, dtype=torch.float64) for h, e in shapes]
    return [x.to(dtype).requires_grad_() for x in given]


def counted(given: list[Tensor], route: Route, pattern: Pattern, where: Tokens) -> Counted:
    times = meetings(route, pattern, where, where)
    rows = where.positions.broadcast_to(BATCH, N)
    distance = (rows[:, None, None, :] - rows[:, None, :, None]).expand(times.shape)
    return Counted(*given, times > 0, distance, WIDTH**-0.5, times)


@pytest.mark.parametrize("route", ROUTES.values(), ids=ROUTES)
@pytest.mark.parametrize(("name", "mod", "value_width"), MODS, ids=NAMES)
def test_equals_the_formula(name: str, mod: ScoreMod, value_width: int, route: Route) -> None:
    given, where, pattern = drawn(value_width), tokens(), Causal()
    parameters = list(mod.parameters()) if isinstance(mod, torch.nn.Module) else []
    ours = routed_attention(*given, route, pattern, score_mod=mod, q_tokens=where, k_tokens=where)
    due = dense(mod)(counted(given, route, pattern, where))
    torch.testing.assert_close(ours, due, rtol=0, atol=1e-10)
    above = torch.randn_like(due)
    slopes = [torch.autograd.grad(x, [*given, *parameters], above) for x in (ours, due)]
    for own, right in zip(*slopes, strict=True):
        torch.testing.assert_close(own, right, rtol=0, atol=1e-10)


@pytest.mark.parametrize("route", ROUTES.values(), ids=ROUTES)
def test_several_in_their_order(route: Route) -> None:
    """A cap after a bias is not the bias after a cap."""
    given = drawn(WIDTH)
    outs = []
    for mods in ([ALiBi(HEADS), Softcap(0.5)], [Softcap(0.5), ALiBi(HEADS)]):
        ours = routed_attention(*given, route, score_mod=mods)
        weights = routed_attention_weights(*given[:2], route, score_mod=mods)
        value = given[2].repeat_interleave(HEADS // KEY_HEADS, 1)
        torch.testing.assert_close(ours, weights @ value, rtol=0, atol=1e-10)
        outs.append(ours)
    assert (outs[0] - outs[1]).abs().max() > 1e-3


@pytest.mark.parametrize("route", ROUTES.values(), ids=ROUTES)
def test_the_log_sum_exp_sees_the_modifier_and_has_a_gradient(route: Route) -> None:
    bias = trained(Shaw(WIDTH, 5, value_dim=0))
    given, where = drawn(WIDTH), tokens()
    _, lse = routed_attention_with_lse(
        *given, route, score_mod=bias, q_tokens=where, k_tokens=where
    )
    call = counted(given, route, Full(), where)
    clipped = call.distance[:, 0].clip(-5, 5) + 5
    added = call.scale * torch.einsum("bhle,blse->bhls", call.q, bias.key[clipped])
    score = call.scores() + added + call.times.clamp(min=1).double().log()
    due = score.masked_fill(~call.mask, -torch.inf)
    some = call.mask.any(-1)
    due = due.masked_fill(~some[..., None], 0.0).logsumexp(-1).masked_fill(~some, -torch.inf)
    torch.testing.assert_close(lse, due, rtol=0, atol=1e-10)
    inputs = [given[0], given[1], bias.key]
    slopes = [torch.autograd.grad(x[some].sin().sum(), inputs) for x in (lse, due)]
    for own, right in zip(*slopes, strict=True):
        torch.testing.assert_close(own, right, rtol=0, atol=1e-10)


@pytest.mark.parametrize("pattern", [Full(), Causal()], ids=str)
@pytest.mark.parametrize("route", ROUTES.values(), ids=ROUTES)
def test_weights_count_each_meeting(route: Route, pattern: Pattern) -> None:
    """weights @ value is the output; rows sum to 1 or 0; 0 where a pair does not meet."""
    given, where = drawn(4), tokens()
    places = {"q_tokens": where, "k_tokens": where}
    weights = routed_attention_weights(*given[:2], route, pattern, **places)
    call = counted(given, route, pattern, where)
    torch.testing.assert_close(weights, call.weights(call.scores()), rtol=0, atol=1e-12)
    assert not weights[~call.mask].any()
    sums = weights.sum(-1)
    torch.testing.assert_close(sums, call.mask.any(-1).double(), rtol=0, atol=1e-12)
    value = given[2].repeat_interleave(HEADS // KEY_HEADS, 1)
    out = routed_attention(*given, route, pattern, **places)
    torch.testing.assert_close(out, weights @ value, rtol=0, atol=1e-10)


def test_weights_where_all_pairs_meet_once_are_those_of_the_pattern() -> None:
    slots = torch.arange(N).expand(BATCH, HEADS, 1, N)
    query, key, _ = drawn(4)
    whole = routed_attention_weights(query, key, Route(slots, slots, N, N, N), Causal())
    assert torch.equal(whole > 0, dense_mask(Causal(), N).expand_as(whole))


def test_dropout_beside_a_modifier() -> None:
    """The weights that are left out are the same in the backward pass."""
    route, given = ROUTES["drawn"], drawn(WIDTH)
    given = [x[:, :, :5].detach().requires_grad_() for x in given]
    slots = route.queries.clamp(max=4), route.keys.clamp(max=4)
    small = replace(route, queries=slots[0], keys=slots[1])
    mod = trained(Shaw(WIDTH, 2))

    def call(*x: Tensor) -> Tensor:
        torch.manual_seed(1)
        return routed_attention(*x, small, score_mod=mod, dropout_p=0.3)

    assert torch.autograd.gradcheck(call, given, fast_mode=True)


def test_dropout_depends_on_the_head() -> None:
    given = drawn(WIDTH)
    work = Routed(
        ROUTES["even"], Full(), tokens(), tokens(), 1.0, HEADS // KEY_HEADS,
        ((Dropout(0.5, 1), 0),),
    )  # fmt: skip
    ones = [torch.zeros_like(given[0]), torch.zeros_like(given[1]), torch.ones_like(given[2])]
    out, _ = run(work, *ones, (None,))
    assert not torch.equal(out[:, 0], out[:, 1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_smaller_types(dtype: torch.dtype) -> None:
    route, mod = ROUTES["drawn"], ALiBi(HEADS)
    given = [x.detach() for x in drawn(WIDTH, dtype)]
    ours = routed_attention(*given, route, score_mod=mod)
    exact = routed_attention(*(x.double() for x in given), route, score_mod=mod)
    assert ours.dtype == dtype
    assert (ours.double() - exact).abs().max() < {torch.float32: 1e-6, torch.bfloat16: 2e-2}[dtype]


def test_what_cannot_serve_a_route_is_refused_by_name() -> None:
    given, route = drawn(WIDTH), ROUTES["drawn"]
    with pytest.raises(NotSupported, match=r"along a route.*callable score_mod"):
        routed_attention(*given, route, score_mod=lambda score, *_: score * 2)
    far = Tokens(torch.arange(N) * (1 << 40))
    with pytest.raises(NotSupported, match=r"along a route.*positions lie up to"):
        routed_attention(*given, route, score_mod=ALiBi(HEADS), q_tokens=far, k_tokens=far)


def test_weights_take_a_callable() -> None:
    query, key, _ = drawn(WIDTH)
    route = ROUTES["drawn"]
    twice = routed_attention_weights(query, key, route, score_mod=lambda score, *_: score * 2)
    due = routed_attention_weights(2 * query, key, route)
    torch.testing.assert_close(twice, due, rtol=0, atol=1e-12)
