"""torch's FlexAttention, compiled and given the blocks of the pattern: the form for a GPU.

On the CPU torch has its forward pass only, and compiling it takes ten seconds: ``auto`` does not
come to it.
"""

from __future__ import annotations

import inspect
import os
import shutil
from collections.abc import Callable
from importlib.util import find_spec
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

from eyeline.kernels.request import Request
from eyeline.memory import remembered
from eyeline.patterns import Pattern
from eyeline.planning.flex_blocks import block_mask
from eyeline.tokens import Tokens, default_tokens

NAME = "flex"

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_NARROWEST = 16
# This many compiled kernels are kept; torch raises when one more is asked for.
_MOST_COMPILED = 64


def refusal(request: Request) -> str | None:
    """Why FlexAttention cannot serve the request, or None. Nothing is compiled to find out."""
    if any(step is not request.called for step in request.steps):
        return "of changes to scores it takes one callable alone"
    if request.called is not None and not _slots_are_positions(request):
        return "it gives a callable score_mod slots, and here they are not the positions"
    device = request.query.device.type
    if device not in ("cuda", "cpu"):
        return f"it runs on cuda and cpu, not on {device}"
    if not request.query.numel() or not request.key.numel() or not request.value.numel():
        return "there is no query, no key or no width"
    if request.query.dtype not in _DTYPES:
        return f"it computes in float32, less than {request.query.dtype}"
    return _refusal_on_cpu(request) if device == "cpu" else _refusal_on_cuda(request)


def _refusal_on_cpu(request: Request) -> str | None:
    if request.wants_lse:
        return "on the CPU it does not return the log-sum-exp"
    if any(x.requires_grad for x in (request.query, request.key, request.value)):
        return "on the CPU it has no backward pass: detach the inputs"
    if request.query.shape[2] == 1:
        # torch 2.13 reads past a buffer where that one sees nobody.
        return "on the CPU it needs more than one query"
    if torch.backends.cpu.get_cpu_capability() in ("DEFAULT", "NO AVX"):
        return "on the CPU it needs AVX2"
    return _compiler_refusal()


@remembered(1)
def _compiler_refusal() -> str | None:
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler.split()[0] if compiler else "g++") is None:
        return f"on the CPU it needs a C++ compiler, and {compiler} is not there"
    return None


def _refusal_on_cuda(request: Request) -> str | None:
    widths = request.query.shape[-1], request.value.shape[-1]
    if min(widths) < _NARROWEST:
        return f"on a GPU its heads are at least {_NARROWEST} wide, here {widths[0]}, {widths[1]}"
    return None if find_spec("triton") is not None else "on a GPU it needs Triton"


def run(request: Request) -> tuple[Tensor, Tensor | None]:
    """output (B, H, L, Ev) and, if it was asked for, lse (B, H, L); on a GPU, first derivatives."""
    from torch.nn.attention.flex_attention import AuxRequest

    result = compiled(request.query.device.type)(
        request.query, request.key, request.value,
        score_mod=None if request.called is None else request.called.callable,
        block_mask=_mask_of(request),
        scale=request.scale,
        enable_gqa=request.groups > 1,
        return_aux=AuxRequest(lse=True) if request.wants_lse else None,
    )  # fmt: skip
    return (result[0], result[1].lse) if request.wants_lse else (result, None)


def _slots_are_positions(request: Request) -> bool:
    default = default_tokens(request.query.shape[2], request.key.shape[2])
    starts_at_0 = request.query.shape[2] == request.key.shape[2]
    return starts_at_0 and (request.q_tokens, request.k_tokens) == default


@remembered(4)
def compiled(device: str) -> Callable[..., Any]:
    """flex_attention, compiled for each kind of pattern and shape of heads.

    On a GPU once for a length and once more for all others; on the CPU for each length, since
    torch 2.13 writes C++ that does not compile where a mask reads a number or a tensor whose size
    is a symbol. A whole graph, so that torch raises where it would otherwise turn to the dense
    form silently: after as many kernels as it keeps.
    """
    from torch.nn.attention.flex_attention import flex_attention

    options: dict[str, Any] = {"fullgraph": True, "dynamic": False if device == "cpu" else None}
    # A budget of our own: kernels that a user compiles of the same function do not count.
    own = {"recompile_limit": _MOST_COMPILED, "isolate_recompiles": True}
    known = inspect.signature(torch.compile).parameters
    options |= {name: value for name, value in own.items() if name in known}
    made: Callable[..., Any] = torch.compile(flex_attention, **options)
    return made


def _mask_of(request: Request) -> Any:
    varies = bool(request.pattern.varies_by)
    batch, heads = request.query.shape[:2] if varies else (None, None)
    tokens = request.q_tokens, request.k_tokens
    return _mask(request.pattern, *tokens, batch, heads, request.query.device)


@remembered(16, unless=attrgetter("bound"))
def _mask(
    pattern: Pattern,
    q: Tokens,
    k: Tokens,
    batch: int | None,
    heads: int | None,
    device: torch.device,
) -> Any:
    return block_mask(pattern, q_tokens=q, k_tokens=k, batch=batch, heads=heads, device=device)
