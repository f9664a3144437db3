"""Linformer against its formula written densely: sums by position, pads, sharing, refusals."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from eyeline import Causal, Full, Pattern, SameSegment, Tokens, Window, sliding_window
from eyeline.encodings import Learned, Rotary
from eyeline.errors import InvalidArgument, NotSupported
from eyeline.layers import MultiHeadAttention
from eyeline.mechanisms import Heads, Linformer, recipe
from layers.dense import drawn, random

B, H, HK, L, E, EV, K, LENGTH = 2, 6, 3, 13, 5, 7, 4, 17
SHARING = ["none", "heads", "key_value"]


def made(sharing: str = "none", **options: object) -> Linformer:
    ours = Linformer(LENGTH, K, num_kv_heads=HK, head_dim=E, sharing=sharing, **options)  # type: ignore[arg-type]
    drawn(ours.double())
    return ours


def heads(length: int = L, keys: int = L) -> tuple[Tensor, Tensor, Tensor]:
    return random(B, H, length, E), random(B, HK, keys, E, seed=1), random(B, HK, keys, EV, seed=2)


def formula(ours: Linformer, q: Tensor, k: Tensor, v: Tensor, positions: list[int]) -> Tensor:
    """One row and one head at a time: softmax(q (E k)ᵀ / √d) (F v), with columns of positions."""
    second = ours.key_weight if ours.value_weight is None else ours.value_weight
    rows = []
    for b in range(len(q)):
        seen = []
        for h in range(H):
            own = h // (H // HK)
            shared = 0 if ours.sharing != "none" else own
            keys = ours.key_weight[shared][:, positions] @ k[b, own]
            values = second[shared][:, positions] @ v[b, own]
            seen.append((q[b, h] @ keys.T / math.sqrt(E)).softmax(-1) @ values)
        rows.append(torch.stack(seen))
    return torch.stack(rows)


def same(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)


def close(ours: Tensor, theirs: Tensor, inputs: list[Tensor]) -> None:
    """Outputs and all gradients."""
    same(ours, theirs)
    loss = random(*theirs.shape, seed=9)
    grads = zip(*(torch.autograd.grad((x * loss).sum(), inputs) for x in (ours, theirs)))  # noqa: B905
    for own, other in grads:
        same(own, other)


@pytest.mark.parametrize("sharing", SHARING)
@pytest.mark.parametrize(
    ("queries", "keys"), [(L, L), (1, 1), (L, 1), (1, LENGTH), (LENGTH, LENGTH), (5, 11), (29, 11)]
)
def test_formula(sharing: str, queries: int, keys: int) -> None:
    ours = made(sharing)
    inputs = [x.requires_grad_() for x in heads(queries, keys)]
    theirs = formula(ours, *inputs, list(range(keys)))  # type: ignore[arg-type]
    close(ours(*inputs), theirs, [*inputs, *ours.parameters()])


def test_sharing_counts_parameters() -> None:
    count = {name: sum(p.numel() for p in made(name).parameters()) for name in SHARING}
    assert count == {"none": 2 * HK * K * LENGTH, "heads": 2 * K * LENGTH, "key_value": K * LENGTH}


def test_layers_share_one_module() -> None:
    shared = Linformer(L, K, num_kv_heads=2, head_dim=4, sharing="key_value")
    model = nn.ModuleList(MultiHeadAttention(8, 2, mechanism=shared) for _ in range(3))
    own = 4 * (8 * 8 + 8)
    assert sum(p.numel() for p in model.parameters()) == 3 * own + K * L
    x = torch.randn(2, L, 8)
    for layer in model:
        x = layer(x)
    x.sum().backward()
    assert shared.key_weight.grad is not None


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("sharing", SHARING)
def test_pads_add_nothing_wherever_they_lie(side: str, sharing: str) -> None:
    ours, (q, k, v) = made(sharing), heads()
    tokens = Tokens.padded([L, 8], side)
    real = tokens.positions[1] >= 0
    k[1][:, ~real], v[1][:, ~real], q[1][:, ~real] = 1e4, -1e4, 1e4
    inputs = [x.requires_grad_() for x in (q, k, v)]
    out = ours(*inputs, q_tokens=tokens, k_tokens=tokens)
    short = [x[1:, :, real] for x in inputs]
    alone = ours(*short)
    same(out[1:, :, real], alone)
    same(out[:1], ours(*(x[:1] for x in inputs)))
    assert not out[1][:, ~real].any()
    grads = torch.autograd.grad((out[1:, :, real] ** 2).sum(), inputs)
    for grad, own in zip(grads, torch.autograd.grad((alone**2).sum(), inputs), strict=True):
        same(grad, own)
        assert not grad[1][:, ~real].any()


def test_positions_and_not_slots_choose_columns() -> None:
    ours, (q, k, v) = made(), heads()
    positions = [3, 0, 16, 5, -1, 1, 2, -1, 4, 6, 7, 9, 8]
    tokens = Tokens.listed(positions)
    real = [slot for slot, position in enumerate(positions) if position >= 0]
    out = ours(q, k, v, q_tokens=tokens, k_tokens=tokens)
    theirs = formula(
        ours, q[:, :, real], k[:, :, real], v[:, :, real], [positions[slot] for slot in real]
    )
    same(out[:, :, real], theirs)
    assert not out[:, :, [4, 7]].any()


def test_nobody_at_all() -> None:
    ours, inputs = made(), [x.requires_grad_() for x in heads()]
    tokens = Tokens.padded([L, 0])
    out = ours(*inputs, q_tokens=Tokens.arange(0, L), k_tokens=tokens)
    assert not out[1].any()
    for grad in torch.autograd.grad(out.square().sum(), [*inputs, *ours.parameters()]):
        assert grad.isfinite().all()
    q, k, v = heads(3, 0)
    assert not ours(q, k, v).any()
    assert ours(*heads(0, 4)).shape == (B, H, 0, EV)


def test_weights_are_those_of_the_sums() -> None:
    ours, (q, k, v) = made(), heads()
    weight = ours.weights_of_sums(q, k)
    assert weight.shape == (B, H, L, K)
    same(weight.sum(-1), torch.ones(B, H, L).double())
    same(weight @ ours.sums(v, None, of_values=True).repeat_interleave(H // HK, 1), ours(q, k, v))


def test_linear_in_values_and_deterministic() -> None:
    ours, (q, k, v) = made(dropout=0.5).eval(), heads()
    other = random(B, HK, L, EV, seed=3)
    same(ours(q, k, 2 * v + other), 2 * ours(q, k, v) + ours(q, k, other))
    assert not ours(q, k, 0 * v).any()
    assert all(torch.equal(ours(q, k, v), ours(q, k, v)) for _ in range(30))
    ours.train()
    assert not torch.equal(ours(q, k, v), ours(q, k, v))
    torch.manual_seed(0)
    mean = torch.stack([ours(q, k, v) for _ in range(300)]).mean(0)
    assert (mean - ours.eval()(q, k, v)).abs().mean() < 0.2 * v.std()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_types(dtype: torch.dtype) -> None:
    ours, inputs = made(), heads()
    out = ours.to(dtype)(*(x.to(dtype) for x in inputs))
    assert out.dtype == dtype
    exact = formula(ours.double(), *(x.to(dtype).double() for x in inputs), list(range(L)))  # type: ignore[arg-type]
    torch.testing.assert_close(out.double(), exact, rtol=0, atol=40 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("sharing", ["heads", "key_value"])
@pytest.mark.parametrize("cross", [False, True])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_sums_of_inputs_are_sums_of_keys(
    sharing: str, cross: bool, padded: bool, bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E (X W + b) = (E X) W + (E 1) b: a layer may sum up first, and the result is the same."""
    mechanism = Linformer(LENGTH, K, num_kv_heads=HK, head_dim=E, sharing=sharing)  # type: ignore[arg-type]
    layer = MultiHeadAttention(
        H * E, H, num_kv_heads=HK, kdim=11 if cross else None, bias=bias, mechanism=mechanism,
        position=Learned(LENGTH, H * E) if padded and not cross else None,
    ).double()  # fmt: skip
    drawn(layer)
    x = random(B, L, H * E).requires_grad_()
    call = (x, random(B, 9, 11, seed=1), random(B, 9, H * E, seed=2)) if cross else (x,)
    tokens: dict[str, Tokens] = {}
    if padded:
        tokens["q_tokens"] = Tokens.padded([L, 6], "left")
        tokens["k_tokens"] = Tokens.padded([9, 4], "right") if cross else tokens["q_tokens"]
    inputs = [x, *layer.parameters()]
    first = layer(*call, **tokens)
    projected = []
    hook = layer.k_proj.register_forward_hook(lambda m, args, out: projected.append(out.shape[1]))
    layer(*call, **tokens)
    hook.remove()
    assert projected == [K]
    monkeypatch.setattr(Linformer, "project_first", lambda *_: None)
    close(first, layer(*call, **tokens), inputs)


