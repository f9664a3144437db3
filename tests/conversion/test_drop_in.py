"""TorchAttention against nn.MultiheadAttention: every option, every mask, every gradient."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from eyeline import Causal, Full, Pattern, PerHead, Sinks, Window, dense_mask, sliding_window
from eyeline.errors import InvalidArgument, NotSupported
from eyeline.layers.conversion import TorchAttention

WIDTH, HEADS, BATCH, N, S = 15, 3, 2, 7, 11
EVERYBODY = Full()


def made(**options: Any) -> nn.MultiheadAttention:
    torch.manual_seed(0)
    module = nn.MultiheadAttention(WIDTH, HEADS, dtype=torch.float64, **options)
    for x in module.parameters():  # torch starts biases at 0, which hides mistakes
        nn.init.normal_(x, std=0.5)
    return module


def inputs(module: nn.MultiheadAttention, *, keys: int = S, alone: bool = False) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    found = []
    for length, width in ((N, WIDTH), (keys, module.kdim), (keys, module.vdim)):
        shape = (BATCH, length) if module.batch_first else (length, BATCH)
        x = torch.randn(*shape, width, generator=generator, dtype=torch.float64)
        x = x.select(0 if module.batch_first else 1, 1) if alone else x
        found.append(x.requires_grad_())
    return found


def same(
    module: nn.MultiheadAttention, tensors: list[Tensor], pattern: Pattern = EVERYBODY, **call: Any
) -> None:
    """Output, weights and all gradients are torch's."""
    ours = TorchAttention(module, pattern)
    leaves = [*dict.fromkeys(tensors), *module.parameters()]
    results = []
    for each in (module, ours):
        out, weights = each(*tensors, **call)
        above = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)
        grads = torch.autograd.grad((out * above).sum(), leaves)
        results.append((out, weights, *grads))
    for found, right in zip(*results[::-1], strict=True):
        if right is None:
            assert found is None
        else:
            torch.testing.assert_close(found, right)


OPTIONS: dict[str, dict[str, Any]] = {
    "packed": {},
    "batch first": {"batch_first": True},
    "no bias": {"bias": False},
    "kdim and vdim": {"kdim": 5, "vdim": 13},
    "kdim, no bias": {"kdim": 5, "bias": False, "batch_first": True},
    "vdim alone": {"vdim": 13, "batch_first": True},
    "bias_kv": {"add_bias_kv": True},
    "zero_attn": {"add_zero_attn": True, "batch_first": True},
    "both": {"add_bias_kv": True, "add_zero_attn": True, "kdim": 5},
}


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("alone", [False, True], ids=["batched", "alone"])
@pytest.mark.parametrize("average", [True, False])
def test_every_option(name: str, alone: bool, average: bool) -> None:
    module = made(**OPTIONS[name])
    same(module, inputs(module, alone=alone), average_attn_weights=average)


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("alone", [True, False])
def test_self_attention(batch_first: bool, training: bool, alone: bool) -> None:
    module = made(batch_first=batch_first).train(training)
    x = inputs(module, alone=alone)[0]
    same(module, [x, x, x], need_weights=False)
    same(module, [x, x, x.detach().requires_grad_()], need_weights=True)


def floats(mask: Tensor) -> Tensor:
    return torch.zeros(mask.shape, dtype=torch.float64).masked_fill_(mask, -torch.inf)


def masks(kind: str, *, keys: int, alone: bool) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(2)
    rows = 1 if alone else BATCH
    forbidden = torch.rand(rows * HEADS, N, keys, generator=generator) < 0.4
    pads = torch.arange(keys) >= torch.tensor([[keys], [4]])
    pads = pads[1] if alone else pads
    # torch has no answer for a query that may look at nobody.
    forbidden[..., 0] = False

    return {
        "pads": {"key_padding_mask": pads},
        "float pads": {"key_padding_mask": floats(pads)},
        "rank 2": {"attn_mask": forbidden[0]},
        "float rank 2": {"attn_mask": floats(forbidden[0])},
        "rank 3": {"attn_mask": forbidden},
        "float rank 3": {"attn_mask": floats(forbidden)},
        "both": {"attn_mask": forbidden[0], "key_padding_mask": pads},
        "float both": {"attn_mask": floats(forbidden), "key_padding_mask": floats(pads)},
    }[kind]


KINDS = [
    "pads", "float pads", "rank 2", "float rank 2", "rank 3", "float rank 3", "both", "float both"
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["packed", "kdim, no bias", "both"])
@pytest.mark.parametrize("alone", [False, True], ids=["batched", "alone"])
def test_every_mask(kind: str, name: str, alone: bool) -> None:
    module = made(**OPTIONS[name])
    given = masks(kind, keys=S, alone=alone)
    same(module, inputs(module, alone=alone), **given)
    same(module.eval(), inputs(module, alone=alone), **given, average_attn_weights=False)


