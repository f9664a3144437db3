"""``eyeline::attention``: attention as one operator, which torch.compile keeps whole.

What torch.compile traces is a call of this operator: tensors, and plain values for the rest; see
``packed``. The operator plans when it runs, for the sizes that are there then, so that one graph
serves every length. Its derivative is an operator too.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import torch
from torch import Tensor

from eyeline.checks import wide_dtype
from eyeline.errors import NotSupported
from eyeline.exact.dispatch import choose
from eyeline.exact.packed import CURVES, Packed, entries
from eyeline.kernels import scoring, tiles
from eyeline.kernels.request import Request
from eyeline.memory import remembered
from eyeline.scores import Dropout, Softcap, Step
from eyeline.tokens import Tokens, default_tokens

# Tokens that were seen before, found again by what they hold.
#
# A graph of torch.compile hands an operator positions, not the object that stands for them; plans
# are remembered by the object. So the last few are kept, and equal positions get the same one.


def recent_tokens(
    positions: Tensor, documents: Tensor | None = None, segments: Tensor | None = None
) -> Tokens:
    """Tokens that hold equal numbers: the same object for the same numbers, if asked soon again.

    They hold copies on the CPU: a compiled graph writes over what it has handed out.
    Raises InvalidArgument for numbers that cannot be positions, documents or segments.
    """
    columns = (positions, documents, segments)
    contents = (None if x is None else _content(x.cpu()) for x in columns)
    return _holding(tuple(positions.shape), *contents)


# Queries and keys of a few layers that attend to different sequences.
@remembered(32)
def _holding(shape: tuple[int, ...], *contents: bytes | None) -> Tokens:
    with torch.inference_mode(False):
        return Tokens(*(_tensor(shape, x) for x in contents))  # type: ignore[arg-type]


def _content(numbers: Tensor) -> bytes:
    numbers = numbers.contiguous()
    return ctypes.string_at(numbers.data_ptr(), numbers.nbytes)


def _tensor(shape: tuple[int, ...], content: bytes | None) -> Tensor | None:
    if content is None:
        return None
    if not content:
        return torch.zeros(shape, dtype=torch.int64, device="cpu")
    return torch.frombuffer(bytearray(content), dtype=torch.int64).view(shape)


# From an operator's arguments back to a request: what happens when a compiled graph runs.


class _Made(NamedTuple):
    """A step, its table if it has one, and the distance of the table's first entry."""

    step: Step
    table: Tensor | None = None
    first: int = 0


@final
@dataclass(frozen=True, eq=False)
class Unpacked:
    """The request; for each of its steps the table, if it has one, and its first distance."""

    request: Request
    tables: tuple[Tensor | None, ...]
    firsts: tuple[int, ...]

    def by_step(self, wanted: Sequence[bool]) -> list[bool]:
        """What is said of each table, said of each step."""
        each = iter(wanted)
        return [table is not None and next(each) for table in self.tables]


def unpack(packed: Packed, *, wants_lse: bool) -> Unpacked:
    """What was packed. Its steps look up in their tables what their curves would give.

    Raises InvalidArgument for tokens that cannot be right, and NotSupported for positions so far
    apart that a table does not hold all distances.
    """
    tokens = _tokens(packed)
    scale, *numbers = packed.numbers
    made = _steps(packed, tokens, numbers)
    tensors, steps = (packed.query, packed.key, packed.value), tuple(each.step for each in made)
    request = Request(*tensors, packed.rule(), *tokens, scale, wants_lse, steps)
    tables, firsts = tuple(each.table for each in made), tuple(each.first for each in made)
    return Unpacked(request, tables, firsts)


def _tokens(packed: Packed) -> tuple[Tokens, Tokens]:
    if packed.q_positions is None or packed.k_positions is None:
        return default_tokens(packed.query.shape[2], packed.key.shape[2])
    q = recent_tokens(packed.q_positions, packed.q_documents, packed.q_segments)
    return q, recent_tokens(packed.k_positions, packed.k_documents, packed.k_segments)


def _steps(packed: Packed, tokens: tuple[Tokens, Tokens], numbers: list[float]) -> list[_Made]:
    tables, others, made = iter(packed.tables), iter(numbers), []
    for entry in entries(packed.steps):
        word, *first = entry.split()
        if word in CURVES:
            table = next(tables)
            start = int(first[0]) if first else _start(table, tokens)
            made.append(_Made(CURVES[word](_reader(table, start)), table, start))
        elif word == "softcap":
            made.append(_Made(Softcap(next(others))))
        else:
            assert packed.seed is not None
            made.append(_Made(Dropout(next(others), int(packed.seed))))
    return made


def _start(table: Tensor, tokens: tuple[Tokens, Tokens]) -> int:
    """The least distance of the tokens, with which the table begins."""
    least, most = scoring.span(*tokens)
    if most - least >= table.shape[1]:
        raise NotSupported(
            f"positions lie up to {most - least:,} apart: inside torch.compile a score modifier "
            f"that tells all distances apart has a table of {table.shape[1]:,}, for positions "
            "without gaps"
        )
    return least


def _reader(table: Tensor, first: int) -> Callable[[Tensor], Tensor]:
    """The curve that a table was made of; a distance beyond its ends reads the nearest entry."""

    def curve(distances: Tensor) -> Tensor:
        return table[:, (distances - first).clamp(0, table.shape[1] - 1)]

    return curve


