"""check_kernel: what every kernel must show, whatever it is made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from eyeline.checks import wide_dtype
from eyeline.exact.dispatch import Kernel
from eyeline.kernels import reference
from eyeline.kernels.request import Request, mask_of, pairs_of
from eyeline.testing.cases import Case, cases, scored_cases
from eyeline.tokens import NOBODY

# Watch what a computation allocates: no tensor of n² elements may appear anywhere.


def largest_tensor(run: Callable[[], object]) -> int:
    """The number of elements in the largest storage that any operation in ``run`` made or took.

    Views count by their storage, so an expanded tensor counts by what it really holds.
    """
    watch = _Watch()  # type: ignore[no-untyped-call]
    with watch:
        run()
    return watch.most


class _Watch(TorchDispatchMode):
    most = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs if kwargs is not None else {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor) and leaf.layout == torch.strided:
                self.most = max(self.most, leaf.untyped_storage().nbytes() // leaf.element_size())
        return result


# How close is close enough: the yardstick is float64, the measure the unfused computation.

FLOAT64_TOLERANCE = 1e-10


def with_dtype(request: Request, dtype: torch.dtype) -> Request:
    """The same numbers in another type, each tensor a new leaf that takes gradients."""
    q, k, v = (
        x.detach().to(dtype).requires_grad_() for x in (request.query, request.key, request.value)
    )
    return replace(request, query=q, key=k, value=v)


def gradients(
    request: Request, out: Tensor, above: Tensor, learned: Sequence[Tensor] = ()
) -> tuple[Tensor, ...]:
    """d(Σ out·above) for query, key, value and what is learned; 0 where nothing depends on it."""
    inputs = (request.query, request.key, request.value, *learned)
    if not out.requires_grad:
        return tuple(torch.zeros_like(x) for x in inputs)
    total = (out * above.to(out.dtype)).sum()
    found = torch.autograd.grad(total, inputs, allow_unused=True)
    return tuple(
        torch.zeros_like(x) if g is None else g for x, g in zip(inputs, found, strict=True)
    )


def unfused(request: Request) -> tuple[Tensor, Tensor]:
    """The computation a user would write, every step in the type of the inputs: output, lse."""
    k = request.key.repeat_interleave(request.groups, 1)
    v = request.value.repeat_interleave(request.groups, 1)
    allowed = mask_of(request)
    score = (request.query @ k.transpose(-2, -1)) * request.scale
    pairs = pairs_of(request)
    for step in request.score_steps:
        score = step.define(score, pairs).to(k.dtype)
    some = allowed.any(-1, keepdim=True)
    score = score.masked_fill(~(allowed | ~some), -torch.inf)
    weight = torch.softmax(score, -1).masked_fill(~allowed, 0.0)
    for change in request.weight_steps:
        weight = change.define(weight, pairs).to(k.dtype)
    out = weight @ v
    for extra in request.output_steps:
        out = out + extra.define(weight.to(wide_dtype(k)), pairs).to(k.dtype)
    return out, score.logsumexp(-1)


def oracle(
    request: Request, above: Tensor, learned: Sequence[Tensor] = ()
) -> tuple[tuple[Tensor, ...], Tensor]:
    """The reference in float64, for the numbers of ``request``: output and gradients, and lse."""
    wide = with_dtype(request, torch.float64)
    out, lse = reference.run(wide)
    return (out.detach(), *gradients(wide, out, above, learned)), lse.detach()


def rounding_steps(request: Request, above: Tensor) -> dict[str, float]:
    """What one rounding in the inputs' type can do to each result.

    A score is rounded by eps·|score|, and its weight changes by that share. The slope of a score,
    above·v, is rounded by eps·|above|·|v| before what cancels is taken away.
    """
    wide = with_dtype(request, torch.float64)
    with torch.no_grad():
        weight, above = reference.weights(wide)[0], above.double().abs()
    q, k, v = (x.detach().abs() for x in (wide.query, wide.key, wide.value))
    k, v = (x.repeat_interleave(request.groups, 1) for x in (k, v))
    score = _size(q @ k.transpose(-2, -1)) * request.scale
    slope = weight * (above @ v.transpose(-2, -1)) * request.scale
    sums = {
        "output": weight @ v,
        "dq": slope @ k,
        "dk": (slope.transpose(-2, -1) @ q).unflatten(1, (-1, request.groups)).sum(2),
        "dv": (weight.transpose(-2, -1) @ above).unflatten(1, (-1, request.groups)).sum(2),
        "lse": torch.ones(1),
    }
    # A learned number may get the slopes of all pairs, with the query or the gradient above.
    sums["learned"] = slope.sum() * max(1.0, _size(q)) + weight.sum() * _size(above)
    eps = torch.finfo(request.query.dtype).eps * (1 + score)
    return {name: eps * _size(x) for name, x in sums.items()}


def assert_close(
    name: str, found: Tensor, right: Tensor, plain: Tensor, step: float, dtype: torch.dtype
) -> None:
    """found is as right as ``plain``, the unfused computation in the same type, allows.

    float64: 1e-10. Else the error is at most twice the unfused one, and one rounding step.
    """
    error = distance(found, right)
    if dtype == torch.float64:
        allowed = FLOAT64_TOLERANCE * max(1.0, _size(right))
    else:
        allowed = 2 * distance(plain, right) + step
    assert error <= allowed, f"{name}: error {error:.3g}, allowed {allowed:.3g}"


def distance(found: Tensor, right: Tensor) -> float:
    """The greatest difference; NaN where the reference has none is an error."""
    assert found.shape == right.shape, f"shape {tuple(found.shape)}, not {tuple(right.shape)}"
    difference = (found.detach().double() - right.double()).abs()
    assert not difference.isnan().any(), "NaN where the reference has none"
    return float(difference.max()) if difference.numel() else 0.0


def _size(x: Tensor) -> float:
    return float(x.abs().max()) if x.numel() else 0.0


DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def check_kernel(kernel: Kernel) -> None:
    """Run every property on every case that the kernel does not refuse.

    kernel: anything with NAME, refusal(request) and run(request). Raises AssertionError with the
    property, the case and the size of the error; also when the kernel refuses every case.
    """
    served = 0
    for case in (*cases(), *scored_cases()):
        for name, holds in PROPERTIES.items():
            if kernel.refusal(case.request()) is not None:
                continue
            served += 1
            try:
                holds(kernel, case)
            except AssertionError as error:
                raise AssertionError(f"{kernel.NAME}, {name}, {case}: {error}") from error
    assert served, f"{kernel.NAME} refuses every case"


def parity(kernel: Kernel, case: Case) -> None:
    """Output and gradients, of learned terms too, equal the reference's, in every dtype."""
    for dtype in DTYPES:
        parity_of(kernel, with_dtype(case.request(dtype), dtype), case.learned)


