"""What is remembered between calls stays whole: eager answers before, between and after tracing.

torch traces with tensors that hold no numbers, and with sizes that are symbols. One of these, kept
and met again by an eager call, would break all calls of that length in the process.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim, export
from torch.fx.experimental.proxy_tensor import make_fx

from eyeline import (
    GPT2,
    ALiBi,
    Bert,
    BertConfig,
    Causal,
    Full,
    GPT2Config,
    Llama,
    LlamaConfig,
    MultiHeadAttention,
    Pattern,
    Rotary,
    Sinusoidal,
    bigbird,
    convert,
    memory,
    recipe,
    sliding_window,
    streaming,
)  # fmt: skip
from eyeline.mechanisms import Heads

SIZES: dict[str, Any] = {
    "vocabulary": 50, "width": 32, "hidden": 20, "layers": 1, "heads": 4, "trained_length": 64,
}  # fmt: skip


def layer(**options: Any) -> nn.Module:
    return MultiHeadAttention(32, 4, **options)


def by_recipe(text: str, pattern: Pattern) -> Callable[[], nn.Module]:
    return lambda: layer(mechanism=recipe(text).make(pattern, Heads(4, 4, 8)))


def converted() -> nn.Module:
    encoder = nn.TransformerEncoderLayer(32, 4, 20, batch_first=True)
    convert(encoder, sliding_window(5))
    return encoder


# Those that torch can trace whole.
WHOLE: dict[str, Callable[[], nn.Module]] = {
    "bert": lambda: Bert(BertConfig(**SIZES)),
    "gpt2": lambda: GPT2(GPT2Config(**SIZES)),
    "llama": lambda: Llama(LlamaConfig(**SIZES, kv_heads=2, head_dim=8)),
    "window": lambda: layer(pattern=sliding_window(5), position=Rotary(8)),
    "alibi": lambda: layer(pattern=streaming(5, 2), position=ALiBi(4)),
    "added": lambda: layer(pattern=Causal(), position=Sinusoidal(32)),
    "converted": converted,
}
# Those that read numbers to decide what to do: some ways of tracing end in an error.
READING: dict[str, Callable[[], nn.Module]] = {
    "drawn": lambda: layer(pattern=bigbird(4, 1, 1)),
    "additive": by_recipe("additive", Full()),
    "linear": by_recipe("linear", Causal()),
    "linformer": by_recipe("linformer(length=64, k=5)", Full()),
    "compressed": by_recipe("compressed(factor=5, by=mean)", Causal()),
    "centroids": by_recipe("compressed(factor=5, by=centroids)", Full()),
    "topk": by_recipe("topk(k=3)", Causal()),
    "threshold": by_recipe("threshold(t=0.1)", sliding_window(5)),
    "lsh": by_recipe("lsh(bucket_size=4, rounds=2)", Full()),
    "lsh, buckets": by_recipe("lsh(bucket_size=4, rounds=2, by=buckets, buckets=4)", Causal()),
    "kmeans": by_recipe("kmeans(clusters=3, window=5)", Full()),
    "clustered": by_recipe("clustered(clusters=3, topk=4)", Full()),
    "sinkhorn": by_recipe("sinkhorn(block=4)", Causal()),
}


def exported(module: nn.Module, x: Tensor, *, strict: bool, dynamic: bool) -> None:
    """The exported program answers as the module does."""
    shapes = ({1: Dim("length", min=2, max=60)},) if dynamic else None
    program = export(module, (x,), strict=strict, dynamic_shapes=shapes).module()
    for length in (x.shape[1], 7) if dynamic else (x.shape[1],):
        given = x[:, :length]
        torch.testing.assert_close(program(given), module(given), rtol=1e-5, atol=1e-5)


def fake(module: nn.Module, x: Tensor) -> None:
    mode = torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True)
    with mode:
        assert type(module(mode.from_tensor(x))) is not Tensor


def by_fx(module: nn.Module, x: Tensor, mode: Any = "real", *, early: bool = False) -> None:
    graph = make_fx(module, tracing_mode=mode, _allow_non_fake_inputs=True, pre_dispatch=early)(x)
    torch.testing.assert_close(graph(x), module(x), rtol=1e-5, atol=1e-5)


def interrupted(module: nn.Module, x: Tensor) -> None:
    """An export that fails after the module has run."""

    class Fails(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inside = module

        def forward(self, x: Tensor) -> Tensor:
            return self.inside(x) if bool((self.inside(x) > 0).any()) else x

    with pytest.raises(Exception, match=r"data-dependent|Could not guard|control flow"):
        export(Fails(), (x,), strict=False)


WAYS: dict[str, Callable[[nn.Module, Tensor], None]] = {
    "export": lambda module, x: exported(module, x, strict=False, dynamic=False),
    "export, dynamic": lambda module, x: exported(module, x, strict=False, dynamic=True),
    "make_fx": by_fx,
    "make_fx, fake": lambda module, x: by_fx(module, x, "fake"),
    "make_fx, symbols": lambda module, x: by_fx(module, x, "symbolic"),
    "make_fx, early": lambda module, x: by_fx(module, x, early=True),
    "fake mode": fake,
    "functionalize": lambda module, x: torch.func.functionalize(module)(x),
}


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """torch prints a page about each trace that fails."""
    logging.disable(logging.CRITICAL)
    memory.clear()
    yield
    logging.disable(logging.NOTSET)
    memory.clear()


def example(name: str) -> Tensor:
    torch.manual_seed(0)
    if name in ("bert", "gpt2", "llama"):
        return torch.randint(50, (2, 13))
    return torch.randn(2, 13, 32)


def made(name: str) -> nn.Module:
    torch.manual_seed(0)
    return (WHOLE | READING)[name]().eval()


@torch.no_grad()
def check(name: str, way: Callable[[nn.Module, Tensor], None], *, may_fail: bool) -> None:
    """Eager answers stay the same, whether memory was full or empty when the call was traced."""
    module, x = made(name), example(name)
    right = module(x)
    for empty in (True,) if may_fail else (False, True):
        if empty:
            memory.clear()
        try:
            way(module, x)
        except Exception:
            if not may_fail:
                raise
        assert torch.equal(module(x), right)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", WHOLE)
def test_what_can_be_traced_whole(name: str, way: str) -> None:
    check(name, WAYS[way], may_fail=False)


@pytest.mark.parametrize("way", ["export", "make_fx", "fake mode", "functionalize"])
@pytest.mark.parametrize("name", READING)
def test_what_may_refuse(name: str, way: str) -> None:
    check(name, WAYS[way], may_fail=True)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", ["bert", "added"])
def test_strict_export(name: str, dynamic: bool) -> None:
    check(name, lambda m, x: exported(m, x, strict=True, dynamic=dynamic), may_fail=False)


@pytest.mark.parametrize("name", ["bert", "added", "topk"])
def test_an_export_that_fails(name: str) -> None:
    check(name, interrupted, may_fail=name in READING)
