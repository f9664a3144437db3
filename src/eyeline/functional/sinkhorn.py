"""Sparse Sinkhorn attention: each block sees itself, and a mixture of blocks sorted to it."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from eyeline.checks import check_number, check_size
from eyeline.errors import InvalidArgument, NotSupported
from eyeline.exact.call import Call, PatternLike, check_call
from eyeline.functional.linear import kinds, refusal
from eyeline.functional.mixing import beside
from eyeline.kernels.autograd import eager
from eyeline.patterns import Full, Pattern
from eyeline.routing.balancing import balanced
from eyeline.routing.sorting import Sorting, sorting
from eyeline.tokens import Tokens


def sinkhorn_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scores: Tensor,
    block: int,
    *,
    pattern: PatternLike = Full(),
    iterations: int = 8,
    temperature: float = 0.75,
    scale: float | None = None,
    dropout_p: float = 0.0,
    q_tokens: Tokens | None = None,
    k_tokens: Tokens | None = None,
) -> Tensor:
    """out = softmax over a query's own block of keys and, at once, over the block sorted to it.

    scores: (B, Hk, N, N), row i takes, column j is taken: the N blocks ⌊position / block⌋ in
    which a key stands, in the order of documents and positions. P = ``balanced(scores /
    temperature)``. Place t of what is sorted to block i stands for w_i[t] = Σ_j P_ij r_j[t] keys,

        k̂_i[t] = Σ_j P_ij r_j[t] k_j[t] / w_i[t],  v̂_i[t] = Σ_j P_ij r_j[t] v_j[t] / w_i[t],

    where r_j[t] is 1 if a key stands at place t of block j, else 0; its score is
    scale · q·k̂ + log w, and where w is 0 it is not there. Of full blocks w is 1.

    pattern: Full(), Causal(), SameDocument(), or & of them. It holds in the own block, pair by
    pair; with Causal() a block takes only blocks before it, and the first takes none. Where tokens
    name documents these are kept apart, whatever the pattern. A query in whose block no key stands,
    with Causal() none up to it, sees nothing and gets 0. Shapes, tokens, scale, dropout_p: as in
    ``attention``.

    Multiplications: L · 2·block · (E + Ev) for each query head, N² · block · (E + Ev) for each key
    head (half of it where causal). Memory: N · block · (2 · block + E + Ev), and N²; documents
    shorter than a block have one each. First derivatives, by the scores too. Raises
    InvalidArgument for what does not fit together and for two queries, or keys, at one position of
    a document; NotSupported for other patterns. Tay et al. 2020, "Sparse Sinkhorn Attention".
    """
    call = check_call(
        query, key, value, pattern,
        scale=scale, q_tokens=q_tokens, k_tokens=k_tokens, dropout_p=dropout_p,
    )  # fmt: skip
    check_size("sinkhorn block", block)
    check_balance(iterations, temperature)
    return eager(lambda: _run(call, scores, block, iterations, temperature))


def _run(call: Call, scores: Tensor, block: int, iterations: int, temperature: float) -> Tensor:
    with torch.autocast(call.query.device.type, enabled=False):
        work, causal = sorting_of(call, block), is_causal(call.pattern)
        count = work.k.count
        if scores.shape != (*call.key.shape[:2], count, count):
            raise InvalidArgument(
                f"scores {tuple(scores.shape)}: {count} blocks of {block} of "
                f"{call.key.shape[2]} keys need {(*call.key.shape[:2], count, count)}"
            )
        p = balanced(scores / temperature, work.may, iterations=iterations, causal=causal)
        return sorted_attention(call, work, p)


def is_causal(pattern: Pattern) -> bool:
    """Whether Causal() is in it. Raises NotSupported for what sorted blocks cannot honour."""
    if refusal(pattern) is not None:
        raise NotSupported(
            f"sinkhorn looks at mixtures of blocks, of which no single key can be left out: it "
            f"follows full, causal, same_document and & of them, not {pattern}"
        )
    return kinds(pattern)[0]


def check_balance(iterations: int, temperature: float) -> None:
    """Raise InvalidArgument for numbers with which scores cannot be balanced."""
    check_size("sinkhorn iterations", iterations)
    check_number("sinkhorn temperature", temperature)


def sorting_of(call: Call, block: int) -> Sorting:
    """Who may take whom in a call that was checked."""
    return sorting(*call.standing, block, is_causal(call.pattern), call.key.device)


def sorted_attention(call: Call, work: Sorting, p: Tensor) -> Tensor:
    """A call that was checked, with P (B, Hk, N, N), of whose rows those that may take sum to 1."""
    query, key, value = call.query, call.key, call.value
    if not work.q.count or not work.k.count:
        nothing = sum(x[..., :0].sum().to(value.dtype) for x in (query, key, value, p))
        return (value.new_zeros(()) + nothing).expand(*query.shape[:3], value.shape[3])
    q, rows, scale = work.q.take(query), work.rows(p), call.scale
    weight = None if work.even else rows @ work.k.real[:, None].to(rows.dtype)
    causal = is_causal(call.pattern)
    k, v = (_columns(work, rows, work.k.take(x), weight, causal) for x in (key, value))
    if weight is not None:
        q, k, v, scale = *_weighed(q * scale, k, v, weight), 1.0
    out = _looked(q, k, v, work.mask, scale, call.dropout_p)
    if work.lonely is not None:
        out = out.masked_fill(work.lonely[:, None, :, :, None], 0.0)
    return work.q.back(out if weight is None else out[..., :-1])


def _columns(work: Sorting, rows: Tensor, x: Tensor, weight: Tensor | None, causal: bool) -> Tensor:
    """Blocks (B, Hk, N, size, E) to what each block of queries sees, (B, Hk, N', 2 · size, E)."""
    shape, rows = (*rows.shape[:3], *x.shape[3:]), rows.to(x.dtype)
    if work.own is None and weight is None:
        return beside(rows, x.flatten(3), causal).view(*shape[:3], 2 * shape[3], shape[4])
    mixed = (rows @ x.flatten(3)).view(shape)
    if weight is not None:
        shared = weight.masked_fill(weight == 0.0, 1.0).unsqueeze(-1)
        mixed = (mixed / shared).to(x.dtype)
    return torch.cat((work.rows(x), mixed), 3)


def _weighed(q: Tensor, k: Tensor, v: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The logarithm of a place's weight is one more feature of its key; queries have a 1."""
    gone = weight == 0.0
    most = -torch.finfo(torch.float16).max / 2  # finite, so that no gradient is NaN
    share = weight.masked_fill(gone, 1.0).log().masked_fill(gone, most).to(k.dtype)
    share = torch.cat((torch.zeros_like(share), share), -1).unsqueeze(-1)
    asking = functional.pad(q, (0, 1), value=1.0)
    return asking, torch.cat((k, share), -1), functional.pad(v, (0, 1))


def _looked(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float, dropout_p: float
) -> Tensor:
    """Attention within blocks: q (B, H, N', size, E), k and v (B, Hk, N', 2 · size, ·)."""
    heads, groups = k.shape[1], q.shape[1] // k.shape[1]
    # Query heads that share keys stand below one another, as more rows of a block.
    asking = q.unflatten(1, (heads, groups)).transpose(2, 3).flatten(3, 4)
    mask = mask.repeat(1, 1, groups, 1) if groups > 1 else mask
    parts = [(asking, k, v, mask)]
    if len(mask) > 1:
        parts = list(zip(*(x.split(1) for x in parts[0]), strict=True))
    found = [
        functional.scaled_dot_product_attention(
            one.flatten(0, 1), keys.flatten(0, 1), values.flatten(0, 1),
            attn_mask=some, dropout_p=dropout_p, scale=scale,
        )
        for one, keys, values, some in parts
    ]  # fmt: skip
    out = torch.cat(found) if len(found) > 1 else found[0]
    size, width = out.shape[2] // groups, out.shape[3]
    by_head = out.view(-1, heads, out.shape[1], groups, size, width).transpose(2, 3)
    return by_head.flatten(1, 2)