def test_a_layer_projects_first_where_it_must() -> None:
    """Where heads have sums of their own, where keys are turned, and where sums are many."""
    options = {"num_kv_heads": 2, "head_dim": 4}
    many = MultiHeadAttention(16, 4, num_kv_heads=2, mechanism=Linformer(31, 30, **options))  # type: ignore[arg-type]
    none = Linformer(31, 3, sharing="none", **options)  # type: ignore[arg-type]
    turned = MultiHeadAttention(
        16, 4, num_kv_heads=2, position=Rotary(4), mechanism=Linformer(31, 3, **options)
    )  # type: ignore[arg-type]
    for layer in (many, turned, MultiHeadAttention(16, 4, num_kv_heads=2, mechanism=none)):
        rows = []
        layer.k_proj.register_forward_hook(lambda m, args, out, rows=rows: rows.append(out.shape))
        assert layer(torch.randn(2, 13, 16)).shape == (2, 13, 16)
        assert rows[0][1] == 13


@pytest.mark.parametrize(
    "pattern", [Causal(), Window(2, 2), sliding_window(4), SameSegment()], ids=str
)
def test_patterns_are_refused_by_name(pattern: Pattern) -> None:
    with pytest.raises(NotSupported, match=str(pattern).split("(")[0]):
        made(pattern=pattern)
    with pytest.raises(NotSupported, match="cannot honour"):
        recipe("linformer(length=8, k=2)").make(pattern, Heads(2, 2, 4))


