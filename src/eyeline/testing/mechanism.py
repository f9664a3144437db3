"""check_mechanism: what every mechanism must show, whatever it looks by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, final

import torch
from torch import Tensor

from eyeline.caches import LayerCache, Layout
from eyeline.errors import NotSupported
from eyeline.mechanisms import Mechanism
from eyeline.tokens import NOBODY, Tokens

BATCH, KINDS, WIDTH = 2, ("functional", "edge", "none"), 11


@final
@dataclass(frozen=True)
class Claims:
    """The calls that a mechanism is made for, and what it does not claim.

    lengths: of sequences it takes. linear_in_value: f(q, k, a·v + w) = a·f(q, k, v) + f(q, k, w);
    weights_sum_to_one: constant values give the constant to whoever attends to a key. Both hold
    unless values are projected or weights are not a softmax's. tolerance: how far numbers that
    are equal but for rounding may differ, in float64.
    """

    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 8
    lengths: tuple[int, ...] = (0, 1, 2, 29, 67)
    linear_in_value: bool = True
    weights_sum_to_one: bool = True
    tolerance: float = 1e-9

    def inputs(
        self, mechanism: Mechanism, length: int, *, seed: int = 0, batch: int = BATCH
    ) -> Given:
        """Queries, keys and values of normal numbers, float64, and a layer's input if asked."""
        generator = torch.Generator().manual_seed(seed)

        def draw(*shape: int) -> Tensor:
            return torch.randn(batch, *shape, generator=generator, dtype=torch.float64)

        query = draw(self.heads, length, self.head_dim)
        key = query if mechanism.shared_qk else draw(self.kv_heads, length, self.head_dim)
        value = draw(self.kv_heads, length, self.head_dim)
        return Given(query, key, value, draw(length, WIDTH) if mechanism.needs_input else None)


class Given(NamedTuple):
    """Queries (B, H, L, E), keys and values (B, Hk, L, E), and the layer's input (B, L, WIDTH)."""

    query: Tensor
    key: Tensor
    value: Tensor
    x: Tensor | None

    def map(self, change: Callable[[Tensor], Tensor]) -> Given:
        """Each changed; keys that are the queries stay so."""
        query, value = change(self.query), change(self.value)
        key = query if self.key is self.query else change(self.key)
        return Given(query, key, value, None if self.x is None else change(self.x))

    def at(self, index: slice | Tensor) -> Given:
        """Some slots of each."""
        return self.map(lambda x: x[..., index, :])


def run(mechanism: Mechanism, given: Given, tokens: Tokens | None = None) -> Tensor:
    """What a layer would call."""
    return mechanism.attend(*given[:3], q_tokens=tokens, k_tokens=tokens, inputs=given.x)


Make = Callable[[], Mechanism]


def check_mechanism(
    make: Make, claims: Claims = Claims(), *, reference: Callable[..., Tensor] | None = None
) -> None:
    """Run every property. make: a new mechanism, the same at every call; it is used in float64.

    reference: what it should give, written down densely: called with queries, keys and values
    (B, H or Hk, L, E), and inputs=x for a mechanism that needs its layer's input. Without one
    no property can tell which pairs were meant.

    Raises AssertionError with the property and the length, whatever went wrong. What a mechanism
    refuses by NotSupported, documents or a cache, is a refusal and no failure; a wrong answer is
    one.
    """
    made: object = make()
    assert isinstance(made, Mechanism), (
        f"{type(made).__name__} is no Mechanism: derive it from eyeline.mechanisms.Mechanism"
    )
    assert made.causality in KINDS, f"causality is one of {', '.join(KINDS)}"
    properties = dict(PROPERTIES)
    if reference is not None:
        properties["equals_its_reference"] = partial(equals_its_reference, reference)
    for name, holds in properties.items():
        for length in claims.lengths:
            torch.manual_seed(0)
            try:
                holds(make().double().eval(), claims, length)
            except Exception as error:
                kind = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
                raise AssertionError(f"{name}, {length} tokens: {kind}{error}") from error


def equals_its_reference(
    reference: Callable[..., Tensor], mechanism: Mechanism, claims: Claims, length: int
) -> None:
    """Outputs are those of the dense definition."""
    given = claims.inputs(mechanism, length)
    more = {} if given.x is None else {"inputs": given.x}
    due = reference(*given[:3], **more)
    _same(run(mechanism, given), due, claims, "not what the reference gives")


