"""Linear attention equals its formula, written out: values, gradients, and what it promises."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from eyeline.errors import InvalidArgument, NotSupported
from eyeline.functional import attention, linear_attention, linear_attention_weights
from eyeline.mechanisms.linear.features import Elu, Favor, FeatureMap, Relu, orthogonal_rows
from eyeline.patterns import Causal
from eyeline.testing.kernel import largest_tensor
from eyeline.tokens import Tokens

FAVOR = Favor(5, 11, seed=3)
MAPS = [Elu(), Relu(), Relu(0.0), FAVOR]


def phi(feature_map: FeatureMap, x: Tensor) -> Tensor:
    if isinstance(feature_map, Elu):
        return torch.nn.functional.elu(x) + 1
    if isinstance(feature_map, Relu):
        return x.clamp(min=0) + feature_map.eps
    w = feature_map.projection.to(x.dtype)  # type: ignore[attr-defined]
    u = x / x.shape[-1] ** 0.25
    return torch.exp(u @ w.T - (u * u).sum(-1, keepdim=True) / 2) / math.sqrt(len(w))


def formula(
    query: Tensor, key: Tensor, value: Tensor, feature_map: FeatureMap, mask: Tensor
) -> Tensor:
    """φ(q_i)ᵀ Σ_j φ(k_j) v_jᵀ / φ(q_i)ᵀ Σ_j φ(k_j), each pair by itself; mask (B or 1, L, S)."""
    groups = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(groups, 1) for x in (key, value))
    product = torch.einsum("bhif,bhjf->bhij", phi(feature_map, query), phi(feature_map, key))
    product = product * mask[:, None]
    below = product.sum(-1, keepdim=True)
    return torch.where(below > 0, product @ value / torch.where(below > 0, below, 1), 0)


def mask_for(q: Tokens, k: Tokens, causal: bool) -> Tensor:
    """By slots, one after another."""
    (qp, qd), (kp, kd) = ((torch.atleast_2d(x.positions), x.documents) for x in (q, k))
    rows = max(len(qp), len(kp))
    seen = (qp[:, :, None] >= 0) & (kp[:, None, :] >= 0)
    if causal:
        seen = seen & (kp[:, None, :] <= qp[:, :, None])
    if qd is not None and kd is not None:
        seen = seen & (torch.atleast_2d(kd)[:, None, :] == torch.atleast_2d(qd)[:, :, None])
    return seen.expand(rows, -1, -1)


def inputs(
    length: int, keys: int | None = None, *, heads: tuple[int, int] = (6, 3), seed: int = 0
) -> list[Tensor]:
    torch.manual_seed(seed)
    keys = keys if keys is not None else length
    shapes = ((2, heads[0], length, 5), (2, heads[1], keys, 5), (2, heads[1], keys, 3))
    return [torch.randn(s, dtype=torch.float64).requires_grad_() for s in shapes]


def compare(
    given_: list[Tensor],
    feature_map: FeatureMap,
    causal: bool,
    q: Tokens | None = None,
    k: Tokens | None = None,
) -> None:
    """Output and gradients, to 1e-10."""
    out = linear_attention(
        *given_,
        feature_map=feature_map,
        causal=causal,
        q_tokens=q,
        k_tokens=k,  # type: ignore[arg-type]
    )
    length, keys = given_[0].shape[2], given_[1].shape[2]
    k = k if k is not None else Tokens.arange(0, keys)
    q = q if q is not None else Tokens.arange(max(keys - length, 0), max(keys, length))
    mask = mask_for(q, k, causal)
    due = formula(*given_, feature_map, mask.to(torch.float64))  # type: ignore[misc]
    slope = torch.randn_like(due)
    found = (out, *torch.autograd.grad(out, given_, slope))
    wanted = (due, *torch.autograd.grad(due, given_, slope))
    for one, other in zip(found, wanted, strict=True):
        assert one.isfinite().all()
        assert (one - other).abs().max().item() < 1e-10 if one.numel() else one.shape == other.shape


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("feature_map", MAPS, ids=str)
@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 129])
def test_equals_the_formula(feature_map: FeatureMap, length: int, causal: bool) -> None:
    compare(inputs(length), feature_map, causal)


@pytest.mark.parametrize("feature_map", [Elu(), FAVOR], ids=str)
def test_several_pieces(feature_map: FeatureMap, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eyeline.budgets.budgets.scanned", 1)
    monkeypatch.setattr("eyeline.budgets.budgets.folded", 1)
    monkeypatch.setattr("eyeline.mechanisms.linear.scan.CHUNK", 7)
    for length in (6, 7, 8, 14, 30):
        compare(inputs(length), feature_map, True)
        compare(inputs(length), feature_map, False)
    compare(inputs(31), feature_map, True, *[Tokens.packed([3, 0, 1, 15, 9], length=31)] * 2)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("heads", [(8, 8), (8, 2), (8, 1), (1, 1)])
@pytest.mark.parametrize("feature_map", [Elu(), FAVOR], ids=str)
def test_shared_heads(feature_map: FeatureMap, heads: tuple[int, int], causal: bool) -> None:
    compare(inputs(67, heads=heads), feature_map, causal)


@pytest.mark.parametrize("feature_map", [Relu(), FAVOR], ids=str)
def test_other_keys_than_queries(feature_map: FeatureMap) -> None:
    compare(inputs(5, 71), feature_map, False)
    compare(inputs(71, 5), feature_map, False)
    compare(inputs(5, 71), feature_map, True)  # the queries are the last of the keys
    q = Tokens.listed([9, 70, -1, 3, 3, 1000])
    compare(inputs(6, 71), feature_map, True, q, Tokens.arange(2, 73))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("feature_map", [Elu(), FAVOR], ids=str)
def test_documents_and_pads(feature_map: FeatureMap, causal: bool) -> None:
    for tokens in (
        Tokens.packed([5, 0, 1, 130, 2, 30], length=190),
        Tokens.padded([190, 33]),
        Tokens.padded([1, 0], "right", length=190),
        Tokens.listed([-1, 4, -1, 7, 8, -1], [0, 3, 9, 3, 1, 1]),
        Tokens.listed([4, 0, 2, 2, 1, 3], [0, 1, 0, 1, 0, 1]),  # in no order at all
        Tokens.listed([0, 1, 0, 1, 2], [5, 5, 2, 2, 2]),  # each from 0 on
    ):
        compare(inputs(tokens.length), feature_map, causal, tokens, tokens)


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_any_tokens(data: st.DataObject) -> None:
    lengths = data.draw(st.tuples(st.integers(0, 20), st.integers(1, 20)))
    q, k = (
        Tokens.listed(
            data.draw(st.lists(st.integers(-1, 12), min_size=n, max_size=n)),
            data.draw(st.lists(st.integers(0, 3), min_size=n, max_size=n)),
        )
        for n in lengths
    )
    feature_map = data.draw(st.sampled_from(MAPS))
    compare(inputs(*lengths, heads=(2, 1)), feature_map, data.draw(st.booleans()), q, k)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("feature_map", [Elu(), Relu(), Favor(5, 7)], ids=str)
def test_what_stands_in_pads_changes_nothing(feature_map: FeatureMap, causal: bool) -> None:
    tokens = Tokens.listed([-1, 0, 1, -1, -1, 2, 3, -1])
    nobody = (tokens.positions < 0)[None, None, :, None]
    clean = [x.detach().float() for x in inputs(8)]
    results = []
    for garbage in (0.0, 1e4, -1e4):
        dirty = [x.masked_fill(nobody, garbage).requires_grad_() for x in clean]
        out = linear_attention(
            *dirty, feature_map=feature_map, causal=causal, q_tokens=tokens, k_tokens=tokens
        )  # type: ignore[call-overload]
        out.square().sum().backward()
        slopes = [x.grad for x in dirty]
        assert all((x.masked_fill(~nobody, 0) == 0).all() for x in (out, *slopes))
        results.append((out, *slopes))
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


@pytest.mark.parametrize("feature_map", MAPS, ids=str)
@pytest.mark.parametrize("causal", [False, True])
def test_second_derivatives(feature_map: FeatureMap, causal: bool) -> None:
    given_ = [x.detach()[:1, :1].requires_grad_() for x in inputs(4)]

    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return linear_attention(q, k, v, feature_map=feature_map, causal=causal)

    assert torch.autograd.gradcheck(function, given_)
    assert torch.autograd.gradgradcheck(function, given_)


def test_a_map_of_ones_own_with_parameters() -> None:
    class Learned(nn.Module, FeatureMap):
        def __init__(self) -> None:
            super().__init__()
            self.matrix = nn.Parameter(torch.randn(5, 4, dtype=torch.float64))

        def forward(self, x: Tensor) -> Tensor:
            return torch.nn.functional.softplus(x @ self.matrix)

        def count(self, head_dim: int) -> int:
            return 4

    learned = Learned()
    q, k, v = inputs(130)
    for causal in (False, True):
        mask = torch.ones(130, 130, dtype=torch.float64)
        mask = mask.tril() if causal else mask
        weight = learned(q) @ learned(k).repeat_interleave(2, 1).transpose(2, 3) * mask
        due = weight / weight.sum(-1, keepdim=True) @ v.repeat_interleave(2, 1)
        out = linear_attention(q, k, v, feature_map=learned, causal=causal)
        slope = torch.randn_like(due)
        (found,) = torch.autograd.grad(out, [learned.matrix], slope)
        (wanted,) = torch.autograd.grad(due, [learned.matrix], slope)
        torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("scale", [1, 3, 10, 30])
@pytest.mark.parametrize("feature_map", [Favor(16, 16), Elu(), Relu()], ids=str)
def test_no_past_output_depends_on_the_future(feature_map: FeatureMap, scale: float) -> None:
    torch.manual_seed(5)
    given_ = [torch.randn(1, 2, 150, 16) * scale for _ in range(3)]
    before = linear_attention(*given_, feature_map=feature_map, causal=True)  # type: ignore[misc]
    for place in (0, 1, 63, 64, 100, 148):
        changed = [x.clone() for x in given_]
        for x in changed:
            x[:, :, place + 1 :] = torch.randn_like(x[:, :, place + 1 :]) * 40
        after = linear_attention(*changed, feature_map=feature_map, causal=True)  # type: ignore[misc]
        assert torch.equal(before[:, :, : place + 1], after[:, :, : place + 1])


@pytest.mark.parametrize("scale", [1, 3, 10, 30])
@pytest.mark.parametrize("causal", [False, True])
def test_random_features_neither_vanish_nor_overflow(scale: float, causal: bool) -> None:
    """Against log-sum-exps of the features in float64, where exponents are in the thousands."""
    torch.manual_seed(5)
    feature_map = Favor(16, 13)
    given_ = [(torch.randn(1, 2, 140, 16) * scale).requires_grad_() for _ in range(3)]
    doubles = [x.detach().double().requires_grad_() for x in given_]
    q, k = (feature_map(x) for x in doubles[:2])
    pair = (q[:, :, :, None] + k[:, :, None]).logsumexp(-1)
    if causal:
        pair = pair.masked_fill(~torch.ones(140, 140, dtype=torch.bool).tril(), -torch.inf)
    due = pair.softmax(-1) @ doubles[2]
    out = linear_attention(*given_, feature_map=feature_map, causal=causal)  # type: ignore[misc]
    slope = torch.randn_like(due)
    found = (out, *torch.autograd.grad(out, given_, slope.float()))
    wanted = (due, *torch.autograd.grad(due, doubles, slope))
    rounding = 2e-7 * max(scale, 1) ** 2 * 16**0.5  # of exponents, in float32
    for one, other in zip(found, wanted, strict=True):
        assert (one - other).abs().max() < 20 * rounding * max(float(other.detach().abs().max()), 1)


def test_random_features_converge_to_softmax_as_one_over_the_root() -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 1, 40, 8, dtype=torch.float64) * 0.3 for _ in range(3))
    exact = attention(q, k, v, Causal())
    counts = (16, 64, 256, 1024, 4096)
    errors = []
    for count in counts:
        each = [
            linear_attention(q, k, v, feature_map=Favor(8, count, seed=seed), causal=True) - exact
            for seed in range(10)
        ]
        errors.append(torch.stack(each).square().mean().sqrt().log())
    x = torch.tensor(counts, dtype=torch.float64).log()
    y = torch.stack(errors)
    exponent = float(((x - x.mean()) * (y - y.mean())).sum() / (x - x.mean()).square().sum())
    assert -0.6 < exponent < -0.4
    assert errors[-1].exp() < 2e-3


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("feature_map", [Elu(), Relu(), Favor(8, 8)], ids=str)
def test_sums_of_many_ones_stay_finite(
    feature_map: FeatureMap, dtype: torch.dtype, causal: bool
) -> None:
    ones = [torch.ones(1, 1, 65536, 8, dtype=dtype).requires_grad_() for _ in range(3)]
    out = linear_attention(*ones, feature_map=feature_map, causal=causal)  # type: ignore[misc]
    assert out.dtype == dtype and torch.equal(out, torch.ones_like(out))
    out.backward(torch.ones_like(out))
    for x in ones:
        assert x.grad is not None and x.grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_types_lose_only_their_own_rounding(dtype: torch.dtype) -> None:
    given_ = [x.detach().to(dtype) for x in inputs(131)]
    for feature_map in (Elu(), FAVOR):
        out = linear_attention(*given_, feature_map=feature_map, causal=True)  # type: ignore[misc]
        mask = torch.ones(1, 131, 131, dtype=torch.float64).tril()
        due = formula(*[x.double() for x in given_], feature_map, mask)  # type: ignore[call-arg]
        assert (out - due).abs().max() < torch.finfo(dtype).eps * due.abs().max()


def test_weights() -> None:
    tokens = Tokens.packed([3, 4], length=9)
    q, k, v = inputs(9)
    for causal in (False, True):
        given_ = {"feature_map": FAVOR, "causal": causal, "q_tokens": tokens, "k_tokens": tokens}
        weight = linear_attention_weights(q, k, **given_)  # type: ignore[arg-type]
        out = linear_attention(q, k, v, **given_)  # type: ignore[arg-type]
        torch.testing.assert_close(weight @ v.repeat_interleave(2, 1), out)
        sums = weight.sum(-1)
        torch.testing.assert_close(sums[..., :7], torch.ones_like(sums[..., :7]))
        assert (weight[..., 7:, :] == 0).all() and (weight[..., 7:] == 0).all()
        assert (weight[..., 3:7, :3] == 0).all()


def test_constant_values_come_out_and_nothing_of_nothing() -> None:
    q, k, v = inputs(70)
    for feature_map in (Elu(), FAVOR):
        for causal in (False, True):
            out = linear_attention(q, k, v * 0 + 2, feature_map=feature_map, causal=causal)
            torch.testing.assert_close(out, torch.full_like(out, 2.0))
    # No feature in common: 0 / 0 is 0.
    out = linear_attention(q.abs(), -k.abs(), v, feature_map=Relu(0.0))
    assert (out == 0).all()
    (slope,) = torch.autograd.grad(out.sum(), [v])
    assert (slope == 0).all()


def test_a_document_does_not_feel_another() -> None:
    tokens = Tokens.packed([60, 61, 20])
    given_ = [x.detach().float() * 10 for x in inputs(141)]
    changed = [x.clone() for x in given_]
    for x in changed:
        x[:, :, :60] *= -30
    for feature_map in (Elu(), FAVOR):
        for causal in (False, True):
            options = {"feature_map": feature_map, "causal": causal, "q_tokens": tokens}
            one, other = (
                linear_attention(*x, k_tokens=tokens, **options)  # type: ignore[arg-type, misc]
                for x in (given_, changed)
            )
            assert torch.equal(one[:, :, 60:], other[:, :, 60:])


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("feature_map", [Elu(), Favor(8, 16)], ids=str)
def test_memory_is_linear(feature_map: FeatureMap, causal: bool) -> None:
    length = 4099
    given_ = [torch.randn(1, 1, length, 8).requires_grad_() for _ in range(3)]
    documents = Tokens.packed([1000, 8, 1, 2048, 90], length=length)
    for tokens in (None, documents):

        def run(tokens: Tokens | None = tokens) -> None:
            options = {"q_tokens": tokens, "k_tokens": tokens}
            out = linear_attention(*given_, feature_map=feature_map, causal=causal, **options)  # type: ignore[arg-type, misc]
            out.sum().backward()

        assert largest_tensor(run) < 200 * length


def test_strided_and_cut_inputs() -> None:
    wide = torch.full((2, 3, 70, 20), torch.nan, dtype=torch.float64)
    wide[:, :, 3:69, :15] = torch.randn(2, 3, 66, 15, dtype=torch.float64)
    cut = [wide[:, :, 3:69, a : a + 5] for a in (0, 5, 10)]
    for causal in (False, True):
        one = linear_attention(*cut, causal=causal)  # type: ignore[misc]
        other = linear_attention(*[x.contiguous() for x in cut], causal=causal)  # type: ignore[misc]
        assert torch.equal(one, other)


def test_empty_inputs() -> None:
    q, k, v = inputs(0)
    assert linear_attention(q, k, v, causal=True).shape == (2, 6, 0, 3)
    q, k, v = inputs(4, 0)
    for feature_map in (Elu(), FAVOR):
        assert (linear_attention(q, k, v, feature_map=feature_map) == 0).all()


def test_rows_of_random_features_are_orthogonal_and_as_long_as_normal_ones() -> None:
    rows = orthogonal_rows(700, 7, seed=1).double()
    for block in rows.split(7):
        product = block @ block.T
        assert (product - product.diagonal().diag()).abs().max() < 1e-5
    assert abs(float(rows.square().sum(-1).mean()) - 7) < 0.5
    one, two = Favor(7, 9, seed=4), Favor(7, 9, seed=4)
    assert torch.equal(one.projection, two.projection)
    one.redraw(5)
    assert not torch.equal(one.projection, two.projection)
    two.redraw(5)
    assert torch.equal(one.projection, two.projection)
    assert Favor(1).projection.shape == (1, 1) and Favor(64).count(64) == 266


def test_refusals() -> None:
    q, k, v = inputs(4)
    with pytest.raises(InvalidArgument, match='"elu", "relu", or a FeatureMap'):
        linear_attention(q, k, v, feature_map="gelu")
    with pytest.raises(InvalidArgument, match="favor for heads of 8, these are 5"):
        linear_attention(q, k, v, feature_map=Favor(8))
    with pytest.raises(InvalidArgument, match="favor features=0"):
        Favor(8, 0)
    with pytest.raises(InvalidArgument, match="eps=-1"):
        Relu(-1.0)
    with pytest.raises(InvalidArgument, match="8 queries but 4 keys"):
        linear_attention(torch.cat((q, q), 2), k, v, causal=True)
    with pytest.raises(InvalidArgument, match="evenly"):
        linear_attention(q, k[:, :2].repeat(1, 2, 1, 1), v[:, :2].repeat(1, 2, 1, 1))
    with pytest.raises(NotSupported, match="meta"):
        linear_attention(*[x.detach().to("meta") for x in (q, k, v)])  # type: ignore[misc]