_ARGUMENTS = (
    "Tensor query, Tensor key, Tensor value, Tensor? q_positions, Tensor? k_positions, "
    "Tensor? q_documents, Tensor? k_documents, Tensor? q_segments, Tensor? k_segments, "
    "Tensor? seed, Tensor[] tables, Tensor[] bound, "
    "str pattern, str leaves, str steps, float[] numbers"
)
_SINGLE = Packed._fields.index("tables")
_PLAIN = Packed._fields.index("pattern")
_ALL = len(Packed._fields)
# Plans are made in the memory of the CPU, which the recording of a CUDA graph does not see.
_TAGS = (torch.Tag.cudagraph_unsafe,)


@torch.library.custom_op(
    "eyeline::attention",
    mutates_args=(),
    schema=f"({_ARGUMENTS}, str backend, bool with_lse) -> (Tensor, Tensor)",
    tags=_TAGS,
)
def attention_operator(*arguments: Any) -> tuple[Tensor, Tensor]:
    """Output (B, H, L, Ev), and lse (B, H, L) if ``with_lse``, else a tensor of no elements."""
    packed, (backend, with_lse) = Packed(*arguments[:_ALL]), arguments[_ALL:]
    query = packed.query
    with torch.autocast(query.device.type, enabled=False):
        asked = unpack(packed, wants_lse=with_lse)
        if with_lse and backend in ("auto", tiles.NAME):
            out, lse = _by_tiles(asked)
        else:
            out, known = choose(asked.request, backend).run(asked.request)
            none = query.new_empty(0, dtype=wide_dtype(query))
            lse = known if with_lse and known is not None else none
    return out.contiguous(), lse.contiguous()


@attention_operator.register_fake
def _(*arguments: Any) -> tuple[Tensor, Tensor]:
    packed, (_, with_lse) = Packed(*arguments[:_ALL]), arguments[_ALL:]
    query, value = packed.query, packed.value
    out = value.new_empty((*query.shape[:3], value.shape[3]))
    return out, query.new_empty(query.shape[:3] if with_lse else (0,), dtype=wide_dtype(query))


@torch.library.custom_op(
    "eyeline::attention_backward",
    mutates_args=(),
    schema=(
        f"({_ARGUMENTS}, bool[] wanted, Tensor out, Tensor lse, Tensor? grad, Tensor? grad_lse)"
        " -> Tensor[]"
    ),
    tags=_TAGS,
)
def backward_operator(*arguments: Any) -> list[Tensor]:
    """The gradients of query, key and value, and of the tables that are wanted."""
    packed, (wanted, out, lse, grad, grad_lse) = Packed(*arguments[:_ALL]), arguments[_ALL:]
    query, key, value = packed[:3]
    with torch.autocast(query.device.type, enabled=False):
        asked = unpack(packed, wants_lse=True)
        if lse.shape != query.shape[:3]:  # the forward pass knew of no backward pass
            out, lse = _by_tiles(asked)
            grad_lse = None
        work = tiles.work_of(asked.request, asked.firsts)
        tables = asked.tables, asked.by_step(wanted)
        found = tiles.gradients(work, query, key, value, out, lse, *tables, grad, grad_lse)
    return [gradient.contiguous() for gradient in found if gradient is not None]


@backward_operator.register_fake
def _(*arguments: Any) -> list[Tensor]:
    packed, wanted = Packed(*arguments[:_ALL]), arguments[_ALL]
    some = (table for table, wants in zip(packed.tables, wanted, strict=True) if wants)
    return [x.new_empty(x.shape) for x in (*packed[:3], *some)]


def _by_tiles(asked: Unpacked) -> tuple[Tensor, Tensor]:
    request = asked.request
    choose(request, tiles.NAME)  # raises what they refuse
    work = tiles.work_of(request, asked.firsts)
    return tiles.results(work, request.query, request.key, request.value, asked.tables)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    packed = Packed(*inputs[:_ALL])
    ctx.save_for_backward(*output, *packed[:_SINGLE], *packed.tables, *packed.bound)
    ctx.plain, ctx.tables, ctx.backend = packed[_PLAIN:], len(packed.tables), inputs[_ALL]
    ctx.set_materialize_grads(False)


def _differentiate(ctx: Any, grad: Tensor | None, grad_lse: Tensor | None) -> tuple[Any, ...]:
    if ctx.backend not in ("auto", tiles.NAME):
        raise NotSupported(no_derivative(ctx.backend))
    out, lse, *rest = ctx.saved_tensors
    single, lists = rest[:_SINGLE], rest[_SINGLE:]
    tables, bound = lists[: ctx.tables], lists[ctx.tables :]
    wanted = list(ctx.needs_input_grad[_SINGLE])
    packed = (*single, tables, bound, *ctx.plain)
    found = backward_operator(*packed, wanted, out, lse, grad, grad_lse)
    slopes = iter(found[3:])
    of_tables = [next(slopes) if wants else None for wants in wanted]
    # In the order of the arguments: tensors, then lists of them, then plain values.
    plain = [None] * (len(ctx.plain) + 2)
    return *found[:3], *[None] * (_SINGLE - 3), of_tables, [None] * len(bound), *plain


attention_operator.register_autograd(_differentiate, setup_context=_keep)


def no_derivative(backend: str) -> str:
    """Why a backend cannot be named where gradients are asked for."""
    return (
        f"backend {backend!r} has no derivative inside torch.compile: name auto or tiles there, or "
        "call attention in a function with @torch.compiler.disable"
    )