def input_is_asked_for(mechanism: Mechanism, claims: Claims, length: int) -> None:
    """A mechanism that needs its layer's input refuses, in words, to be called without it."""
    if not mechanism.needs_input:
        return
    try:
        run(mechanism, claims.inputs(mechanism, length)._replace(x=None))
    except NotSupported:
        return
    raise AssertionError("called without its layer's input it does not refuse: use required()")


def weights_give_the_output(mechanism: Mechanism, claims: Claims, length: int) -> None:
    """weights @ value is the output, unless it says why there are none."""
    if mechanism.no_weights is not None:
        return
    query, key, value, _ = claims.inputs(mechanism, length)
    weight = mechanism.weights(query, key)
    value_of_heads = value.repeat_interleave(claims.heads // claims.kv_heads, 1)
    # Weights beyond those of the sequence's keys are of what the mechanism has itself.
    if weight.shape[3] == length:
        out = mechanism(query, key, value)
        _same(weight @ value_of_heads, out, claims, "weights @ value is not the output")


def values_are_summed(mechanism: Mechanism, claims: Claims, length: int) -> None:
    """v = 0 gives 0; f(a·v + w) = a·f(v) + f(w); constant v gives the constant."""
    given = claims.inputs(mechanism, length)
    value = given.value
    if claims.linear_in_value:
        nothing = run(mechanism, given._replace(value=torch.zeros_like(value)))
        assert not nothing.any(), "v = 0 does not give 0"
        other = value.flip(2)
        one, two = (run(mechanism, given._replace(value=x)) for x in (value, other))
        both = run(mechanism, given._replace(value=3 * value + other))
        _same(both, 3 * one + two, claims, "not linear in the values")
    if claims.weights_sum_to_one:
        out = run(mechanism, given._replace(value=torch.ones_like(value)))
        wrong = ((out - 1.0).abs() > claims.tolerance) & (out != 0.0)
        assert not wrong.any(), "constant values do not give the constant"


def all_types(mechanism: Mechanism, claims: Claims, length: int) -> None:
    """The type of the values comes out, and only finite numbers."""
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        given = claims.inputs(mechanism, length).map(lambda x, dtype=dtype: x.to(dtype))  # type: ignore[misc]
        out = run(mechanism.to(dtype), given)
        shape = given.query.shape
        assert out.dtype == dtype and out.shape == shape, f"{out.dtype} {tuple(out.shape)}"
        assert out.isfinite().all(), f"not finite in {dtype}"


def rows_are_alone(mechanism: Mechanism, claims: Claims, length: int) -> None:
    """A batch row gives what it gives by itself."""
    given = claims.inputs(mechanism, length)
    whole = run(mechanism, given)
    for row in range(BATCH):
        alone = run(mechanism, given.map(lambda x, row=row: x[row : row + 1]))  # type: ignore[misc]
        _same(alone, whole[row : row + 1], claims, f"row {row} depends on another")


def pads_do_not_matter(mechanism: Mechanism, claims: Claims, length: int) -> None:
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
            given = claims.inputs(mechanism, length)
            other = given.map(lambda x, garbage=garbage: torch.full_like(x, garbage))  # type: ignore[misc]
            given = _replaced(given, other, ~real)
            results.append(_with_gradients(mechanism, given, tokens, real))
        for before, after in zip(*results, strict=True):
            assert torch.equal(before, after), f"pads from slot {start} on reach real tokens"


def the_future_does_not_matter(mechanism: Mechanism, claims: Claims, length: int) -> None:
    """functional: nothing that comes after changes a token's output; edge: no value does."""
    if mechanism.causality == "none" or length < 2:
        return
    for cut in {1, length // 2, length - 1}:
        before, new = (claims.inputs(mechanism, length, seed=seed) for seed in (0, 1))
        after = _replaced(before, new, torch.arange(length) >= cut)
        if mechanism.causality == "edge":
            after = before._replace(value=after.value)
        one, two = (run(mechanism, x)[:, :, :cut] for x in (before, after))
        _same(one, two, claims, f"what comes from {cut} on reaches what stands before")


def documents_are_apart(mechanism: Mechanism, claims: Claims, length: int) -> None:
    """Changing the first document leaves the second one equal to the bit, whatever the pattern."""
    if length < 4:
        return
    cut = length // 2 - 1
    tokens = Tokens.packed([cut, length - cut])
    before, new = (claims.inputs(mechanism, length, seed=seed) for seed in (0, 1))
    after = _replaced(before, new, torch.arange(length) < cut)
    try:
        one, two = (run(mechanism, x, tokens) for x in (before, after))
    except NotSupported:
        return
    assert torch.equal(one[:, :, cut:], two[:, :, cut:]), "a document reaches the next one"


def padding_gets_nothing(mechanism: Mechanism, claims: Claims, length: int) -> None:
    """Where all are pads the output is 0, and gradients are finite."""
    tokens = Tokens(torch.full((length,), NOBODY))
    real = torch.zeros(length, dtype=torch.bool)
    results = _with_gradients(mechanism, claims.inputs(mechanism, length), tokens, real)
    assert all(x.isfinite().all() for x in results), "a gradient is not finite"
    out = run(mechanism, claims.inputs(mechanism, length), tokens)
    assert not out.any(), "the output of padding is not 0"


def repeats_itself(mechanism: Mechanism, claims: Claims, length: int) -> None:
    """In eval thirty calls are equal to the bit, whatever torch's generator draws meanwhile."""
    given = claims.inputs(mechanism, length)
    first = run(mechanism, given)
    for _ in range(29):
        torch.rand(1)
        assert torch.equal(first, run(mechanism, given)), "two calls in eval differ"


def steps_equal_the_whole(mechanism: Mechanism, claims: Claims, length: int) -> None:
    """Read in steps of 1, 2, 7 and 16 tokens, each gets what it gets in one call."""
    if mechanism.no_cache is not None or mechanism.causality != "functional":
        return
    given = claims.inputs(mechanism, length)
    whole, width = run(mechanism, given), claims.head_dim
    for size in (1, 2, 7, 16):
        layout = Layout(1, BATCH, claims.kv_heads, width, width, torch.float64, torch.device("cpu"))
        place = LayerCache(mechanism.new_cache(layout), 0)
        for start in range(0, length, size):
            tokens, now = (
                Tokens.arange(start, min(start + size, length)),
                slice(start, start + size),
            )
            k_tokens, step = place.cache.advance(tokens), given.at(now)
            out = mechanism.attend(
                *step[:3], q_tokens=tokens, k_tokens=k_tokens, place=place, inputs=step.x
            )
            _same(out, whole[:, :, now], claims, f"steps of {size}, from {start} on")


PROPERTIES: dict[str, Callable[[Mechanism, Claims, int], None]] = {
    f.__name__: f
    for f in (
        all_types, values_are_summed, weights_give_the_output, repeats_itself, rows_are_alone,
        pads_do_not_matter, the_future_does_not_matter, documents_are_apart, padding_gets_nothing,
        input_is_asked_for, steps_equal_the_whole,
    )
}  # fmt: skip


def _replaced(before: Given, new: Given, where: Tensor) -> Given:
    """before, with what new has in some slots."""

    def one(x: Tensor, y: Tensor) -> Tensor:
        return torch.where(where[:, None], y, x)

    query, value = one(before.query, new.query), one(before.value, new.value)
    key = query if before.key is before.query else one(before.key, new.key)
    return Given(
        query, key, value, None if new.x is None or before.x is None else one(before.x, new.x)
    )


def _with_gradients(
    mechanism: Mechanism, given: Given, tokens: Tokens, real: Tensor
) -> list[Tensor]:
    """Outputs and gradients of the real tokens."""
    given = given.map(lambda x: x.detach().requires_grad_())
    out = run(mechanism, given, tokens)
    grad_out = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)
    inputs = list(dict.fromkeys(x for x in given if x is not None))
    grads = torch.autograd.grad((out * grad_out)[:, :, real].sum(), inputs, allow_unused=True)
    return [out[:, :, real].detach(), *(x[..., real, :] for x in grads if x is not None)]


def _same(one: Tensor, other: Tensor, claims: Claims, words: str) -> None:
    assert one.shape == other.shape, f"{words}: {tuple(one.shape)} and {tuple(other.shape)}"
    apart = float((one - other).detach().abs().max()) if one.numel() else 0.0
    assert apart <= claims.tolerance, f"{words}: {apart:.1e}"
