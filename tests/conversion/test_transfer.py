"""from_torch and to_torch: one module's weights, in the layer's form and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from eyeline import Causal, Full, dense_mask, sliding_window
from eyeline.encodings import Rotary
from eyeline.errors import EyelineError, NotSupported
from eyeline.layers.attention import MultiHeadAttention
from eyeline.layers.conversion import (
    convert,
    from_torch,
    pattern_of_mask,
    restore,
    to_torch,
    tokens_of_padding,
)
from eyeline.mechanisms import Exact
from eyeline.mechanisms.extra import ExtraKeys
from eyeline.scores import Softcap

WIDTH, HEADS, N, S = 15, 3, 7, 11
OPTIONS: dict[str, dict[str, Any]] = {
    "packed": {},
    "no bias": {"bias": False},
    "kdim and vdim": {"kdim": 5, "vdim": 13},
    "vdim, no bias": {"vdim": 13, "bias": False},
    "bias_kv": {"add_bias_kv": True},
    "bias_kv, kdim": {"add_bias_kv": True, "kdim": 5},
}


def made(**options: Any) -> nn.MultiheadAttention:
    torch.manual_seed(0)
    module = nn.MultiheadAttention(WIDTH, HEADS, dtype=torch.float64, **options)
    for x in module.parameters():
        nn.init.normal_(x, std=0.5)
    return module


def inputs(module: nn.MultiheadAttention) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    sizes = ((N, WIDTH), (S, module.kdim), (S, module.vdim))
    return [torch.randn(2, *size, generator=generator, dtype=torch.float64) for size in sizes]


def theirs(module: nn.MultiheadAttention, tensors: list[Tensor], **call: Any) -> Tensor:
    if module.batch_first:
        out: Tensor = module(*tensors, **call)[0]
        return out
    out = module(*(x.transpose(0, 1) for x in tensors), **call)[0]
    return out.transpose(0, 1)


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("batch_first", [False, True])
def test_the_layer_gives_what_the_module_gives(name: str, batch_first: bool) -> None:
    module = made(batch_first=batch_first, **OPTIONS[name])
    layer, tensors = from_torch(module), inputs(module)
    torch.testing.assert_close(layer(*tensors), theirs(module, tensors))


@pytest.mark.parametrize("name", OPTIONS)
def test_its_masks_turned_round(name: str) -> None:
    module, generator = made(**OPTIONS[name]), torch.Generator().manual_seed(2)
    forbidden = torch.rand(N, S, generator=generator) < 0.4
    pads = torch.arange(S) >= torch.tensor([[S], [4]])
    forbidden[:, 0] = False
    layer, tensors = from_torch(module, pattern=pattern_of_mask(forbidden)), inputs(module)
    q_tokens, k_tokens = tokens_of_padding(pads, N)
    found = layer(*tensors, q_tokens=q_tokens, k_tokens=k_tokens)
    right = theirs(module, tensors, attn_mask=forbidden, key_padding_mask=pads)
    torch.testing.assert_close(found, right)


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("batch_first", [False, True])
def test_back_again(name: str, batch_first: bool) -> None:
    module = made(batch_first=batch_first, dropout=0.25, **OPTIONS[name]).eval()
    module.out_proj.weight.requires_grad_(False)
    back = to_torch(from_torch(module), batch_first=batch_first)
    assert back.dropout == 0.25
    assert not back.training
    assert back.state_dict().keys() == module.state_dict().keys()
    for key, value in module.state_dict().items():
        assert torch.equal(back.state_dict()[key], value)
    for (_, a), (_, b) in zip(back.named_parameters(), module.named_parameters(), strict=True):
        assert a is not b
        assert a.requires_grad == b.requires_grad
    torch.testing.assert_close(theirs(back, inputs(module)), theirs(module, inputs(module)))


def test_of_a_layer_of_ones_own() -> None:
    torch.manual_seed(0)
    layer = MultiHeadAttention(WIDTH, HEADS, kdim=5, dropout=0.1).double().eval()
    module = to_torch(layer)
    tensors = inputs(module)
    torch.testing.assert_close(theirs(module, tensors), layer(*tensors))


def test_a_pattern_becomes_a_mask_of_the_call() -> None:
    layer = MultiHeadAttention(WIDTH, HEADS, pattern=sliding_window(3)).double()
    x = inputs(made())[0]
    right = layer(x)
    with pytest.raises(NotSupported, match=r"causal & window.*attn_mask = ~dense_mask"):
        to_torch(layer)
    assert isinstance(layer.mechanism, Exact)
    layer.mechanism.pattern = Full()
    module = to_torch(layer)
    found = module(x, x, x, attn_mask=~dense_mask(sliding_window(3), N))[0]
    torch.testing.assert_close(found, right)


def test_copies_are_independent() -> None:
    module = made()
    layer = from_torch(module)
    with torch.no_grad():
        for x in layer.parameters():
            x.zero_()
    assert all(x.any() for x in module.parameters())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("training", [False, True])
def test_dtype_and_mode_are_taken_over(dtype: torch.dtype, training: bool) -> None:
    module = made(add_bias_kv=True, dropout=0.5).to(dtype).train(training)
    layer = from_torch(module, pattern=Causal())
    assert {x.dtype for x in layer.parameters()} == {dtype}
    assert all(x.training == training for x in layer.modules())
    back = to_torch_without_pattern(layer)
    assert {x.dtype for x in back.parameters()} == {dtype}


def to_torch_without_pattern(layer: MultiHeadAttention) -> nn.MultiheadAttention:
    assert isinstance(layer.mechanism, ExtraKeys)
    layer.mechanism.exact.pattern = Full()
    return to_torch(layer)


def test_no_device() -> None:
    with torch.device("meta"):
        module = made()
    assert from_torch(module).out_proj.weight.is_meta


class Odd(nn.MultiheadAttention):
    """A subclass: it may compute anything."""


def layer(**options: Any) -> MultiHeadAttention:
    return MultiHeadAttention(16, 4, **options)


BAD: dict[str, tuple[Callable[[], object], str]] = {
    "zero_attn": (lambda: from_torch(made(add_zero_attn=True)), r"add_zero_attn=True.*convert\("),
    "subclass": (lambda: from_torch(Odd(8, 2)), "an nn.MultiheadAttention, not a Odd"),
    "all dropped": (lambda: from_torch(made(dropout=1.0)), r"dropout=1\.0: a probability"),
    "grouped": (lambda: to_torch(layer(num_kv_heads=2)), "no 2 key heads for 4 query heads"),
    "width": (lambda: to_torch(layer(head_dim=5)), "no heads of 5"),
    "rotary": (lambda: to_torch(layer(position=Rotary(4))), "no positions"),
    "softcap": (lambda: to_torch(layer(position=Softcap(3.0))), "no score modifiers"),
    "scale": (lambda: to_torch(layer(mechanism=Exact(scale=1.0))), r"no scale=1\.0"),
    "mechanism": (
        lambda: to_torch(
            layer(mechanism=ExtraKeys(Exact(), 2, num_kv_heads=4, head_dim=4))
        ),
        "cannot look as ExtraKeys does",
    ),
    "no layer": (lambda: to_torch(nn.Linear(3, 3)), "a MultiHeadAttention, not a Linear"),  # type: ignore[arg-type]
    "torch's own": (lambda: to_torch(made()), "a MultiHeadAttention, not a MultiheadAttention"),  # type: ignore[arg-type]
    "no model": (lambda: convert("model", Full()), "model is a str: give an nn.Module"),  # type: ignore[arg-type]
    "nothing to restore": (lambda: restore(None), "model is a NoneType: give an nn.Module"),  # type: ignore[arg-type]
    "no mask": (lambda: pattern_of_mask([[True]]), "attn_mask is a list, not a tensor"),  # type: ignore[arg-type]
    "no padding": (lambda: tokens_of_padding([True]), "key_padding_mask is a list, not a tensor"),  # type: ignore[arg-type]
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_what_one_side_cannot_say_is_refused(name: str) -> None:
    make, words = BAD[name]
    with pytest.raises(EyelineError, match=words):
        make()
