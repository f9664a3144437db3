"""The front doors: what they accept, what they return, and what they say when they refuse."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from eyeline import (
    Causal,
    Full,
    Pattern,
    PerHead,
    Sinks,
    Tokens,
    Window,
    attention,
    attention_weights,
    attention_with_lse,
    dense_mask,
    explain,
    sliding_window,
    streaming,
)  # fmt: skip
from eyeline.errors import EyelineError, InvalidArgument, NotSupported
from eyeline.scores import ALiBi, Softcap


def tensors(
    queries: int = 13, keys: int = 13, heads: int = 4, key_heads: int = 2, width: int = 5
) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = (heads, queries), (key_heads, keys), (key_heads, keys)
    return tuple(torch.randn(2, h, n, width, generator=generator) for h, n in shapes)  # type: ignore[return-value]


def test_the_default_is_full_attention() -> None:
    q, k, v = tensors()
    theirs = scaled_dot_product_attention(q, k, v, enable_gqa=True)
    torch.testing.assert_close(attention(q, k, v), theirs)


def test_a_bool_tensor_means_what_it_means_in_sdpa() -> None:
    q, k, v = tensors(7, 13)
    mask = torch.rand(2, 1, 7, 13) < 0.5
    mask[..., 0] = True
    theirs = scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
    for backend in ("auto", "tiles", "reference"):
        torch.testing.assert_close(attention(q, k, v, mask, backend=backend), theirs)


def test_a_mask_mod_means_what_it_means_in_flex_attention() -> None:
    q, k, v = tensors()

    def mask_mod(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        return (q_idx >= kv_idx) & ((q_idx - kv_idx) % (h + 1) == 0)

    index = torch.arange(13)
    mask = torch.stack([mask_mod(0, h, index[:, None], index) for h in range(4)])  # type: ignore[arg-type]
    theirs = scaled_dot_product_attention(q, k, v, attn_mask=mask[None], enable_gqa=True)
    for backend in ("auto", "tiles"):
        torch.testing.assert_close(attention(q, k, v, mask_mod, backend=backend), theirs)


@pytest.mark.parametrize("backend", ["auto", "tiles", "reference", "decode"])
def test_a_cached_step_equals_the_full_run(backend: str) -> None:
    q, k, v = tensors()
    whole = attention(q, k, v, streaming(5, 2))
    step = attention(q[:, :, -3:], k, v, streaming(5, 2), backend=backend)
    torch.testing.assert_close(step, whole[:, :, -3:])


def test_queries_follow_given_keys() -> None:
    q, k, v = tensors(3, 13)
    keys = Tokens(torch.arange(13).flip(0))
    assert torch.equal(
        attention(q, k, v, Causal(), k_tokens=keys),
        attention(q, k, v, Causal(), q_tokens=keys.last(3), k_tokens=keys),
    )


def test_a_window_longer_than_the_text_is_causal() -> None:
    q, k, v = tensors()
    for backend in ("auto", "tiles"):
        ours = attention(q, k, v, sliding_window(14), backend=backend)
        torch.testing.assert_close(ours, attention(q, k, v, Causal()))


def test_documents_do_not_leak_a_bit() -> None:
    q, k, v = tensors(131, 131)
    tokens = Tokens.packed([40, 91])
    pattern = Causal()
    for backend in ("auto", "sdpa", "tiles", "reference"):
        outs = []
        for change in (0.0, 5.0):
            moved = [x.clone() for x in (q, k, v)]
            for x in moved:
                x[:, :, :40] += change
            outs.append(
                attention(*moved, pattern, q_tokens=tokens, k_tokens=tokens, backend=backend)
            )
        assert torch.equal(outs[0][:, :, 40:], outs[1][:, :, 40:])


def test_two_halves_merge_by_their_lse() -> None:
    q, k, v = tensors()
    whole, lse = attention_with_lse(q, k, v)
    a, la = attention_with_lse(q, k[:, :, :5], v[:, :, :5])
    b, lb = attention_with_lse(q, k[:, :, 5:], v[:, :, 5:])
    torch.testing.assert_close(torch.logaddexp(la, lb), lse)
    merged = a * (la - lse).exp()[..., None] + b * (lb - lse).exp()[..., None]
    torch.testing.assert_close(merged, whole)


def test_lse_has_a_gradient() -> None:
    inputs = [x.double().requires_grad_() for x in tensors()]
    grads = []
    for backend in ("tiles", "reference"):
        out, lse = attention_with_lse(*inputs, sliding_window(4), backend=backend)
        loss = (out * 0.3).sum() + (lse * torch.arange(13)).sum()
        grads.append(torch.autograd.grad(loss, inputs))
    for ours, right in zip(*grads, strict=True):
        torch.testing.assert_close(ours, right)


def test_weights_sum_to_one_or_nothing() -> None:
    q, k, _ = tensors()
    pattern = Causal() & ~Window(0, 0)
    weight = attention_weights(q, k, pattern)
    assert weight.shape == (2, 4, 13, 13)
    torch.testing.assert_close(weight.sum(-1)[..., 1:], torch.ones(2, 4, 12))
    assert not weight[..., 0, :].any()
    assert not weight[..., ~dense_mask(pattern, 13)].any()


def test_explain_names_every_kernel() -> None:
    q, k, v = tensors()
    answer = explain(q, k, v, Causal())
    assert answer["sdpa"] == "chosen"
    assert "at most 8 queries" in answer["decode"]
    assert answer["tiles"] == answer["reference"] == "could serve"
    long = torch.zeros(1, 1, 600, 4)
    assert explain(long, long, long, streaming(5, 2))["tiles"] == "chosen"
    assert "dense masks" in explain(long, long, long, streaming(5, 2))["sdpa"]


@pytest.mark.parametrize("length", [0, 1])
@pytest.mark.parametrize("backend", ["auto", "tiles", "reference", "sdpa"])
def test_hardly_any_tokens(length: int, backend: str) -> None:
    q, k, v = tensors(length, length)
    out = attention(q, k, v, Full(), backend=backend)
    assert out.shape == (2, 4, length, 5)


def test_no_key_at_all_gives_zero() -> None:
    q, k, v = tensors(3, 0)
    out, lse = attention_with_lse(q, k, v, Full())
    assert not out.any()
    assert (lse == -torch.inf).all()
    assert not attention(q, k, v, Full()).any()


@pytest.mark.parametrize(
    ("backend", "length"),
    [("auto", 20), ("sdpa", 20), ("tiles", 20), ("reference", 20), ("auto", 700), ("tiles", 700)],
)
def test_autocast_rounds_the_inputs_and_nothing_else(backend: str, length: int) -> None:
    q, k, v = (6 * x for x in tensors(length, length))
    inputs = [x.requires_grad_() for x in (q, k, v)]
    with torch.autocast("cpu", torch.bfloat16):
        out = attention(*inputs, sliding_window(9), backend=backend)
    grads = torch.autograd.grad(out.float().sum(), inputs)
    rounded = [x.detach().bfloat16().requires_grad_() for x in inputs]
    right = attention(*rounded, sliding_window(9), backend=backend)
    assert out.dtype == torch.bfloat16
    assert torch.equal(out, right)
    for found, true in zip(grads, torch.autograd.grad(right.float().sum(), rounded), strict=True):
        torch.testing.assert_close(found, true.float())


def test_weights_sum_to_one_under_autocast() -> None:
    q, k, _ = tensors()
    with torch.autocast("cpu", torch.bfloat16):
        weight = attention_weights(6 * q, k, Causal())
    torch.testing.assert_close(
        weight.sum(-1), torch.ones(2, 4, 13), check_dtype=False, atol=0.02, rtol=0
    )


@pytest.mark.parametrize("backend", ["auto", "tiles", "reference", "sdpa", "decode"])
@pytest.mark.parametrize("pattern", [sliding_window(3), Causal() & ~Window(0, 0)], ids=str)
def test_what_was_remembered_in_inference_serves_training(backend: str, pattern: Pattern) -> None:
    q, k, v = tensors(7, 13)
    tokens = Tokens.arange(0, 13)
    with torch.inference_mode():
        attention(q, k, v, pattern, k_tokens=tokens, backend=backend)
    inputs = [x.requires_grad_() for x in (q, k, v)]
    out = attention(*inputs, pattern, q_tokens=tokens.last(7), k_tokens=tokens, backend=backend)
    with torch.inference_mode():
        attention(*inputs, pattern, backend=backend)
    attention(*inputs, pattern, backend=backend).sum().backward()
    out.sum().backward()
    assert all(x.grad is not None for x in inputs)


def test_many_merges_round_once() -> None:
    n = 4096
    stripes = ((torch.arange(n) // 64) % 2 == 0)[None] & torch.ones(n, n).tril().bool()
    exact = [torch.randn(1, 1, n, 16, generator=torch.Generator().manual_seed(i)) for i in range(3)]
    for dtype in (torch.bfloat16, torch.float16):
        q, k, v = (x.to(dtype) for x in exact)
        wide = [x.double() for x in (q, k, v)]
        right = attention(*wide, stripes, backend="reference")
        score = ((q @ k.transpose(-1, -2)) * 0.25).masked_fill(~stripes, -torch.inf)
        unfused = (torch.softmax(score, -1) @ v - right).abs().max()
        ours = (attention(q, k, v, stripes, backend="tiles") - right).abs().max()
        assert ours <= 2 * unfused + torch.finfo(dtype).eps * right.abs().max()


@pytest.mark.parametrize("shape", [(0, 3, 5), (2, 0, 5), (2, 3, 0)])
@pytest.mark.parametrize("backend", ["auto", "tiles", "reference"])
def test_empty_sizes(shape: tuple[int, int, int], backend: str) -> None:
    batch, length, width = shape
    q = torch.zeros(batch, 4, length, width)
    k = torch.zeros(batch, 2, length, width)
    v = torch.zeros(batch, 2, length, 7)
    assert attention(q, k, v, Full(), backend=backend).shape == (batch, 4, length, 7)


Q, K, V = tensors()
NINE, THIRTEEN = Tokens.arange(0, 9), Tokens.arange(0, 13)
BAD: dict[str, tuple[Callable[[], object], str]] = {
    "rank": (lambda: attention(Q[0], K, V), r"query \(4, 13, 5\) must have four dimensions"),
    "not a tensor": (lambda: attention([1.0], K, V), "query is a list"),  # type: ignore[arg-type]
    "integers": (lambda: attention(Q.long(), K.long(), V.long()), "query is torch.int64"),
    "dtypes": (lambda: attention(Q.half(), K, V), "dtype differs: query has torch.float16"),
    "devices": (lambda: attention(Q.to("meta"), K, V), "device differs: query has meta"),
    "batch": (lambda: attention(Q[:1], K, V), "batch size differs: query has 1"),
    "key length": (lambda: attention(Q, K[:, :, 1:], V), "length differs: key has 12"),
    "key heads": (lambda: attention(Q, K[:, :1], V), "heads differs: key has 1"),
    "width": (lambda: attention(Q[..., 1:], K, V), "width differs: query has 4, key has 5"),
    "grouping": (lambda: attention(Q[:, :3], K, V), "3 query heads cannot share 2 key heads"),
    "no heads": (lambda: attention(Q[:, :0], K[:, :0], V[:, :0]), "0 query heads"),
    "L > S": (lambda: attention(Q, K[:, :, :5], V[:, :, :5], Causal()), "13 queries but 5 keys"),
    "float mask": (lambda: attention(Q, K, V, torch.zeros(13, 13)), "score_mod"),
    "text": (lambda: attention(Q, K, V, "causal"), r"parse\('causal'\)"),  # type: ignore[arg-type]
    "class": (lambda: attention(Q, K, V, Causal), r"write Causal\(\)"),  # type: ignore[arg-type]
    "is_causal": (lambda: attention(Q, K, V, True), "pattern is a bool"),  # type: ignore[arg-type]
    "mask size": (lambda: attention(Q, K, V, torch.ones(9, 9).bool()), "a key stands at 9"),
    "backend": (lambda: attention(Q, K, V, backend="fast"), "backend='fast'"),
    "mask for other heads": (
        lambda: attention(Q, K, V, torch.ones(2, 5, 13, 13).bool()), "for 2 batch rows and 5 heads"
    ),
    "scale": (lambda: attention(Q, K, V, scale=float("nan")), "scale=nan"),
    "tokens": (
        lambda: attention(Q, K, V, Causal(), k_tokens=NINE, q_tokens=THIRTEEN),
        r"k_tokens has shape \(9,\)",
    ),
    "only q_tokens": (lambda: attention(Q, K, V, q_tokens=THIRTEEN), "k_tokens=q_tokens"),
    "batched tokens": (
        lambda: attention(Q, K, V, k_tokens=Tokens.padded([13, 4, 5])),
        r"\(3, 13\); the tensors need",
    ),
    "half the documents": (
        lambda: attention(
            Q, K, V, Full(), q_tokens=Tokens.packed([13]), k_tokens=Tokens.arange(0, 13)
        ),
        "k_tokens do not",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_mistakes_name_the_argument_and_the_sizes(name: str) -> None:
    call, words = BAD[name]
    with pytest.raises(InvalidArgument, match=words) as caught:
        call()
    assert isinstance(caught.value, (EyelineError, ValueError))


def test_what_is_not_built_is_refused_by_name() -> None:
    with pytest.raises(NotSupported, match=r"meta tensors .*query \(2, 4, 13, 5\)"):
        attention(Q.to("meta"), K.to("meta"), V.to("meta"))
    with pytest.raises(NotSupported, match="scale is a tensor"):
        attention(Q, K, V, scale=torch.tensor(0.3, requires_grad=True))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("backend", "pattern", "words"),
    [("decode", Full(), "at most 8"), ("sdpa", Window(3, 3), "dense mask")],
)
def test_an_explicit_backend_never_falls_back(backend: str, pattern: Pattern, words: str) -> None:
    long = torch.zeros(1, 1, 600, 4)
    with pytest.raises(NotSupported, match=words):
        attention(long, long, long, pattern, backend=backend)


def test_lse_from_a_kernel_that_has_none_is_refused() -> None:
    with pytest.raises(NotSupported, match="log-sum-exp"):
        attention_with_lse(Q, K, V, backend="sdpa")


def test_the_same_pattern_for_sinks_of_any_document() -> None:
    """Positions of packed documents run on, so sinks are those of the whole sequence."""
    tokens = Tokens.packed([3, 3])
    mask = dense_mask(Sinks(1), q_tokens=tokens, k_tokens=tokens)
    assert mask.sum() == 6


@pytest.mark.parametrize("backend", ["auto", "tiles", "sdpa", "reference"])
def test_no_batch_row_under_heads_that_differ(backend: str) -> None:
    q = torch.zeros(0, 2, 3, 4)
    out = attention(q, q, q, PerHead([Causal(), Full()]), backend=backend)
    assert out.shape == (0, 2, 3, 4)


def test_more_queries_than_keys_under_a_modifier_of_distances() -> None:
    q, k = torch.zeros(1, 4, 9, 8), torch.zeros(1, 4, 4, 8)
    for mod, name in ((ALiBi(4), "ALiBi"), (lambda s, b, h, i, j: s + i, "Called")):
        with pytest.raises(InvalidArgument, match=f"9 queries but 4 keys: {name} compares"):
            attention(q, k, k, score_mod=mod)
    assert attention(q, k, k, score_mod=Softcap(3.0)).shape == (1, 4, 9, 8)


@pytest.mark.parametrize("backend", ["reference", "auto"])
def test_a_callable_that_forbids_a_whole_row(backend: str) -> None:
    """The row is empty: 0, and finite gradients."""
    q, k, v = (torch.randn(1, 2, 7, 5, requires_grad=True) for _ in range(3))

    def from_the_third(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return torch.where(j > 2, score, -torch.inf)

    out = attention(q, k, v, Causal(), score_mod=from_the_third, backend=backend)
    assert not out[:, :, :3].any()
    torch.testing.assert_close(out, attention(q, k, v, Causal() & ~Sinks(3)))
    for gradient in torch.autograd.grad(out.sum(), (q, k, v)):
        assert gradient.isfinite().all()


def test_autocast_leaves_float64_alone() -> None:
    q = torch.randn(1, 2, 7, 5, dtype=torch.float64)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert scaled_dot_product_attention(q, q, q).dtype == torch.float64
        assert attention(q, q, q).dtype == torch.float64


def test_names_and_classes_are_no_score_modifiers() -> None:
    for wrong in ("alibi", ALiBi):
        with pytest.raises(InvalidArgument, match="give a value, for example ALiBi"):
            attention(Q, K, V, score_mod=wrong)


def test_torch_jit_is_refused_by_name() -> None:
    with pytest.raises(NotSupported, match=r"torch\.export"):
        torch.jit.trace(lambda q: attention(q, K, V), Q)
