"""check_score_mod: a score modifier says the same thing in all the ways in which it says it."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from eyeline.exact.dispatch import Kernel
from eyeline.kernels import decode, sdpa, tiles
from eyeline.scores import OutputStep, Product, ScoreMod, Softcap, Step
from eyeline.testing.cases import Case, situations
from eyeline.testing.kernel import PROPERTIES

_SHOWN = ("parity", "future_does_not_matter", "empty_rows", "repeats_itself", "nobody_is_nobody")


def check_score_mod(
    mod: ScoreMod, *, heads: int, width: int, value_width: int | None = None
) -> None:
    """Check that the steps of a modifier agree with their definition, and its curves with a reach.

    ``forward`` and ``backward`` of every step, as tiles call them block by block, must give what
    ``define`` gives on all pairs and autograd makes of it: output, the gradients of query, key,
    value and of what the modifier trains (the parameters of a nn.Module), from float64 to bfloat16,
    with packed, padded and scattered positions, shared key heads, empty rows and dropout. What
    calls itself additive must be the same as a bias.

    heads, width, value_width: for which calls it was made; value_width is width if omitted. The
    modifier itself is not touched: a copy in float64 is tried. Raises AssertionError with the step
    or the case and what disagrees.
    """
    mod = copy.deepcopy(mod)
    if isinstance(mod, nn.Module):
        mod.double()
    value_width = value_width if value_width is not None else width
    mod.check(heads, width, value_width)
    steps = mod.steps()
    assert isinstance(steps, tuple) and steps, f"steps() gives {steps!r}: a tuple of Steps"
    for step in steps:
        wide = value_width if isinstance(step, OutputStep) else width
        _check_curve(step, heads, wide)
    name, sizes = type(mod).__name__, {"heads": heads, "width": width, "value_width": value_width}
    for case in situations((mod,), name=name, **sizes):
        _check_case(case)
    # Other steps overwrite what this one gave.
    name, mods = f"{name}, a cap and dropout", (mod, Softcap(2.0))
    for case in situations(mods, name=name, dropout_p=0.3, **sizes)[::4]:
        _check_case(case)


def _check_case(case: Case) -> None:
    request = case.request()
    refusal = tiles.refusal(request)
    assert refusal is None, f"{case}: tiles refuse it: {refusal}"
    kernels: tuple[Kernel, ...] = (tiles, sdpa, decode)
    for kernel in kernels:
        for name in _SHOWN if kernel is tiles else ("parity",):
            if kernel.refusal(request) is None:
                try:
                    PROPERTIES[name](kernel, case)
                except AssertionError as error:
                    raise AssertionError(f"{kernel.NAME}, {name}, {case}: {error}") from error


def _check_curve(step: Step, heads: int, width: int) -> None:
    """Its shape; that it looks at each distance by itself; and that it is flat beyond its reach."""
    if step.curve is None:
        return
    name, vectors = type(step).__name__, isinstance(step, (Product, OutputStep))
    distances = torch.arange(-11, 8)
    found = step.curve(distances)
    ending = (len(distances), width) if vectors else (len(distances),)
    expected = " or ".join(str((first, *ending)) for first in dict.fromkeys((1, heads)))
    assert str(tuple(found.shape)) in expected, (
        f"{name}: curve {tuple(found.shape)}, not {expected}"
    )
    order = torch.arange(len(distances)).flip(0)[::2]
    _equal(
        step.curve(distances[order]),
        found[:, order],
        f"{name}: curve looks at more than one distance",
    )
    for end, beyond in zip(step.reach, (-1, 1), strict=True):
        if end is not None:
            there, further = (step.curve(torch.tensor([x])) for x in (end, end + 5 * beyond))
            _equal(there, further, f"{name}: its curve goes on beyond its reach, {end}")


def _equal(a: Tensor, b: Tensor, message: str) -> None:
    assert torch.allclose(a, b, rtol=1e-12, atol=1e-12), message