@pytest.mark.parametrize("keys", [N, 5])
def test_as_many_keys_and_fewer(keys: int) -> None:
    module = made(batch_first=True)
    given = masks("both", keys=keys, alone=False)
    same(module, inputs(module, keys=keys), **given)


@pytest.mark.parametrize("pads", [False, True])
@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
def test_causal_masks(pads: bool, need_weights: bool, batch_first: bool) -> None:
    module = made(batch_first=batch_first)
    x = inputs(module)[0]
    given = masks("pads", keys=N, alone=False) if pads else {}
    boolean = torch.ones(N, N).triu(1).bool()
    float_ = nn.Transformer.generate_square_subsequent_mask(N, dtype=torch.float64)
    for mask in (boolean, float_):
        for hint in (False, True):
            others = given if mask is boolean else {k: floats(v) for k, v in given.items()}
            call = {"attn_mask": mask, "is_causal": hint, **others}
            same(module, [x, x, x], need_weights=need_weights, **call)


def test_is_causal_needs_no_mask() -> None:
    module = made()
    x = inputs(module)[0]
    found, _ = TorchAttention(module, Full())(x, x, x, is_causal=True)
    mask = torch.ones(N, N).triu(1).bool()
    right, _ = module(x, x, x, attn_mask=mask, is_causal=True)
    torch.testing.assert_close(found, right)


PATTERNS = [
    Causal(), sliding_window(3), Window(2, 1) | Sinks(1),
    PerHead([Causal(), Window(1, 1), Full()]),
]  # fmt: skip


@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
@pytest.mark.parametrize("name", ["packed", "batch first", "no bias", "bias_kv", "zero_attn"])
def test_a_pattern_is_what_torch_does_with_its_mask(pattern: Pattern, name: str) -> None:
    module = made(**OPTIONS[name])
    x = inputs(module)[0]
    ours = TorchAttention(module, pattern)
    forbidden = ~dense_mask(pattern, N, batch=BATCH, heads=HEADS)
    right = module(x, x, x, attn_mask=forbidden.flatten(0, 1), average_attn_weights=False)
    found = ours(x, x, x, average_attn_weights=False)
    for a, b in zip(found, right, strict=True):
        torch.testing.assert_close(a, b)
    # Masks of the call hold on top of it.
    more = masks("both", keys=N, alone=False)
    more["attn_mask"][:, 0] = torch.arange(N) > 4
    more["attn_mask"].fill_diagonal_(False)
    joined = (forbidden | more["attn_mask"]).flatten(0, 1)
    some = ~(joined.unflatten(0, (BATCH, HEADS)) | more["key_padding_mask"][:, None, None]).all(-1)
    right, _ = module(x, x, x, attn_mask=joined, key_padding_mask=more["key_padding_mask"])
    found, _ = ours(x, x, x, **more)
    where = some.all(1) if module.batch_first else some.all(1).T
    torch.testing.assert_close(found[where], right[where])


def test_who_may_look_at_nobody_gets_0_where_torch_gives_nan() -> None:
    module = made(batch_first=True)
    x = inputs(module)[0]
    mask = torch.zeros(N, N, dtype=torch.bool)
    mask[3] = True
    out, weights = TorchAttention(module, Full())(x, x, x, attn_mask=mask)
    assert module(x, x, x, attn_mask=mask)[0][:, 3].isnan().all()
    torch.testing.assert_close(out[:, 3], module.out_proj.bias.expand(BATCH, -1))
    assert not weights[:, 3].any()
    assert all(
        g.isfinite().all() for g in torch.autograd.grad(out.sum(), (x, *module.parameters()))
    )


@pytest.mark.parametrize("name", ["packed", "bias_kv", "zero_attn"])
def test_dropout_only_in_training(name: str) -> None:
    module = made(dropout=0.5, **OPTIONS[name])
    x = inputs(module)[0]
    ours = TorchAttention(module.train(), sliding_window(4))

    def call(seed: int) -> Tensor:
        torch.manual_seed(seed)
        out: Tensor = ours(x, x, x, need_weights=False)[0]
        return out

    assert torch.equal(call(0), call(0))
    assert not torch.allclose(call(0), call(1))
    mean = torch.stack([call(seed) for seed in range(150)]).mean(0)
    right = ours.eval()(x, x, x)[0]
    torch.testing.assert_close(call(0), right)
    assert (mean - right).abs().mean() < 0.15 * (right - right.mean()).abs().mean()


def test_dropout_that_leaves_nothing_is_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"dropout=1\.0: a probability from 0 to below 1"):
        TorchAttention(made(dropout=1.0), Full())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("autocast", [False, True])
