"""Linear attention with decay: one chunked scan under every recurrence of keys and values.

Within a chunk of C tokens all C² pairs are multiplied, each with the decays between its two tokens;
what lies before the chunk is read from the state that it has left. Decays are multiplied as sums of
their logarithms. No sum is a difference of two others, so a decay of 0 and one of 1 stand beside
each other without loss, and nothing is ever divided by a decay.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from eyeline.budgets import at_once, budgets
from eyeline.checks import wide_dtype
from eyeline.errors import InvalidArgument, NotSupported
from eyeline.exact.call import check_call
from eyeline.kernels.autograd import eager
from eyeline.mechanisms.linear.chunks import Marks, grouped, ungrouped
from eyeline.mechanisms.linear.in_order import in_order
from eyeline.mechanisms.linear.sums import quotient, with_ones
from eyeline.patterns import Causal
from eyeline.tokens import Tokens

CHUNK = 64


def decayed_linear_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    log_decay: Tensor | None = None,
    normalize: bool = False,
    tokens: Tokens | None = None,
    state: Tensor | None = None,
) -> Tensor:
    """out_t = q_tᵀ S_t  with  S_t = a_t · S_{t-1} + k_t v_tᵀ.

    query (B, H, L, E), key (B, Hk, L, E), value (B, Hk, L, Ev) of one floating dtype and device,
    H a multiple of Hk; query head h reads the state of key head h // (H / Hk). Returns
    (B, H, L, Ev). Queries and keys are taken as they are: there is no scale and no feature map.

    log_decay: log a_t, at most 0: (Hk,) for one decay of each head, (B, Hk, L) for one of each head
    and token (a gate); None for a_t = 1. -inf empties the state before token t.
    normalize: out_t = q_tᵀ S_t / q_tᵀ z_t, with z_t = a_t · z_{t-1} + k_t; 0 for a normaliser of 0.
    state: S_0, float32, or float64 for float64 inputs: (B, Hk, E, Ev), and with ``normalize``
    (B, Hk, E, Ev + 1), whose last column is z_0; zeros if not given.
    tokens: what stands in each slot. Padding gets 0 and leaves the state as it is; the state is
    emptied where a document begins, but not before the first token.

    Equal to the recurrence, in L / 64 steps: memory is linear in length, forward and backward. Sums
    are kept in float32, or float64. All derivatives, those of log_decay and state too.

    Raises InvalidArgument for sizes, dtypes or tokens that do not fit together and for decays above
    1 (on the CPU), NotSupported for tokens that are not in order in their slots. Katharopoulos et
    al. 2020; Sun et al. 2023 (retention); Yang et al. 2024; Dao & Gu 2024 (state-space duality).
    """
    return decayed_linear_attention_with_state(
        query, key, value, log_decay=log_decay, normalize=normalize, tokens=tokens, state=state
    )[0]


def decayed_linear_attention_with_state(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    log_decay: Tensor | None = None,
    normalize: bool = False,
    tokens: Tokens | None = None,
    state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """``decayed_linear_attention`` and S_L, (B, Hk, E, Ev or Ev + 1), from which a call goes on.

    It is what a ``State`` cache keeps: a text read in steps gives what it gives at once.
    """
    call = check_call(query, key, value, Causal(), scale=1.0, q_tokens=tokens, k_tokens=tokens)
    heads, wide = (call.query, call.key, call.value), wide_dtype(call.query.dtype)
    if query.shape[2] != key.shape[2]:
        raise InvalidArgument(
            f"{query.shape[2]} queries and {key.shape[2]} keys: each token has both"
        )
    width = value.shape[3] + normalize
    log_decay = _checked_decay(log_decay, key, wide)
    if state is None:
        state = key.new_zeros(*key.shape[:2], key.shape[3], width, dtype=wide)
    elif (state.shape, state.dtype) != ((*key.shape[:2], key.shape[3], width), wide):
        raise InvalidArgument(
            f"state is {state.dtype} {tuple(state.shape)}: for these keys and values it is {wide} "
            f"{(*key.shape[:2], key.shape[3], width)}"
        )
    marks = Marks() if call.tokens is None else _marks(call.tokens[1]).to(query.device)
    with torch.autocast(query.device.type, enabled=False):
        return eager(lambda: _scan(heads, log_decay, state, marks, normalize=normalize))


def _checked_decay(log_decay: Tensor | None, key: Tensor, wide: torch.dtype) -> Tensor | None:
    """(Hk,) as (1, Hk, 1), or (B, Hk, L)."""
    if log_decay is None:
        return None
    batch, heads, length, _ = key.shape
    if log_decay.shape not in ((heads,), (batch, heads, length)):
        raise InvalidArgument(
            f"log_decay {tuple(log_decay.shape)}: it is ({heads},), one for each key head, or "
            f"{(batch, heads, length)}, one for each of its tokens"
        )
    # A GPU is not waited for.
    most = log_decay.detach().amax() if log_decay.numel() else log_decay.new_zeros(())
    if log_decay.device.type == "cpu" and float(most) > 0.0:
        raise InvalidArgument(
            f"log_decay reaches {float(most):g}: a decay is at most 1, and its "
            "logarithm at most 0; for a gate x in (0, 1) give x.log()"
        )
    log_decay = log_decay.to(wide)
    return log_decay[None, :, None] if log_decay.dim() == 1 else log_decay


def _marks(tokens: Tokens) -> Marks:
    order = in_order(tokens, tokens, causal=True)
    if order.query is not None:
        raise NotSupported(
            "a recurrence reads slots one after another: documents follow one another, and "
            "positions go up in each"
        )
    return order.marks


def _scan(
    heads: tuple[Tensor, Tensor, Tensor],
    log_decay: Tensor | None,
    state: Tensor,
    marks: Marks,
    *,
    normalize: bool,
) -> tuple[Tensor, Tensor]:
    query, key, value = heads
    length, dtype = query.shape[2], value.dtype
    real = None if marks.somebody is None else marks.somebody[:, None, :, None]
    if real is not None:  # what stands in padding may be anything
        key, value = key.masked_fill(~real, 0.0), value.masked_fill(~real, 0.0)
    decays = _with_resets(log_decay, marks, length, state)
    sizes = _pieces(state, query)
    shared = decays is not None and decays.shape[2] == 1
    cuts = [None] * len(sizes) if decays is None else (
        [decays] * len(sizes) if shared else decays.split(sizes, 2)
    )  # fmt: skip
    outs = []
    # split and cat: of many slices, each would have a gradient as long as the sequence.
    for size, q, k, v, decay in zip(
        sizes, *(x.split(sizes, 2) for x in (query, key, value)), cuts, strict=True
    ):
        chunk = min(CHUNK, size)
        out, state = checkpoint(
            _piece, q, k, v, decay, state, chunk=chunk, normalize=normalize,
            use_reentrant=False, preserve_rng_state=False,
        )  # fmt: skip
        outs.append(out.to(dtype))
    out = torch.cat(outs, 2) if outs else value.new_zeros(*query.shape[:3], value.shape[3])
    return out if real is None else out.masked_fill(~real, 0.0), state


def _with_resets(
    log_decay: Tensor | None, marks: Marks, length: int, state: Tensor
) -> Tensor | None:
    """The decays with 1 at padding and 0 where a document begins: (B or 1, Hk or 1, L or 1)."""
    if marks.somebody is not None and log_decay is not None:
        log_decay = log_decay.expand(-1, -1, length).masked_fill(~marks.somebody[:, None], 0.0)
    if marks.segments is None:
        return log_decay
    if log_decay is None:
        log_decay = state.new_zeros(1, 1, 1)
    segments = marks.segments
    begins = segments[:, 1:] != segments[:, :-1]
    begins = torch.nn.functional.pad(begins, (1, 0))
    return log_decay.expand(-1, -1, length).masked_fill(begins[:, None], -torch.inf)


def _pieces(state: Tensor, query: Tensor) -> list[int]:
    """How many tokens each piece has; what does not fill a chunk is the last."""
    batch, count, length, _ = query.shape
    row = batch * count * (CHUNK * (2 * CHUNK + 2 * query.shape[3]) + state.shape[2:].numel())
    step = at_once(row, budgets.recurred) * CHUNK
    whole = length - length % CHUNK
    sizes = [step] * (whole // step) + ([whole % step] if whole % step else [])
    return sizes + ([length - whole] if whole < length else [])


def _piece(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    log_decay: Tensor | None,
    state: Tensor,
    *,
    chunk: int,
    normalize: bool,
) -> tuple[Tensor, Tensor]:
    """Some chunks (B, ·, m, ·) after ``state``, and the state that follows."""
    wide, shape = state.dtype, query.shape
    count = shape[2] // chunk
    fq = grouped(query.to(wide), key.shape[1], chunk)
    fk, fv = (x.to(wide).unflatten(2, (count, chunk)) for x in (key, value))
    fv = with_ones(fv) if normalize else fv
    weight = (fq @ fk.transpose(-2, -1)).unflatten(-2, (-1, chunk))
    if log_decay is None:
        within, reading, adding, kept = weight.tril(), fq, fk, None
    else:
        steps = log_decay.expand(-1, -1, chunk if log_decay.shape[2] == 1 else -1)
        decays = _Decays(steps.unflatten(2, (-1, chunk)))
        within = weight * decays.between.unsqueeze(-3)
        since = decays.since.repeat(1, 1, 1, fq.shape[3] // chunk)
        reading, adding = fq * since.unsqueeze(-1), fk * decays.until.unsqueeze(-1)
        kept = decays.since[..., -1]
    before, state = _states(state, adding.transpose(-2, -1) @ fv, kept)
    out = within.flatten(-3, -2) @ fv + reading @ before
    out = quotient(out) if normalize else out
    return ungrouped(out, shape, chunk), state


class _Decays:
    """The decays of chunks, from their logarithms (b, h, r, C).

    between: (…, C, C), of key j up to query i, 0 for j > i; since: (…, C), from the chunk's begin
    up to i; until: (…, C), from j to the chunk's end.
    """

    def __init__(self, logs: Tensor) -> None:
        size = logs.shape[-1]
        # Row t of column j holds log a_t for t > j: the sum of the first i + 1 rows is log a of
        # j + 1 … i. A difference of two sums would lose the small one beside the large.
        rows = logs.unsqueeze(-1).expand(*logs.shape, size).tril(-1)
        self.between = rows.cumsum(-2).exp().tril()
        self.since = logs.cumsum(-1).exp()
        self.until = self.between[..., -1, :]


def _states(state: Tensor, added: Tensor, kept: Tensor | None) -> tuple[Tensor, Tensor]:
    """The states before each chunk, (B, Hk, r, E, Ev), and the one after the last.

    added: what each chunk adds; kept: (b, h, r or 1), what it leaves of the state before it.
    """
    count = added.shape[2]
    factors = None if kept is None else kept[..., None, None].expand(-1, -1, count, -1, -1)
    states = [state]
    for number, new in enumerate(added.unbind(2)):
        last = states[-1]
        states.append(new + (last if factors is None else last * factors[:, :, number]))
    return torch.stack(states[:-1], 2), states[-1]
