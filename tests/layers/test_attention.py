"""MultiHeadAttention against torch's layer and against formulas written out."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from eyeline import Causal, Full, PerHead, Tokens, Window, dense_mask, streaming
from eyeline.encodings import Learned, Rotary, Sinusoidal
from eyeline.errors import NotSupported
from eyeline.layers import MultiHeadAttention
from eyeline.mechanisms import Compressed, Exact
from eyeline.scores import ALiBi, Shaw, Softcap, T5Bias
from layers.dense import copy_attention, dense, drawn, heads_of, random

D, H, L, S = 33, 3, 17, 23


def close(ours: Tensor, theirs: Tensor, atol: float = 1e-12) -> None:
    torch.testing.assert_close(ours, theirs, rtol=0, atol=atol)


def layer(**options: object) -> MultiHeadAttention:
    made = MultiHeadAttention(D, H, **options).double()  # type: ignore[arg-type]
    drawn(made)
    return made


def torch_layer(**options: object) -> nn.MultiheadAttention:
    made = nn.MultiheadAttention(D, H, batch_first=True, **options).double()  # type: ignore[arg-type]
    drawn(made)
    return made


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("widths", [{}, {"kdim": 5, "vdim": 7}, {"kdim": 13}])
def test_torch_layer_with_copied_weights(bias: bool, widths: dict[str, int]) -> None:
    theirs, ours = torch_layer(bias=bias, **widths), layer(bias=bias, **widths)
    copy_attention(theirs, ours)
    query = random(2, L, D).requires_grad_()
    key, value = random(2, S, widths.get("kdim", D), seed=1), random(2, S, widths.get("vdim", D))
    want, weights = theirs(query, key, value, average_attn_weights=False)
    close(ours(query, key, value), want)
    close(ours.weights(query, key), weights)
    grads = [
        torch.autograd.grad(out.square().sum(), query) for out in (want, ours(query, key, value))
    ]
    close(*(grad for (grad,) in grads), atol=1e-10)


def test_torch_masks_say_who_may_not_look() -> None:
    theirs, ours = torch_layer(), layer(pattern=Causal() & Window(left=4, right=0))
    copy_attention(theirs, ours)
    x, allowed = random(3, L, D), dense_mask(ours.pattern, L)
    close(ours(x), theirs(x, x, x, attn_mask=~allowed, need_weights=False)[0])


def test_torch_key_padding_is_nobody_among_the_keys() -> None:
    theirs, ours = torch_layer(), layer()
    copy_attention(theirs, ours)
    x, lengths = random(3, L, D), [17, 11, 3]
    ignored = torch.arange(L) >= torch.tensor(lengths)[:, None]
    want = theirs(x, x, x, key_padding_mask=ignored, need_weights=False)[0]
    tokens = Tokens.padded(lengths, side="right", length=L)
    close(ours(x, q_tokens=Tokens.arange(0, L), k_tokens=tokens), want)
    got = ours(x, q_tokens=tokens)
    close(got[~ignored], want[~ignored])
    close(got[ignored], ours.out_proj.bias.expand_as(got[ignored]))


def test_a_key_without_a_value_is_its_own_value() -> None:
    ours, query, key = layer(kdim=13, vdim=13), random(2, L, D), random(2, S, 13, seed=1)
    close(ours(query, key), dense(ours, query, key, key))
    close(ours(query, key), ours(query, key, key))


@settings(max_examples=25)
@given(
    heads=st.sampled_from([(1, 1), (2, 1), (3, 3), (6, 2), (5, 1)]),
    width=st.integers(1, 9),
    length=st.integers(1, 19),
    bias=st.booleans(),
    left=st.integers(0, 20),
)
def test_any_sizes_are_the_formula(
    heads: tuple[int, int], width: int, length: int, bias: bool, left: int
) -> None:
    pattern = Window(left=left, right=2)
    ours = MultiHeadAttention(
        7, heads[0], num_kv_heads=heads[1], head_dim=width, pattern=pattern, bias=bias
    ).double()
    drawn(ours)
    x = random(2, length, 7)
    close(ours(x), dense(ours, x, x, x, mask=dense_mask(pattern, length)))


def test_heads_may_have_patterns_of_their_own() -> None:
    pattern = PerHead([Causal(), Full(), Window(left=2, right=1)])
    ours, x = layer(pattern=pattern), random(2, L, D)
    alone = [layer(pattern=each)._in_heads(x, None, None, None, None) for each in pattern.members]
    seen = [
        Exact(each)(*(heads[:, i : i + 1] for heads in alone[i]))
        for i, each in enumerate(pattern.members)
    ]
    close(ours(x), ours.out_proj(torch.cat(seen, 1).transpose(1, 2).flatten(2)))


def test_no_call_changes_what_a_length_gives() -> None:
    """One set of parameters serves any length."""
    ours, x = layer(pattern=streaming(size=5, sinks=2)), random(1, 31, D)
    whole = ours(x)
    for length in (1, 2, 13, 31):
        close(ours(x[:, :length]), whole[:, :length])


# --- Positions -----------------------------------------------------------------------------------


def turned(x: Tensor, positions: Tensor) -> Tensor:
    """x (B, H, L, E): pairs (j, j + E/2) as complex numbers, times e^{i p θ_j}."""
    half = x.shape[-1] // 2
    theta = 10000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
    z = torch.complex(x[..., :half], x[..., half:]) * torch.exp(1j * positions[:, None] * theta)
    return torch.cat((z.real, z.imag), -1)


def test_rotary_turns_queries_and_keys_where_they_stand() -> None:
    ours = MultiHeadAttention(D, H, head_dim=8, pattern=Causal(), position=Rotary(8)).double()
    drawn(ours)
    x, positions = random(2, L, D), torch.arange(L) + 5
    q, k, v = (heads_of(x, f, 8) for f in (ours.q_proj, ours.k_proj, ours.v_proj))
    score = turned(q, positions) @ turned(k, positions).transpose(-2, -1) / math.sqrt(8)
    weight = score.masked_fill(~torch.ones(L, L).tril().bool(), -math.inf).softmax(-1)
    want = ours.out_proj((weight @ v).transpose(1, 2).flatten(2))
    close(ours(x, q_tokens=Tokens(positions)), want)
    close(ours(x), want)  # a shift of all positions changes nothing


def test_rotary_in_cross_attention_uses_the_tokens_of_each_side() -> None:
    ours = MultiHeadAttention(D, H, head_dim=8, position=Rotary(8)).double()
    drawn(ours)
    query, key = random(2, 5, D), random(2, S, D, seed=1)
    q_tokens, k_tokens = Tokens.arange(40, 45), Tokens.arange(3, 3 + S)
    shifted = ours(query, key, q_tokens=Tokens.arange(41, 46), k_tokens=Tokens.arange(4, 4 + S))
    close(ours(query, key, q_tokens=q_tokens, k_tokens=k_tokens), shifted)
    kept = ours.project(key, k_tokens=k_tokens)
    close(ours(query, kept, q_tokens=q_tokens, k_tokens=k_tokens), shifted)
    default = ours(query, key, q_tokens=Tokens.arange(S - 5, S), k_tokens=Tokens.arange(0, S))
    close(ours(query, key), default)
    close(ours(query, key, k_tokens=Tokens.arange(0, S)), default)
    close(ours(query, ours.project(key)), default)


@pytest.mark.parametrize(
    "encoding", [Sinusoidal(D - 1), Learned(29, D - 1)], ids=["sin", "learned"]
)
def test_an_added_encoding_reaches_queries_and_keys_but_not_values(
    encoding: Sinusoidal | Learned,
) -> None:
    ours = MultiHeadAttention(D - 1, 4, position=encoding).double()
    drawn(ours)
    x, positions = random(2, L, D - 1), torch.arange(L) + 7
    placed = x + encoding.table(positions, dtype=torch.float64)
    close(ours(x, q_tokens=Tokens(positions)), dense(ours, placed, placed, x))


@pytest.mark.parametrize("position", [Rotary(8), Learned(99, D)], ids=["rotary", "learned"])
def test_in_self_attention_too_keys_may_have_tokens_of_their_own(position: object) -> None:
    ours, x = layer(head_dim=8, position=position), random(2, L, D)
    q_tokens, k_tokens = Tokens.arange(50, 50 + L), Tokens.padded([L, L - 4])
    got = ours(x, q_tokens=q_tokens, k_tokens=k_tokens)
    close(got, ours(x, x, q_tokens=q_tokens, k_tokens=k_tokens))
    assert (got - ours(x, q_tokens=q_tokens)).abs().max() > 1e-3


def test_score_modifiers_change_scores() -> None:
    alibi, t5 = ALiBi(H), T5Bias(H, bidirectional=True).double()
    drawn(t5)
    ours, x = layer(position=[alibi, t5, lambda s, b, h, i, j: s + 0.25 * h]), random(2, L, D)
    distance = torch.arange(L)[None, :] - torch.arange(L)[:, None]
    slopes = torch.tensor([2.0**-4, 2.0**-8, 2.0**-2], dtype=torch.float64)
    bias = -slopes[:, None, None] * distance.abs() + torch.arange(H)[:, None, None] * 0.25
    zero = torch.zeros(1, H, L, 1, dtype=torch.float64)
    from_t5 = Exact(score_mod=t5, scale=0.0).weights(zero, zero).log()
    close(ours(x), dense(ours, x, x, x, bias=bias + from_t5[0]), 1e-10)


def test_trained_modifiers_are_parameters_of_the_layer() -> None:
    ours = layer(position=[T5Bias(H, bidirectional=False), Shaw(D // H, 4), Learned(L, D)])
    names = {name for name, _ in ours.named_parameters()}
    assert {"mechanism.trained.0.weight", "mechanism.trained.1.key", "added.weight"} <= names
    ours(random(2, L, D)).square().sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in ours.parameters())
    other = copy.deepcopy(ours)
    assert other.mechanism.score_mods[0] is other.mechanism.trained[0]  # type: ignore[union-attr, index]
    assert other.mechanism.trained[0] is not ours.mechanism.trained[0]  # type: ignore[union-attr, index]


# --- The textbook's column form ------------------------------------------------------------------


def test_column_form_with_biases_and_omegas() -> None:
    """Sa[X] = V[X] · Softmax[K[X]ᵀ Q[X]] with columns as tokens and the softmax over each column;
    V[X] = β_v 1ᵀ + Ω_v X, and Q and K of X + Π. Scores are divided by the root of the width."""
    d, n = 13, 11
    generator = torch.Generator().manual_seed(3)
    beta = {m: torch.randn(d, 1, generator=generator, dtype=torch.float64) for m in "qkv"}
    omega = {m: torch.randn(d, d, generator=generator, dtype=torch.float64) for m in "qkv"}
    columns, places = (torch.randn(d, n, generator=generator, dtype=torch.float64) for _ in "xp")
    one = torch.ones(1, n, dtype=torch.float64)
    q, k = (beta[m] @ one + omega[m] @ (columns + places) for m in "qk")
    v = beta["v"] @ one + omega["v"] @ columns
    score = k.T @ q / math.sqrt(d)
    weight = score.exp() / score.exp().sum(0, keepdim=True)
    want = v @ weight

    table = Learned(n, d).double()
    ours = MultiHeadAttention(d, 1, position=table).double()
    with torch.no_grad():
        table.weight.copy_(places.T)
        for m, linear in zip("qkv", (ours.q_proj, ours.k_proj, ours.v_proj), strict=True):
            linear.weight.copy_(omega[m])
            linear.bias.copy_(beta[m][:, 0])
        ours.out_proj.weight.copy_(torch.eye(d))
    close(ours(columns.T[None])[0].T, want)
    close(ours.weights(columns.T[None])[0, 0].T, weight)


@pytest.mark.parametrize("kv_heads", [1, 3])
def test_without_positions_tokens_have_no_order(kv_heads: int) -> None:
    ours, x = layer(num_kv_heads=kv_heads), random(2, L, D)
    order = torch.randperm(L, generator=torch.Generator().manual_seed(5))
    close(ours(x[:, order]), ours(x)[:, order])
    placed = layer(num_kv_heads=kv_heads, position=Learned(L, D))
    assert (placed(x[:, order]) - placed(x)[:, order]).abs().max() > 1e-3


# --- What it costs -------------------------------------------------------------------------------


def test_heads_cost_what_one_of_full_width_costs() -> None:
    counts = []
    for heads in (1, 2, 5, 10):
        ours, x = MultiHeadAttention(40, heads), random(2, L, 40, dtype=torch.float32)
        with (
            FlopCounterMode(display=False) as counter,
            torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH),
        ):
            ours(x)
        counts.append((sum(p.numel() for p in ours.parameters()), counter.get_total_flops()))
    projections, products = 4 * L * 40 * 40, 2 * L * L * 40
    assert set(counts) == {(4 * 40 * 40 + 4 * 40, 2 * 2 * (projections + products))}


def test_fresh_weights_are_those_of_torch() -> None:
    torch.manual_seed(0)
    for widths in ({}, {"kdim": 131, "vdim": 67}):
        ours, theirs = MultiHeadAttention(128, 4, **widths), nn.MultiheadAttention(128, 4, **widths)
        if theirs.in_proj_weight is not None:
            drawn_by_torch = theirs.in_proj_weight.chunk(3)
        else:
            drawn_by_torch = (theirs.q_proj_weight, theirs.k_proj_weight, theirs.v_proj_weight)
        linears = (ours.q_proj, ours.k_proj, ours.v_proj, ours.out_proj)
        for linear, weight in zip(linears, (*drawn_by_torch, theirs.out_proj.weight), strict=True):
            assert float(linear.weight.detach().abs().max()) == pytest.approx(
                float(weight.detach().abs().max()), rel=1e-2
            )
            assert float(linear.weight.detach().std()) == pytest.approx(
                float(weight.detach().std()), rel=3e-2
            )
            assert not linear.bias.any()


# --- Dropout, dtypes, derivatives, state ---------------------------------------------------------


def test_dropout_is_of_weights_and_only_in_training() -> None:
    ours, x = layer(dropout=0.5, pattern=Causal()), random(2, L, D)
    plain = layer(pattern=Causal())
    plain.load_state_dict(ours.state_dict())
    close(ours.eval()(x), plain(x))
    ours.train()
    torch.manual_seed(1)
    first = ours(x)
    assert (first - ours(x)).abs().max() > 1e-3
    torch.manual_seed(1)
    close(ours(x), first)
    mean = torch.stack([ours(x) for _ in range(400)]).mean(0)
    assert (mean - plain(x)).abs().mean() < 0.1 * (first - plain(x)).abs().mean()
    close(ours.weights(x), plain.weights(x))  # before dropout, also in training


@pytest.mark.parametrize("options", [
    {"pattern": Causal(), "num_kv_heads": 1, "position": Rotary(4)},
    {"pattern": Window(left=2, right=1), "position": [Softcap(2.0), Learned(9, 12)], "bias": False},
], ids=["rotary", "softcap"])  # fmt: skip
def test_derivatives(options: dict[str, object]) -> None:
    ours = MultiHeadAttention(12, 3, **options).double()  # type: ignore[arg-type]
    drawn(ours)
    names = [name for name, _ in ours.named_parameters()]
    x, parameters = random(2, 7, 12), [p.detach() for p in ours.parameters()]

    def called(x: Tensor, *values: Tensor) -> Tensor:
        given = dict(zip(names, values, strict=True))
        out: Tensor = torch.func.functional_call(ours, given, (x,))
        return out

    inputs = [t.clone().requires_grad_() for t in (x, *parameters)]
    assert torch.autograd.gradcheck(called, inputs, fast_mode=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_lower_precision_is_near(dtype: torch.dtype) -> None:
    exact, x = layer(pattern=Causal(), position=Rotary(8), head_dim=8), random(2, L, D)
    ours = copy.deepcopy(exact).to(dtype)
    got = ours(x.to(dtype))
    assert got.dtype == dtype
    rough = 1e-5 if dtype == torch.float32 else 5e-2
    assert (got.double() - exact(x)).abs().max() < rough * exact(x).abs().max()


def test_autocast() -> None:
    exact, x = layer(pattern=Causal(), position=Rotary(8), head_dim=8), random(2, L, D)
    ours = copy.deepcopy(exact).float()
    with torch.autocast("cpu", torch.bfloat16):
        got = ours(x.float())
    assert got.dtype == torch.bfloat16
    assert (got.double() - exact(x)).abs().max() < 5e-2 * exact(x).abs().max()
    got.float().square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in ours.parameters())


def test_copies_and_states() -> None:
    ours = layer(position=[Rotary(11 - 1), T5Bias(H, bidirectional=True)], head_dim=10)
    x, twin = (
        random(2, L, D),
        layer(position=[Rotary(10), T5Bias(H, bidirectional=True)], head_dim=10),
    )
    twin.reset_parameters()
    assert (twin(x) - ours(x)).abs().max() > 1e-3
    assert str(twin.load_state_dict(ours.state_dict())) == "<All keys matched successfully>"
    close(twin(x), ours(x))
    close(copy.deepcopy(ours)(x), ours(x))


def test_documents_and_padding_end_where_they_end() -> None:
    ours, x = layer(pattern=Causal()), random(1, L, D)
    tokens = Tokens.packed([5, 1, 8], length=L)
    got = ours(x, q_tokens=tokens)
    changed = x.clone()
    changed[:, :5], changed[:, 14:] = 1e4, -1e4
    again = ours(changed, q_tokens=tokens)
    assert torch.equal(again[:, 5:14], got[:, 5:14])
    close(got[:, 14:], ours.out_proj.bias.expand(1, 3, D))


def test_weights_are_those_that_the_output_uses() -> None:
    ours, x = layer(pattern=Causal(), num_kv_heads=1), random(2, L, D)
    weight = ours.weights(x)
    assert weight.shape == (2, H, L, L)
    v = heads_of(x, ours.v_proj, D // H)
    close(ours.out_proj((weight @ v).transpose(1, 2).flatten(2)), ours(x))
    assert not weight.triu(1).any()
    close(weight.sum(-1), torch.ones(2, H, L, dtype=torch.float64))
    blended = Compressed(2, num_kv_heads=H, head_dim=ours.head_dim)
    with pytest.raises(NotSupported, match="Compressed has no weights to return: by='conv'"):
        MultiHeadAttention(D, H, mechanism=blended).weights(x.float())


def test_it_says_what_it_is() -> None:
    text = repr(MultiHeadAttention(12, 6, num_kv_heads=2, pattern=Causal(), position=ALiBi(6)))
    assert "embed_dim=12, num_heads=6, num_kv_heads=2, head_dim=2" in text
    assert "causal, ALiBi" in text
