"""check_mechanism: what every mechanism must show, whatever it looks by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from eyeline.errors import NotSupported
from eyeline.layers.in_steps import LayerCache, attend, cache_of
from eyeline.tokens import NOBODY, Tokens

BATCH, KINDS = 2, ("functional", "edge", "none")


@final
@dataclass(frozen=True)
class Claims:
    """The calls that a mechanism is made for, and what it does not claim.

    lengths: of sequences it takes. shared_qk: its keys are its queries. linear_in_value: f(q, k,
    a·v + w) = a·f(q, k, v) + f(q, k, w); weights_sum_to_one: constant values give the constant
    to whoever sees somebody. Both hold unless values are projected or weights are not a softmax's.
    keeps_documents_apart: nobody looks into another document, by its pattern or in any case.
    """

    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 8
    lengths: tuple[int, ...] = (0, 1, 2, 29, 67)
    shared_qk: bool = False
    linear_in_value: bool = True
    weights_sum_to_one: bool = True
    keeps_documents_apart: bool = True

    def inputs(self, length: int, *, seed: int = 0, batch: int = BATCH) -> list[Tensor]:
        """Queries, keys and values of normal numbers, float64."""
        generator = torch.Generator().manual_seed(seed)

        def draw(heads: int) -> Tensor:
            shape = (batch, heads, length, self.head_dim)
            return torch.randn(shape, generator=generator, dtype=torch.float64)

        query = draw(self.heads)
        key = query if self.shared_qk else draw(self.kv_heads)
        return [query, key, draw(self.kv_heads)]


Make = Callable[[], nn.Module]


def check_mechanism(make: Make, claims: Claims = Claims()) -> None:
    """Run every property. make: a new mechanism, the same at every call; it is used in float64.

    Raises AssertionError with the property and the length. What a mechanism refuses by
    NotSupported, documents or a cache, is a refusal and no failure; a wrong answer is one.
    """
    assert getattr(make(), "causality", None) in KINDS, f"causality is one of {', '.join(KINDS)}"
    for name, holds in PROPERTIES.items():
        for length in claims.lengths:
            torch.manual_seed(0)
            try:
                holds(make().double().eval(), claims, length)
            except AssertionError as error:
                raise AssertionError(f"{name}, {length} tokens: {error}") from error


def values_are_summed(mechanism: nn.Module, claims: Claims, length: int) -> None:
    """v = 0 gives 0; f(a·v + w) = a·f(v) + f(w); constant v gives the constant."""
    query, key, value = claims.inputs(length)
    if claims.linear_in_value:
        assert not mechanism(query, key, torch.zeros_like(value)).any(), "v = 0 does not give 0"
        other = value.flip(2)
        one, two = (mechanism(query, key, x) for x in (value, other))
        _same(mechanism(query, key, 3 * value + other), 3 * one + two, "not linear in the values")
    if claims.weights_sum_to_one:
        out = mechanism(query, key, torch.ones_like(value))
        wrong = ((out - 1.0).abs() > 1e-9) & (out != 0.0)
        assert not wrong.any(), "constant values do not give the constant"


def all_types(mechanism: nn.Module, claims: Claims, length: int) -> None:
    """The type of the values comes out, and only finite numbers."""
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        query, key, value = claims.inputs(length)
        given = [x.to(dtype) for x in (query, value)]
        keys = given[0] if claims.shared_qk else key.to(dtype)
        out = mechanism.to(dtype)(given[0], keys, given[1])
        assert out.dtype == dtype and out.shape == query.shape, f"{out.dtype} {tuple(out.shape)}"
        assert out.isfinite().all(), f"not finite in {dtype}"


def rows_are_alone(mechanism: nn.Module, claims: Claims, length: int) -> None:
    """A batch row gives what it gives by itself."""
    given = claims.inputs(length)
    whole = mechanism(*given)
    for row in range(BATCH):
        alone = [x[row : row + 1] for x in given]
        alone[1] = alone[0] if claims.shared_qk else alone[1]
        _same(mechanism(*alone), whole[row : row + 1], f"row {row} depends on another")


def pads_do_not_matter(mechanism: nn.Module, claims: Claims, length: int) -> None:
    """What stands in pads, left, right or between, changes no output and no gradient."""
    pads = max(length // 3, 1)
    if length <= pads:
        return
    for start in (0, length - pads, length // 2):
        real = torch.ones(length, dtype=torch.bool)
        real[start : start + pads] = False
        tokens = Tokens(torch.where(real, real.cumsum(0) - 1, NOBODY))
        results = []
        for garbage in (0.0, 1e4):
            given = [x.clone() for x in claims.inputs(length)]
            given[1] = given[0] if claims.shared_qk else given[1]
            for x in given:
                x[:, :, ~real] = garbage
            results.append(_with_gradients(mechanism, given, tokens, real))
        for before, after in zip(*results, strict=True):
            assert torch.equal(before, after), f"pads from slot {start} on reach real tokens"


def the_future_does_not_matter(mechanism: nn.Module, claims: Claims, length: int) -> None:
    """functional: nothing that comes after changes a token's output; edge: no value does."""
    if mechanism.causality == "none" or length < 2:
        return
    for cut in {1, length // 2, length - 1}:
        before, after = claims.inputs(length), claims.inputs(length)
        new = claims.inputs(length, seed=1)
        changed = range(3) if mechanism.causality == "functional" else (2,)
        for index in changed:
            after[index][:, :, cut:] = new[index][:, :, cut:]
        one, two = (mechanism(*x)[:, :, :cut] for x in (before, after))
        _same(one, two, f"what comes from {cut} on reaches who stands before")


def documents_are_apart(mechanism: nn.Module, claims: Claims, length: int) -> None:
    """Changing the first document leaves the second one equal to the bit."""
    if length < 4 or not claims.keeps_documents_apart:
        return
    cut = length // 2 - 1
    tokens = Tokens.packed([cut, length - cut])
    before, after, new = claims.inputs(length), claims.inputs(length), claims.inputs(length, seed=1)
    for x, y in zip(after, new, strict=True):
        x[:, :, :cut] = y[:, :, :cut]
    try:
        one, two = (mechanism(*x, q_tokens=tokens, k_tokens=tokens) for x in (before, after))
    except NotSupported:
        return
    assert torch.equal(one[:, :, cut:], two[:, :, cut:]), "a document reaches the next one"


def nobody_gets_nothing(mechanism: nn.Module, claims: Claims, length: int) -> None:
    """Where all are pads the output is 0, and gradients are finite."""
    tokens = Tokens(torch.full((length,), NOBODY))
    real = torch.zeros(length, dtype=torch.bool)
    found = _with_gradients(mechanism, claims.inputs(length), tokens, real)
    assert all(x.isfinite().all() for x in found), "a gradient is not finite"
    out = mechanism(*claims.inputs(length), q_tokens=tokens, k_tokens=tokens)
    assert not out.any(), "nobody's output is not 0"


def repeats_itself(mechanism: nn.Module, claims: Claims, length: int) -> None:
    """In eval thirty calls are equal to the bit, whatever torch's generator draws meanwhile."""
    given = claims.inputs(length)
    first = mechanism(*given)
    for _ in range(29):
        torch.rand(1)
        assert torch.equal(first, mechanism(*given)), "two calls in eval differ"


def steps_equal_the_whole(mechanism: nn.Module, claims: Claims, length: int) -> None:
    """Read in steps of 1, 2, 7 and 16 tokens, each gets what it gets in one call."""
    if getattr(mechanism, "no_cache", None) is not None or mechanism.causality != "functional":
        return
    whole = mechanism(*claims.inputs(length))
    for size in (1, 2, 7, 16):
        cache = cache_of(
            mechanism, layers=1, batch=BATCH, num_kv_heads=claims.kv_heads,
            head_dim=claims.head_dim, dtype=torch.float64, device=torch.device("cpu"),
        )  # fmt: skip
        for start in range(0, length, size):
            tokens = Tokens.arange(start, min(start + size, length))
            k_tokens = cache.advance(tokens)
            step = [x[:, :, start : start + size] for x in claims.inputs(length)]
            seen = attend(
                mechanism, *step, q_tokens=tokens, k_tokens=k_tokens, place=LayerCache(cache, 0)
            )
            _same(seen, whole[:, :, start : start + size], f"steps of {size}, from {start} on")


PROPERTIES: dict[str, Callable[[nn.Module, Claims, int], None]] = {
    f.__name__: f
    for f in (
        all_types, values_are_summed, repeats_itself, rows_are_alone, pads_do_not_matter,
        the_future_does_not_matter, documents_are_apart, nobody_gets_nothing,
        steps_equal_the_whole,
    )
}  # fmt: skip


def _with_gradients(
    mechanism: nn.Module, given: list[Tensor], tokens: Tokens, real: Tensor
) -> list[Tensor]:
    """Outputs and gradients of the real tokens."""
    query, key, value = (x.detach().requires_grad_() for x in given)
    keys = query if key is query or torch.equal(given[0], given[1]) else key
    out = mechanism(query, keys, value, q_tokens=tokens, k_tokens=tokens)
    above = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)
    inputs = [query, value] if keys is query else [query, keys, value]
    found = torch.autograd.grad((out * above)[:, :, real].sum(), inputs, allow_unused=True)
    return [out[:, :, real].detach(), *(x[:, :, real] for x in found if x is not None)]


def _same(one: Tensor, other: Tensor, words: str) -> None:
    apart = float((one - other).detach().abs().max()) if one.numel() else 0.0
    assert apart <= 1e-9, f"{words}: {apart:.1e}"