def test_other_types_and_autocast(dtype: torch.dtype, autocast: bool) -> None:
    """As near to float64 as torch's own module is in the same type."""
    module = made(batch_first=True)
    x = inputs(module)[0].detach()
    exact, _ = module(x, x, x)
    module, x = module.to(dtype), x.to(dtype)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        found, _ = TorchAttention(module, Full())(x, x, x, need_weights=False)
        right, _ = module(x, x, x, need_weights=False)
    assert found.dtype == right.dtype
    allowed = 2 * (right - exact).abs().max() + torch.finfo(found.dtype).eps * exact.abs().max()
    assert (found - exact).abs().max() <= allowed


def test_it_holds_the_same_parameters_under_the_same_names() -> None:
    for options in OPTIONS.values():
        module = made(**options)
        ours = TorchAttention(module, Causal())
        theirs = dict(module.named_parameters())
        assert dict(ours.named_parameters()).keys() == theirs.keys()
        assert all(x is theirs[name] for name, x in ours.named_parameters())
        assert ours.state_dict().keys() == module.state_dict().keys()
        assert len(list(ours.modules())) == len(list(module.modules()))


def call(*tensors: Tensor, pattern: Pattern = EVERYBODY, **options: Any) -> None:
    built = {k: options.pop(k) for k in ("batch_first",) if k in options}
    TorchAttention(made(**built), pattern)(*tensors, **options)


X, Y = torch.randn(N, BATCH, WIDTH).double(), torch.randn(S, BATCH, WIDTH).double()
NESTED = torch.nested.nested_tensor([X[0], X[1]], layout=torch.jagged)
LONG = torch.zeros(2049, 1, WIDTH).double()
BAD: dict[str, tuple[type[Exception], tuple[Tensor, ...], dict[str, Any], str]] = {
    "width": (
        InvalidArgument, (X[..., 1:], X, X), {}, r"query \(7, 2, 14\).* \(length, N, 15\)"
    ),
    "batch first": (
        InvalidArgument, (X, X, X[..., 1:]), {"batch_first": True}, r"value .* \(N, length, 15\)"
    ),
    "ranks": (InvalidArgument, (X, X[0], X), {}, r"key \(2, 15\).*same rank"),
    "rank 4": (InvalidArgument, (X[None], X[None], X[None]), {}, "same rank"),
    "mask size": (
        InvalidArgument, (X, Y, Y), {"attn_mask": torch.ones(N, N).bool()},
        r"attn_mask \(7, 7\) for 7 queries and 11 keys",
    ),
    "mask rank": (
        InvalidArgument, (X, X, X), {"attn_mask": torch.zeros(1, 1, N, N)},
        r"its shape is \(L, S\) or",
    ),
    "batch mask": (
        InvalidArgument, (X, X, X), {"attn_mask": torch.ones(BATCH, N, N).bool()},
        r"read as \(batch, L, S\) or as \(heads, L, S\).*2 · 3 = 6 rows.*repeat_interleave",
    ),
    "head mask": (
        InvalidArgument, (X, X, X), {"attn_mask": torch.ones(HEADS, N, N).bool()}, "2 · 3 = 6 rows"
    ),
    "integers": (
        InvalidArgument, (X, X, X), {"attn_mask": torch.zeros(N, N).long()},
        "attn_mask is torch.int64",
    ),
    "bias": (
        NotSupported, (X, X, X), {"attn_mask": torch.ones(N, N)},
        r"attn_mask \(7, 7\) holds numbers other than 0 and -inf.*score_mod",
    ),
    "large negative": (
        NotSupported, (X, X, X), {"key_padding_mask": torch.full((BATCH, N), -1e9)},
        "key_padding_mask < -1e4, a bool mask",
    ),
    "pad size": (
        InvalidArgument, (X, Y, Y), {"key_padding_mask": torch.ones(BATCH, N).bool()},
        r"key_padding_mask \(2, 7\): for these inputs its shape is \(2, 11\)",
    ),
    "pads alone": (
        InvalidArgument, (X[0], X[0], X[0]), {"key_padding_mask": torch.ones(BATCH, BATCH).bool()},
        r"its shape is \(2,\)",
    ),
    "is_causal across": (
        InvalidArgument, (X, Y, Y), {"is_causal": True}, "7 queries and 11 keys: give attn_mask too"
    ),
    "window across": (
        NotSupported, (X, Y, Y), {"pattern": Window(2, 2)},
        r"compares positions.*\{'its name': Full\(\)",
    ),
    "weights": (
        NotSupported, (LONG, LONG, LONG), {}, "2,049 queries and 2,049 keys.*need_weights=False"
    ),
    "nested": (
        NotSupported, (NESTED, NESTED, NESTED), {}, "query is a nested tensor"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_mistakes_are_named(name: str) -> None:
    error, tensors, options, words = BAD[name]
    with pytest.raises(error, match=words):
        call(*tensors, **options)
