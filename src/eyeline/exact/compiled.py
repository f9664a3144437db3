"""A call inside torch.compile: from its arguments to the operator's, in what can be traced.

No number that depends on a length is fixed here: one graph serves them all.
"""

from __future__ import annotations

import operator
from typing import NamedTuple

import torch
from torch import Tensor

from eyeline.budgets import budgets
from eyeline.checks import wide_dtype
from eyeline.errors import InvalidArgument, NotSupported
from eyeline.exact.call import Call
from eyeline.exact.operator import attention_operator, no_derivative
from eyeline.exact.packed import CURVES, Packed, packed_pattern
from eyeline.kernels import KERNELS, flex, sdpa, tiles
from eyeline.patterns import Causal, Full
from eyeline.scores import Softcap, Step
from eyeline.scores.columns import tabulate
from eyeline.tokens import LARGEST, NOBODY


class _Steps(NamedTuple):
    words: list[str]
    tables: list[Tensor]
    numbers: list[float]


def compiled(call: Call, backend: str) -> tuple[Tensor, Tensor]:
    """Output, and lse if the call wants it. Raises NotSupported for what no graph can hold."""
    _check_backend(backend)
    if backend in ("auto", sdpa.NAME) and _is_plain(call):
        causal = isinstance(call.pattern, Causal)
        out = sdpa.structured(call.query, call.key, call.value, call.scale, causal=causal)
        return out, out
    packed = _packed(call)
    tensors = packed.query, packed.key, packed.value, *packed.tables
    trains = torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
    if trains and backend not in ("auto", tiles.NAME):
        raise NotSupported(no_derivative(backend))
    out, lse = attention_operator(*packed, backend, call.wants_lse or trains)
    return out, lse


def _packed(call: Call) -> Packed:
    text, leaves, bound = packed_pattern(call.pattern)
    steps, seed = _steps_in_full(call), None
    if call.dropout_p > 0:
        steps.words.append("dropout")
        steps.numbers.append(call.dropout_p)
        seed = torch.randint(1 << 62, (), device="cpu")
    q, k = call.tokens if call.tokens is not None else (None, None)
    return Packed(
        query=call.query,
        key=call.key,
        value=call.value,
        q_positions=None if q is None else q.positions,
        k_positions=None if k is None else k.positions,
        q_documents=None if q is None else q.documents,
        k_documents=None if k is None else k.documents,
        q_segments=None if q is None else q.segments,
        k_segments=None if k is None else k.segments,
        seed=seed,
        tables=steps.tables,
        bound=bound,
        pattern=text,
        leaves=leaves,
        steps=";".join(steps.words),
        numbers=[call.scale, *steps.numbers],
    )


def _check_backend(backend: str) -> None:
    names = [kernel.NAME for kernel in KERNELS]
    if backend != "auto" and backend not in names:
        raise InvalidArgument(f"backend={backend!r}: it is auto, {', '.join(names)}")
    if backend == flex.NAME:
        raise NotSupported(
            f"backend {backend!r} is compiled on its own: inside torch.compile name another one"
        )


def _is_plain(call: Call) -> bool:
    """Whether torch's own attention says the same, without a mask: it can be traced as it is."""
    queries, keys = call.query.shape[2], call.key.shape[2]
    if call.tokens is not None or call.steps or call.dropout_p > 0 or call.wants_lse or not keys:
        return False
    pattern = call.pattern
    return isinstance(pattern, Full) or (isinstance(pattern, Causal) and queries == keys)


def _steps_in_full(call: Call) -> _Steps:
    """``_steps``, with tables in their own precision also under torch.autocast."""
    if not torch.is_autocast_enabled(call.query.device.type):
        return _steps(call)
    with torch.autocast(call.query.device.type, enabled=False):
        return _steps(call)


def _steps(call: Call) -> _Steps:
    """The words of the steps, the tables of those that have one, the numbers of the others."""
    steps = _Steps([], [], [])
    for step in call.steps:
        if isinstance(step, Softcap):
            steps.words.append("softcap")
            steps.numbers.append(step.limit)
            continue
        word = _word(step)
        assert step.curve is not None
        distances, first = _distances(call, step)
        wide = wide_dtype(call.query)
        vector = step.vector(call.query.shape[3], call.value.shape[3])
        table = tabulate(step.curve, distances, call.query.shape[1], wide, vector)
        steps.tables.append(table.contiguous())
        # operator.index: see patterns.text.
        steps.words.append(word if first is None else f"{word} {operator.index(first)}")
    return steps


def _word(step: Step) -> str:
    for word, kind in CURVES.items():
        if type(step) is kind:
            return word
    known = ", ".join([*(kind.__name__ for kind in CURVES.values()), "Softcap"])
    raise NotSupported(
        f"{type(step).__name__} cannot go through torch.compile, which knows the steps {known}: "
        "make the score modifier of these, or call attention in a function with "
        "@torch.compiler.disable"
    )


def _distances(call: Call, step: Step) -> tuple[Tensor, int | None]:
    """The distances of a step's table, and the first one if it does not depend on the call."""
    low, high = step.reach
    device = call.query.device
    if low is not None and high is not None and high - low < budgets.tabulated:
        return torch.arange(low, high + 1, device=device), low
    # As many as differ in sequences without gaps, and never none.
    count = call.query.shape[2] + call.key.shape[2] + 1
    return _least(call) + torch.arange(count, device=device), None


def _least(call: Call) -> int | Tensor:
    """The least distance of a key from a query, as ``scoring.span`` says."""
    queries, keys = call.query.shape[2], call.key.shape[2]
    if call.tokens is None:
        return 1 - max(queries, keys)
    if not queries or not keys:
        return 0
    q, k = (x.positions.to(call.query.device) for x in call.tokens)
    last = q.clamp(min=0).max()
    first = torch.where(k == NOBODY, LARGEST, k).min()
    return torch.where(first == LARGEST, 0, first) - last