def large_scores(kernel: Kernel, case: Case) -> None:
    """Scores 3, 10 and 30 times wider."""
    for spread in (3.0, 10.0, 30.0):
        for dtype in (torch.float64, torch.float32):
            request = with_dtype(case.request(dtype, spread=spread), dtype)
            parity_of(kernel, request, case.learned)


def parity_of(kernel: Kernel, request: Request, learned: Sequence[Tensor] = ()) -> None:
    """Output, log-sum-exp and gradients for one request whose tensors take gradients."""
    above = torch.randn(
        (*request.query.shape[:3], request.value.shape[-1]),
        generator=torch.Generator().manual_seed(7),
        dtype=torch.float64,
    )
    right, true_lse = oracle(request, above, learned)
    plain, plain_lse = unfused(request)
    out, lse = kernel.run(request)
    assert out.dtype == request.value.dtype, f"output is {out.dtype}"
    found = (out, *gradients(request, out, above, learned))
    usual = (plain, *gradients(request, plain, above, learned))
    steps = rounding_steps(request, above)
    names = ("output", "dq", "dk", "dv", *("learned" for _ in learned))
    for name, x, true, other in zip(names, found, right, usual, strict=True):
        assert_close(f"{name} for {out.dtype}", x, true, other.detach(), steps[name], out.dtype)
    if lse is not None:
        assert torch.equal(lse.isinf(), true_lse.isinf()), "lse is -inf in the wrong rows"
        a, b, c = (x.masked_fill(true_lse.isinf(), 0.0) for x in (lse, true_lse, plain_lse))
        assert_close(f"lse for {out.dtype}", a, b, c, steps["lse"], lse.dtype)


def linear_in_value(kernel: Kernel, case: Case) -> None:
    """v = 0 gives 0; constant v gives the constant; f(a·v + w) = a·f(v) + f(w).

    Not claimed where steps add to the output; the constant not where they change weights.
    """
    request = case.request()
    if request.output_steps:
        return
    some = mask_of(request).any(-1, keepdim=True)
    zero, _ = kernel.run(replace(request, value=torch.zeros_like(request.value)))
    assert not zero.any(), "v = 0 does not give 0"
    one, _ = kernel.run(replace(request, value=torch.ones_like(request.value)))
    if not request.weight_steps:
        torch.testing.assert_close(one, some.to(one.dtype).expand_as(one))
    other = request.value.flip(2)
    first, second = (kernel.run(replace(request, value=v))[0] for v in (request.value, other))
    both, _ = kernel.run(replace(request, value=3 * request.value + other))
    torch.testing.assert_close(both, 3 * first + second)


def unseen_keys_do_not_matter(kernel: Kernel, case: Case) -> None:
    """Garbage in a key that nobody may look at, of size 1e4, changes nothing; nor in a pad."""
    request = case.request()
    mask = mask_of(request).broadcast_to(*request.query.shape[:3], request.key.shape[2])
    groups = request.key.shape[1]
    seen = mask.unflatten(1, (groups, -1)).any(2).any(2)[..., None]
    before = with_dtype(request, torch.float64)
    after = replace(
        before,
        key=torch.where(seen, before.key, 1e4).detach().requires_grad_(),
        value=torch.where(seen, before.value, -1e4).detach().requires_grad_(),
    )
    results = [kernel.run(x)[0] for x in (before, after)]
    torch.testing.assert_close(*results)
    above = torch.ones_like(results[0])
    old, new = (gradients(x, r, above) for x, r in zip((before, after), results, strict=True))
    for a, b in zip(old, new, strict=True):
        torch.testing.assert_close(a, b)
    assert not (new[2] * ~seen).any(), "a value that nobody sees has a gradient"