def test_refusals() -> None:
    ours, (q, k, v) = made(), heads()
    with pytest.raises(InvalidArgument, match="19 keys, and this linformer has columns for 17"):
        ours(*heads(3, 19))
    far = Tokens.arange(5, 18)
    with pytest.raises(InvalidArgument, match="position 17, and this was made for"):
        ours(q, k, v, q_tokens=far, k_tokens=far)
    twice = Tokens.listed([0, 1, 1, *range(2, 12)])
    with pytest.raises(InvalidArgument, match="two tokens of a document stand at one position"):
        ours(q, k, v, q_tokens=twice, k_tokens=twice)
    packed = Tokens.packed([6, 7])
    with pytest.raises(NotSupported, match="documents"):
        ours(q, k, v, q_tokens=packed, k_tokens=packed)
    with pytest.raises(InvalidArgument, match="made for num_kv_heads=3, head_dim=5"):
        ours(q, q, q)
    with pytest.raises(InvalidArgument, match="being given one and the same module"):
        made("layer")
    for wrong in ({"length": 0}, {"k": True}, {"num_kv_heads": 0}, {"head_dim": 1.5}):
        with pytest.raises(InvalidArgument, match="a whole number"):
            Linformer(**{"length": 4, "k": 2, "num_kv_heads": 1, "head_dim": 3, **wrong})  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="probability"):
        made(dropout=1.0)


def test_a_layer_refuses_documents_and_a_cache() -> None:
    mechanism = Linformer(LENGTH, K, num_kv_heads=2, head_dim=4)
    layer, packed = MultiHeadAttention(8, 2, mechanism=mechanism), Tokens.packed([6, 7])
    with pytest.raises(NotSupported, match="documents"):
        layer(torch.randn(1, L, 8), q_tokens=packed)
    with pytest.raises(NotSupported, match="its sums hold all tokens, later ones too"):
        layer.new_cache()


def test_recipes() -> None:
    for text in ("linformer(length=512, k=64)", "linformer(length=9, k=2, sharing=none)"):
        assert str(recipe(text)) == text
        module = recipe(text).make(Full(), Heads(4, 2, 8), dropout=0.1)
        assert isinstance(module, Linformer) and module.dropout == 0.1
        assert module.sharing == ("none" if "none" in text else "heads")
