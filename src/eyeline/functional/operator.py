"""``eyeline::attention``: attention as one operator, which torch.compile keeps whole.

What torch.compile traces is a call of this operator: tensors, and plain values for the rest; see
``packed``. The operator plans when it runs, for the sizes that are there then, so that one graph
serves every length. Its derivative is an operator too.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from eyeline.dispatch import choose
from eyeline.errors import NotSupported
from eyeline.functional.packed import Packed
from eyeline.functional.unpacked import Unpacked, unpack
from eyeline.kernels import tiles

_ARGUMENTS = (
    "Tensor query, Tensor key, Tensor value, Tensor? q_positions, Tensor? k_positions, "
    "Tensor? q_documents, Tensor? k_documents, Tensor? seed, Tensor[] tables, Tensor[] bound, "
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
            none = query.new_empty(0, dtype=_wide(query))
            lse = known if with_lse and known is not None else none
    return out.contiguous(), lse.contiguous()


@attention_operator.register_fake
def _(*arguments: Any) -> tuple[Tensor, Tensor]:
    packed, (_, with_lse) = Packed(*arguments[:_ALL]), arguments[_ALL:]
    query, value = packed.query, packed.value
    out = value.new_empty((*query.shape[:3], value.shape[3]))
    return out, query.new_empty(query.shape[:3] if with_lse else (0,), dtype=_wide(query))


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


def _wide(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)