def future_does_not_matter(kernel: Kernel, case: Case) -> None:
    """Changing one key changes only the queries that may look at it, not one bit elsewhere."""
    request = case.request()
    if not request.key.shape[2]:
        return
    slot = request.key.shape[2] // 2
    changed = [x.clone() for x in (request.key, request.value)]
    for x in changed:
        x[:, :, slot] += 3.0
    before, after = (
        kernel.run(request)[0],
        kernel.run(replace(request, key=changed[0], value=changed[1]))[0],
    )
    looks = mask_of(request)[..., slot].broadcast_to(before.shape[:3])
    assert torch.equal(before[~looks], after[~looks]), f"key {slot} reached who may not look at it"


def empty_rows(kernel: Kernel, case: Case) -> None:
    """A query that may look at nobody gets exactly 0, lse -inf, and finite gradients."""
    request = with_dtype(case.request(), torch.float64)
    out, lse = kernel.run(request)
    empty = ~mask_of(request).any(-1).broadcast_to(out.shape[:3])
    assert not out[empty].any(), "output of an empty row is not 0"
    assert lse is None or bool((lse[empty] == -torch.inf).all()), "lse of an empty row is not -inf"
    for gradient in gradients(request, out, torch.ones_like(out)):
        assert gradient.isfinite().all(), "a gradient is not finite"


def stays_inside(kernel: Kernel, case: Case) -> None:
    """Tensors cut out of larger ones filled with NaN: no read past the end shows."""
    request = case.request()

    def cut(x: Tensor) -> Tensor:
        large = torch.full([size + 3 for size in x.shape], torch.nan, dtype=x.dtype)
        inner = large[tuple(slice(1, 1 + size) for size in x.shape)]
        return inner.copy_(x)

    q, k, v = (cut(x) for x in (request.query, request.key, request.value))
    inside = replace(request, query=q, key=k, value=v)
    torch.testing.assert_close(kernel.run(inside)[0], kernel.run(request)[0])


def any_layout(kernel: Kernel, case: Case) -> None:
    """Transposed, broadcast and stepped inputs give what contiguous ones give, gradients too."""
    request = case.request()

    def transposed(x: Tensor) -> Tensor:
        return x.transpose(1, 2).contiguous().transpose(1, 2)

    def column_first(x: Tensor) -> Tensor:
        return x.transpose(2, 3).contiguous().transpose(2, 3)

    def stepped(x: Tensor) -> Tensor:
        return x.repeat_interleave(2, 3)[..., ::2]

    def broadcast(x: Tensor) -> Tensor:
        return x[:1, :1].expand_as(x)

    for change in (transposed, column_first, stepped, broadcast):
        tensors = [change(x) for x in (request.query, request.key, request.value)]
        results = []
        for made in (tensors, [x.contiguous() for x in tensors]):
            q, k, v = (x.detach().requires_grad_() for x in made)
            asked = replace(request, query=q, key=k, value=v)
            out, _ = kernel.run(asked)
            above = column_first(torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out))
            results.append((out.detach(), *gradients(asked, out, above)))
        for a, b in zip(*results, strict=True):
            assert torch.allclose(a, b), f"{change.__name__} inputs: {float((a - b).abs().max())}"


def repeats_itself(kernel: Kernel, case: Case) -> None:
    """Two runs are equal to the bit."""
    request = case.request(torch.float32)
    assert torch.equal(kernel.run(request)[0], kernel.run(request)[0])


def nobody_is_nobody(kernel: Kernel, case: Case) -> None:
    """A slot at position -1 gets 0 and gives nothing, whatever the pattern says of it."""
    request = case.request()
    q_pad, k_pad = (t.positions == NOBODY for t in (request.q_tokens, request.k_tokens))
    out, _ = kernel.run(request)
    shape = (request.query.shape[0], request.query.shape[2])
    assert not out.transpose(1, 2)[q_pad.broadcast_to(shape)].any(), "a pad has an output"
    if not k_pad.any():
        return
    pad = k_pad.broadcast_to(shape[0], request.key.shape[2])[:, None, :, None]
    garbage = replace(
        request,
        key=request.key.masked_fill(pad, 1e4),
        value=request.value.masked_fill(pad, 1e4),
        query=request.query.masked_fill(q_pad.broadcast_to(shape)[:, None, :, None], -1e4),
    )
    torch.testing.assert_close(kernel.run(garbage)[0], out)


PROPERTIES: dict[str, Callable[[Kernel, Case], None]] = {
    f.__name__: f
    for f in (
        parity, large_scores, linear_in_value, unseen_keys_do_not_matter, future_does_not_matter,
        empty_rows, stays_inside, any_layout, repeats_itself, nobody_is_nobody,
    )
}  # fmt: skip
