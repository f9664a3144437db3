"""Which kernel serves a request, and why the others do not."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from eyeline.errors import InvalidArgument, NotSupported
from eyeline.kernels import KERNELS
from eyeline.kernels.request import Request


class Kernel(Protocol):
    """A way to compute attention. It refuses what it cannot do exactly; it never ignores it."""

    NAME: str

    def refusal(self, request: Request) -> str | None:
        """Why the request cannot be served, or None."""

    def run(self, request: Request) -> tuple[Tensor, Tensor | None]:
        """output (B, H, L, Ev) and, if it was asked for, the log-sum-exp (B, H, L)."""


def choose(request: Request, backend: str = "auto") -> Kernel:
    """The first kernel that does not refuse, or the one that was named.

    Raises InvalidArgument for an unknown name, NotSupported when the named kernel refuses: an
    explicit backend never falls back.
    """
    kernels: dict[str, Kernel] = {kernel.NAME: kernel for kernel in KERNELS}
    if backend == "auto":
        return next(kernel for kernel in kernels.values() if kernel.refusal(request) is None)
    if backend not in kernels:
        raise InvalidArgument(f"backend={backend!r}: it is auto, {', '.join(kernels)}")
    reason = kernels[backend].refusal(request)
    if reason is not None:
        raise NotSupported(
            f"backend {backend!r} cannot serve {request.pattern} with {request.sizes}: {reason}"
        )
    return kernels[backend]


def reasons(request: Request) -> dict[str, str]:
    """For each kernel: "chosen", "could serve", or its reason to refuse."""
    answers = {kernel.NAME: kernel.refusal(request) for kernel in KERNELS}
    chosen = choose(request).NAME
    return {
        name: reason if reason is not None else "chosen" if name == chosen else "could serve"
        for name, reason in answers.items()
    }
