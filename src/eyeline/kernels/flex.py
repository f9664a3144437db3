"""torch's FlexAttention, compiled once and given the blocks of the pattern: the form for a GPU.

On the CPU torch has its forward pass only. It is compiled when it is first used, which takes
seconds there; ``auto`` therefore does not come to it.
"""

from __future__ import annotations

import inspect
import os
import shutil
from collections.abc import Callable
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from eyeline.kernels.request import Request
from eyeline.patterns import Pattern
from eyeline.patterns.remember import remember
from eyeline.planning.blocks import block_mask
from eyeline.tokens import Tokens

NAME = "flex"

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_NARROWEST = 16
# Each kind of pattern is compiled on its own. Beyond this many, torch raises.
_MOST_COMPILED = 64


def refusal(request: Request) -> str | None:
    """Why FlexAttention cannot serve the request, or None. Nothing is compiled to find out."""
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
    if torch.backends.cpu.get_cpu_capability() in ("DEFAULT", "NO AVX"):
        return "on the CPU it needs AVX2"
    return _compiler_refusal()


@lru_cache(maxsize=1)
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

    mask = _mask_of(request)
    # A pattern's numbers stay constants of the kernel. Made symbols, torch's lowering fails.
    with torch._dynamo.config.patch(specialize_int=True):
        result = compiled()(
            request.query, request.key, request.value,
            block_mask=mask,
            scale=request.scale,
            enable_gqa=request.groups > 1,
            return_aux=AuxRequest(lse=True) if request.wants_lse else None,
        )  # fmt: skip
    return (result[0], result[1].lse) if request.wants_lse else (result, None)


@lru_cache(maxsize=1)
def compiled() -> Callable[..., Any]:
    """flex_attention, compiled: once for a length, and once more for all others.

    A whole graph, so that torch raises where it would otherwise turn to the dense form silently.
    """
    from torch.nn.attention.flex_attention import flex_attention

    known = inspect.signature(torch.compile).parameters
    limit = {"recompile_limit": _MOST_COMPILED} if "recompile_limit" in known else {}
    return torch.compile(flex_attention, fullgraph=True, **limit)  # type: ignore[call-overload,no-any-return]


def _mask_of(request: Request) -> Any:
    varies = bool(request.pattern.varies_by)
    batch, heads = request.query.shape[:2] if varies else (None, None)
    tokens = request.q_tokens, request.k_tokens
    return _mask(request.pattern, *tokens, batch, heads, request.query.device)


@remember(maxsize=16)
def _mask(
    pattern: Pattern,
    q: Tokens,
    k: Tokens,
    batch: int | None,
    heads: int | None,
    device: torch.device,
) -> Any:
    return block_mask(pattern, q_tokens=q, k_tokens=k, batch=batch, heads=heads, device=device)
