"""Whole encoders, decoders and nn.Transformer, converted, against torch's own over many options."""

from __future__ import annotations

import warnings
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from eyeline import Full, Pattern, Window, dense_mask, longformer, sliding_window, streaming
from eyeline.layers.conversion import convert, restore

pytestmark = pytest.mark.slow

WIDTH, N, S = 24, 37, 29
ACTIVATIONS: list[Any] = ["relu", "gelu", torch.tanh]
OPTIONS = [
    {"norm_first": first, "batch_first": batch, "bias": bias, "activation": activation}
    for first, batch, bias, activation in product(*[[False, True]] * 3, ACTIVATIONS)
]


def names(options: dict[str, Any]) -> str:
    return ", ".join(f"{key}={getattr(x, '__name__', x)}" for key, x in options.items())


def transformer(options: dict[str, Any], heads: int = 3) -> nn.Transformer:
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch tells which of these have no nested fast path
        model = nn.Transformer(WIDTH, heads, 2, 2, 31, dropout=0.0, dtype=torch.float64, **options)
    for x in model.parameters():
        nn.init.normal_(x, std=0.2)
    return model


def sequence(length: int, options: dict[str, Any]) -> Tensor:
    generator = torch.Generator().manual_seed(length)
    x = torch.randn(2, length, WIDTH, generator=generator, dtype=torch.float64)
    return (x if options["batch_first"] else x.transpose(0, 1)).requires_grad_()


def pads(length: int, real: int) -> Tensor:
    return torch.arange(length) >= torch.tensor([[real], [length]])


def call(model: nn.Transformer, options: dict[str, Any], *, masks: bool) -> list[Tensor]:
    """Output and, where there are any, all gradients, with every mask that torch takes."""
    src, tgt = sequence(S, options), sequence(N, options)
    given: dict[str, Any] = {}
    if masks:
        memory = torch.rand(N, S, generator=torch.Generator().manual_seed(7)) < 0.3
        memory[:, 0] = False
        given = {
            "tgt_mask": model.generate_square_subsequent_mask(N, dtype=torch.float64),
            "memory_mask": memory,
            "src_key_padding_mask": pads(S, 20),
            "tgt_key_padding_mask": pads(N, 30),
            "memory_key_padding_mask": pads(S, 20),
        }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # bool and float masks in one call
        out = model(src, tgt, **given)
    if not out.requires_grad:
        return [out]
    leaves = [src, tgt, *model.parameters()]
    above = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)
    return [out, *torch.autograd.grad((out * above).sum(), leaves)]


@pytest.mark.parametrize("options", OPTIONS, ids=names)
@pytest.mark.parametrize("masks", [False, True])
@pytest.mark.parametrize("mode", ["train", "eval", "no_grad"])
def test_a_transformer_under_the_full_pattern(
    options: dict[str, Any], masks: bool, mode: str
) -> None:
    for heads in (3, 4):  # torch's fast path is for even numbers
        model = transformer(options, heads).train(mode == "train")
        with torch.set_grad_enabled(mode != "no_grad"):
            right = call(model, options, masks=masks)
            convert(model, Full())
            found = call(model, options, masks=masks)
            restore(model)
            again = call(model, options, masks=masks)
        for a, b, c in zip(found, right, again, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
            assert torch.equal(b, c)


@pytest.mark.parametrize("options", OPTIONS[::5], ids=names)
@pytest.mark.parametrize(
    "pattern", [sliding_window(5), Window(4, 3), streaming(5, 2), longformer(3, [0, 20])], ids=str
)
@pytest.mark.parametrize("training", [False, True])
def test_a_pattern_is_the_mask_that_it_draws(
    options: dict[str, Any], pattern: Pattern, training: bool
) -> None:
    model = transformer(options).train(training)
    src, tgt = sequence(S, options), sequence(N, options)
    masks = {"src_mask": ~dense_mask(pattern, S), "tgt_mask": ~dense_mask(pattern, N)}
    right = model(src, tgt, **masks)
    convert(model, pattern)
    torch.testing.assert_close(model(src, tgt), right, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_thirty_steps_of_training(dtype: torch.dtype) -> None:
    """The losses of a copy task, converted and with torch's mask."""
    mask, losses = ~dense_mask(sliding_window(7), N), []
    for converted in (False, True):
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 31, dropout=0.0, batch_first=True)
        model = nn.TransformerEncoder(layer, 2)
        if converted:
            convert(model, sliding_window(7))
        optimizer, found = torch.optim.AdamW(model.parameters(), lr=1e-3), []
        for step in range(30):
            x = torch.randn(4, N, WIDTH, generator=torch.Generator().manual_seed(step))
            with torch.autocast("cpu", dtype, enabled=dtype == torch.bfloat16):
                out = model(x) if converted else model(x, mask=mask)
            loss = (out.float() - x.roll(1, 1)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found.append(float(loss.detach()))
        losses.append(torch.tensor(found))
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(*losses, rtol=tolerance, atol=tolerance)
    assert losses[1][-1] < losses[1][0]
