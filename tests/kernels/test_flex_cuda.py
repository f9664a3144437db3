"""FlexAttention on a GPU: output, log-sum-exp and gradients against the reference."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from eyeline.functional import attention
from eyeline.kernels import flex
from eyeline.kernels.request import Request
from eyeline.patterns import (
    Causal,
    Chunks,
    Dilated,
    FixedColumns,
    Full,
    Global,
    Pattern,
    Sinks,
    Strided,
    Window,
    prefix_lm,
    sliding_window,
    streaming,
)  # fmt: skip
from eyeline.planning.flex_blocks import block_mask
from eyeline.testing.kernel import parity_of, with_dtype
from eyeline.tokens import Tokens, default_tokens

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"),
]

PATTERNS: list[Pattern] = [
    Full(), Causal(), Window(7, 3), Window(None, 5), Sinks(9) | Causal(), Chunks(53), Strided(7),
    Dilated(3, 20, 20), FixedColumns(31, 2), Global(5), Global([0, 100, 300]) | Window(9, 9),
    sliding_window(129), streaming(130, 4), prefix_lm(77), ~Causal(),
    (Causal() | Sinks(2)) & ~Chunks(7),
]  # fmt: skip


def request(
    pattern: Pattern, dtype: torch.dtype, queries: int, keys: int, tokens: Tokens | None = None
) -> Request:
    generator = torch.Generator().manual_seed(0)
    shapes = (4, queries, 16), (2, keys, 16), (2, keys, 16)
    tensors = [
        torch.randn(2, *shape, generator=generator).to("cuda", dtype).requires_grad_()
        for shape in shapes
    ]
    both = default_tokens(queries, keys) if tokens is None else (tokens, tokens)
    return Request(*tensors, pattern, *both, 0.3, wants_lse=True)


@pytest.fixture(autouse=True)
def exact_products() -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.compiler.reset()


@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
def test_parity_of_every_atom(pattern: Pattern) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        for queries, keys in ((389, 389), (5, 389)):
            asked = request(pattern, dtype, queries, keys)
            assert flex.refusal(asked) is None
            parity_of_on_cuda(asked)


@pytest.mark.parametrize(
    "tokens",
    [Tokens.padded([389, 53]), Tokens.packed([100, 1, 0, 200], length=389)],
    ids=["left pads", "packed with a rest"],
)
def test_parity_with_tokens(tokens: Tokens) -> None:
    pattern = Causal() if tokens.documents is not None else streaming(17, 3)
    parity_of_on_cuda(request(pattern, torch.float32, 389, 389, tokens))


def parity_of_on_cuda(asked: Request) -> None:
    """The suite's parity, whose yardsticks stand on the CPU."""

    class OnCuda:
        NAME = "flex on cuda"

        def refusal(self, request: Request) -> str | None:
            return None

        def run(self, request: Request) -> tuple[torch.Tensor, torch.Tensor | None]:
            tensors = [x.cuda() for x in (request.query, request.key, request.value)]
            moved = replace(request, query=tensors[0], key=tensors[1], value=tensors[2])
            out, lse = flex.run(moved)
            return out.cpu(), None if lse is None else lse.cpu()

    tensors = [x.detach().cpu() for x in (asked.query, asked.key, asked.value)]
    on_cpu = replace(asked, query=tensors[0], key=tensors[1], value=tensors[2])
    parity_of(OnCuda(), with_dtype(on_cpu, asked.query.dtype))


def test_its_memory_is_that_of_the_blocks() -> None:
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    block_mask(sliding_window(256), 1 << 20, device="cuda")
    assert torch.cuda.max_memory_allocated() - before < 8 << 20


def test_it_names_what_it_refuses() -> None:
    narrow = torch.zeros(1, 1, 67, 8, device="cuda")
    with pytest.raises(NotImplementedError, match="at least 16 wide"):
        attention(narrow, narrow, narrow, Causal(), backend="flex")
