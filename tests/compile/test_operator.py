"""The operator itself: what torch asks of one, in every mode in which it is called."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from compile.traced import Counted, assert_same, deterministic, tensors
from eyeline import Causal, Explicit, Pattern, Tokens, attention, sliding_window, streaming
from eyeline.errors import NotSupported
from eyeline.exact.operator import attention_operator, backward_operator
from eyeline.mechanisms import Exact
from eyeline.scores import T5Bias, TransformerXL

POSITIONS = Tokens.padded([13, 9], length=13).positions
NOTHING: dict[str, Any] = {
    "q_positions": None, "k_positions": None, "q_documents": None, "k_documents": None,
    "q_segments": None, "k_segments": None, "seed": None, "tables": [], "bound": [],
    "pattern": "causal & window(left=3, right=0)",
    "leaves": "", "steps": "", "numbers": [0.3],
}  # fmt: skip
CALLS: dict[str, dict[str, Any]] = {
    "plain": {},
    "steps and tokens": {
        "tables": [torch.ones(4, 27).requires_grad_(), torch.ones(1, 27, 5).requires_grad_()],
        "steps": "bias -13;product;softcap;dropout", "numbers": [0.3, 2.0, 0.1],
        "seed": torch.tensor(7), "q_positions": POSITIONS, "k_positions": POSITIONS,
    },
    "mask and documents": {
        "bound": [torch.ones(13, 13, dtype=torch.bool).tril()], "pattern": "explicit(#0)",
        "leaves": "explicit", "q_positions": POSITIONS, "k_positions": POSITIONS,
        "q_documents": POSITIONS % 2, "k_documents": POSITIONS % 2,
        "q_segments": POSITIONS % 3, "k_segments": POSITIONS % 3,
    },
}  # fmt: skip


def arguments(name: str) -> tuple[Any, ...]:
    return (*tensors(13, dtype=torch.float32), *{**NOTHING, **CALLS[name]}.values())


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("with_lse", [False, True])
def test_torch_finds_the_operator_in_order(name: str, with_lse: bool) -> None:
    torch.library.opcheck(attention_operator, (*arguments(name), "auto", with_lse))


@pytest.mark.parametrize("name", CALLS)
def test_torch_finds_the_derivative_in_order(name: str) -> None:
    given = [x.detach() if isinstance(x, Tensor) else x for x in arguments(name)]
    given[10] = [table.detach() for table in given[10]]
    out, lse = attention_operator(*given, "auto", True)
    wanted = [index % 2 == 0 for index, _ in enumerate(given[10])]
    rest = wanted, out, lse, torch.ones_like(out), torch.ones_like(lse)
    torch.library.opcheck(backward_operator, (*given, *rest))


def test_it_is_not_recorded_in_a_cuda_graph() -> None:
    for name in ("attention", "attention_backward"):
        assert torch.Tag.cudagraph_unsafe in getattr(torch.ops.eyeline, name).default.tags


@pytest.mark.parametrize("backend", ["decode", "sdpa", "tiles", "reference"])
def test_results_lie_together_and_are_new(backend: str) -> None:
    q, k, v = (x.detach() for x in tensors(5, 13, key_heads=4, value_width=5))
    call = (q, k, v, *{**NOTHING, "pattern": "full"}.values())
    out, lse = attention_operator(*call, backend, False)
    assert out.is_contiguous()
    assert not lse.numel()
    torch.testing.assert_close(out, attention(q, k, v, scale=0.3, backend=backend))


def test_a_forward_pass_that_knew_of_no_backward_pass() -> None:
    """An exported graph may be trained though it was exported for inference."""
    x = tensors(67)
    call = (*x, *{**NOTHING, "pattern": "causal & window(left=8, right=0)"}.values())
    out, _ = attention_operator(*call, "auto", False)
    assert_same(out, attention(*x, sliding_window(9), scale=0.3), x)


def _padded(q: Tensor, k: Tensor, v: Tensor, pattern: Pattern, backend: str = "auto") -> Tensor:
    tokens = Tokens(POSITIONS)
    return attention(q, k, v, pattern, q_tokens=tokens, k_tokens=tokens, backend=backend)


@pytest.mark.parametrize("backend", ["sdpa", "decode", "reference"])
def test_a_named_backend_serves_inference_and_refuses_training(backend: str) -> None:
    x = tensors(8, 13)

    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attention(q, k, v, streaming(3, 1), backend=backend)

    with torch.no_grad():
        assert_same(Counted(call)(*x), call(*x))
    with pytest.raises(Exception, match=f"backend '{backend}' has no derivative inside"):
        Counted(call)(*x)
    packed = (*x, *NOTHING.values())
    out, _ = attention_operator(*packed, backend, False)
    with pytest.raises(NotSupported, match="has no derivative inside"):
        out.sum().backward()


def test_a_second_derivative_is_refused() -> None:
    x = tensors(13)
    out, _ = attention_operator(*x, *NOTHING.values(), "auto", True)
    (first,) = torch.autograd.grad(out.sum(), x[:1], create_graph=True)
    with pytest.raises(RuntimeError, match="no autograd formula"):
        first.sum().backward()


@pytest.mark.parametrize("pattern", [Causal(), sliding_window(5)], ids=str)
def test_autocast(pattern: Pattern) -> None:
    """Inputs are rounded as eagerly, to 2^-9; tables and sums are not."""
    positions = TransformerXL(4, 5)
    trained = list(positions.parameters())

    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attention(q, k, v, pattern, score_mod=positions, backend="tiles")

    def inside(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return call(q, k, v)

    x = tensors(67, dtype=torch.float32, value_width=5)
    leaves = (*x, *trained)
    right = inside(*x)
    assert right.dtype == torch.bfloat16
    assert_same(Counted(inside, "aot_eager")(*x), right, leaves, tolerance=1e-3)
    for backend in ("eager", "aot_eager"):
        compiled = Counted(call, backend)
        with torch.autocast("cpu", torch.bfloat16):
            found = compiled(*x)
        # torch computes the backward pass of what it compiled under autocast under it too, and so
        # the tables' own; the operator's is not touched by that.
        assert_same(found, right, leaves if backend == "eager" else x, tolerance=1e-3)


@pytest.mark.parametrize("compiles", [False, True])
def test_deterministic_mode(compiles: bool) -> None:
    """New memory is full of NaN in it, and what has no repeatable form raises."""
    bias = T5Bias(4, bidirectional=True, max_distance=20).double()
    mask = Explicit(torch.rand(67, 67, generator=torch.Generator().manual_seed(0)) < 0.5)

    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        pattern = streaming(9, 2) | mask
        return attention(q, k, v, pattern, score_mod=bias, dropout_p=0.3, backend="tiles")

    x = tensors(67)
    torch.manual_seed(1)
    right = call(*x)
    with deterministic():
        for _ in range(2):
            torch.manual_seed(1)
            found = (Counted(call, "aot_eager") if compiles else call)(*x)
            assert_same(found, right, (*x, bias.weight))


@pytest.mark.parametrize("pattern", [sliding_window(5), Explicit(torch.ones(19, 19).bool().tril())])
def test_a_compiled_module_can_be_copied(pattern: Pattern) -> None:
    bias = T5Bias(4, bidirectional=True, max_distance=20)
    module = Exact(pattern, score_mod=bias, dropout=0.2).double()
    torch._dynamo.reset()
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    x, found = tensors(19), []
    for each in (compiled, copy.deepcopy(compiled), module):
        torch.manual_seed(2)
        found.append(each(*x))
    assert torch.equal(found[0], found[1])
    assert_same(found[1], found[2], x)


def test_checkpointing_drops_the_same_weights_again() -> None:
    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attention(q, k, v, sliding_window(9), dropout_p=0.4)

    def again(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        result: Tensor = checkpoint(call, q, k, v, use_reentrant=False)
        return result

    x = tensors(67)
    torch.manual_seed(3)
    found = Counted(again, "aot_eager")(*x)
    torch.manual_seed(3)
    assert_same(found, call(*x), x)
