"""Sparse Sinkhorn attention: each block sees itself, and a mixture of blocks sorted to it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal, final

import torch
from torch import Tensor
from torch.nn import functional

from eyeline.budgets import budgets
from eyeline.checks import check_number, check_size, probability
from eyeline.errors import InvalidArgument, NotSupported
from eyeline.exact.call import Call, PatternLike, as_pattern, check_call
from eyeline.kernels.autograd import eager, only_once
from eyeline.mechanisms.base import Causality, Heads, Mechanism, register
from eyeline.mechanisms.routed.attend import Coverage, in_words
from eyeline.mechanisms.routed.sort_network import SortPairs, SortTable, descriptors
from eyeline.mechanisms.routed.sorting import Sorting, balanced, counts, reached, sorting
from eyeline.patterns import And, Causal, Chunks, Full, Pattern
from eyeline.planning.cost import Asked, Work, numbers_in, of_pattern
from eyeline.tokens import Tokens, default_tokens

# Blocks beside their mixtures: a product with a matrix, of which a half that is 0 is left out.

_ITERATIONS, _TEMPERATURE = 8, 0.75


def beside(p: Tensor, x: Tensor, lower: bool) -> Tensor:
    """[x, p x]: p (B, H, N, N) and x (B, H, N, E) to (B, H, N, 2, E).

    lower: whether p is 0 from its diagonal up. First derivatives.
    """
    out: Tensor = _Beside.apply(p.flatten(0, 1), x.flatten(0, 1), lower)  # type: ignore[no-untyped-call]
    return out.view(*x.shape[:3], 2, x.shape[3])


def parts(count: int, lower: bool) -> list[tuple[int, int]]:
    """Rows first to end of p, whose columns are 0 from ``end`` on."""
    step = budgets.mixed_rows if lower else max(count, 1)
    return [(i, min(i + step, count)) for i in range(0, count, step)]


class _Beside(torch.autograd.Function):
    """p (A, N, N) and x (A, N, E) to (A, N, 2, E)."""

    @staticmethod
    def forward(ctx: Any, p: Tensor, x: Tensor, lower: bool) -> Tensor:
        ctx.save_for_backward(p, x)
        ctx.lower = lower
        out = x.new_empty(*x.shape[:2], 2, x.shape[2])
        out[:, :, 0] = x
        for first, end in parts(p.shape[1], lower):
            out[:, first:end, 1] = p[:, first:end, :end] @ x[:, :end]
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        p, x = ctx.saved_tensors
        with torch.no_grad(), torch.autocast(grad.device.type, enabled=False):
            dp, dx = torch.zeros_like(p), grad[:, :, 0].clone()
            for first, end in parts(p.shape[1], ctx.lower):
                above = grad[:, first:end, 1]
                dp[:, first:end, :end] = above @ x[:, :end].mT
                dx[:, :end].baddbmm_(p[:, first:end, :end].mT, above)
        return only_once("sinkhorn attention", (dp, dx, None), p, x, grad)


def sinkhorn_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scores: Tensor,
    block: int,
    *,
    pattern: PatternLike = Full(),
    iterations: int = _ITERATIONS,
    temperature: float = _TEMPERATURE,
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

    pattern: Full() or Causal(). It holds in the own block, pair by
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
    if pattern not in (Full(), Causal()):
        raise NotSupported(
            f"sinkhorn looks at mixtures of blocks, of which no single key can be left out: it "
            f"follows full or causal, not {pattern}"
        )
    return isinstance(pattern, Causal)


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
    return work.q.put_back(out if weight is None else out[..., :-1])


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


# Sparse Sinkhorn attention as a module: a small network sorts blocks of keys to blocks.

Network = Literal["pairs", "table"]
"""What scores the order of blocks: pairs of their descriptors, or a table of block numbers."""

_NETWORKS = ("pairs", "table")


@register("sinkhorn")
@final
class Sinkhorn(Mechanism):
    """softmax(q [K_i; K̂_i]ᵀ/√E) [V_i; V̂_i], for queries of block i, K̂_i = Σ_j P_ij K_j.

    Block i is that of the positions from i · block on; P (N, N) is doubly stochastic: the scores
    of a small network, divided by the temperature and balanced ``iterations`` times. Own block and
    sorted block are in one softmax. How blocks that are not full are mixed, what pads add
    (nothing), and what P is: see ``sinkhorn_attention`` and ``balanced``.

    network: "pairs": S_ij = (d_i A)·(e_j B)/√E, with 2·Hk·E² parameters whatever the length.
    "table", the paper's: S_ij = d_i·W_j, with Hk·E·blocks parameters, for positions below
    blocks · block (InvalidArgument beyond). e_j is the mean of the keys of block j, and so is d_i;
    with Causal() d_i is the mean of all keys up to the first of block i, since no query of
    the block may know of keys after it. With block=1 it sorts tokens, and P has S² entries.

    noise: while training, so many times Gumbel noise is added to the scores, which tries other
    orders. 0 if not said: what is trained is then what is run, and a step's gradient is exact.
    dropout: of weights, while training. pattern: full or causal;
    documents are kept apart in any case.

    causality: "functional" with Causal(): a block takes only blocks before it, and the first none.
    It decodes from the kept keys, from which each step derives P anew. Else "none", and there is no
    cache. Since row i + 1 is the first that may take block i, causal balancing always gives it a
    large share: every block looks at the one before it.

    Raises InvalidArgument for sizes below 1, a temperature that is not above 0, another word for
    network, blocks beside "pairs"; NotSupported for other patterns. Tay et al. 2020.
    """

    pattern: Pattern

    def __init__(
        self,
        block: int,
        *,
        num_kv_heads: int,
        head_dim: int,
        network: Network = "pairs",
        blocks: int | None = None,
        iterations: int = _ITERATIONS,
        temperature: float = _TEMPERATURE,
        noise: float = 0.0,
        pattern: PatternLike = Full(),
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        sizes = {"block": block, "num_kv_heads": num_kv_heads, "head_dim": head_dim}
        for name, size in sizes.items():
            check_size(f"sinkhorn {name}", size)
        check_balance(iterations, temperature)
        check_number("sinkhorn noise", noise, equal=True)
        self.pattern = as_pattern(pattern)
        self._causal = is_causal(self.pattern)
        self.block, self.num_kv_heads, self.head_dim = block, num_kv_heads, head_dim
        self.iterations, self.temperature, self.noise = iterations, temperature, noise
        self.dropout = probability("dropout", dropout)
        self.network = _network(network, num_kv_heads, head_dim, blocks)

    @property
    def causality(self) -> Causality:
        """ "functional": no past output depends on the future; or "none"."""
        return "functional" if self._causal else "none"

    @property
    def no_cache(self) -> str | None:
        """Why a text cannot be read in steps; None where it can."""
        if self._causal:
            return None
        return (
            f"under {self.pattern} later tokens change which blocks earlier ones saw: read the "
            "whole text at once, or use Causal()"
        )

    def check_heads(self, heads: Heads) -> None:
        """Raise InvalidArgument if it was made for other heads."""
        self._check_made(heads, num_kv_heads=self.num_kv_heads, head_dim=self.head_dim)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        q_tokens: Tokens | None = None,
        k_tokens: Tokens | None = None,
    ) -> Tensor:
        """(B, H, L, E), (B, Hk, S, E), (B, Hk, S, Ev) to (B, H, L, Ev)."""
        call = self._checked(query, key, value, q_tokens, k_tokens)
        return eager(lambda: self._run(call))

    def matrix(self, key: Tensor, *, k_tokens: Tokens | None = None) -> Tensor:
        """P (B, Hk, N, N): how much block i takes of block j. Keys (B, Hk, S, E)."""
        call = self._checked(key, key, key, k_tokens, k_tokens)
        with torch.autocast(key.device.type, enabled=False):
            return self._matrix(call, sorting_of(call, self.block))

    def explain(
        self,
        query: Tensor,
        key: Tensor,
        *,
        q_tokens: Tokens | None = None,
        k_tokens: Tokens | None = None,
    ) -> dict[str, str]:
        """In words: what is promised, what is computed, and who looks and is looked at."""
        call = self._checked(query, key, key, q_tokens, k_tokens)
        work = sorting_of(call, self.block)
        reason = "blocks take only blocks before them" if self._causal else str(self.pattern)
        heads = query.shape[0] * query.shape[1]
        pairs = heads * work.q.count * 2 * self.block**2
        whole = heads * query.shape[2] * key.shape[2]
        blocks = f"{work.q.count:,} of {self.block:,} × {2 * self.block:,}"
        promise = f"{self.causality}: {reason}"
        return in_words(promise, blocks, pairs, whole, Coverage(*reached(work)))

    def work(self, asked: Asked) -> Work:
        """A product of E and one of Ev for each key a query sees, in its own block and sorted; for
        each key that is mixed, once for each block that may take its own; and the network's,
        2·N·E² + E for each pair of blocks, or N·E·blocks. See ``eyeline.cost``."""
        asked = asked.known("sinkhorn", kv_heads=self.num_kv_heads, head_dim=self.head_dim)
        call = (asked if asked.heads is not None else replace(asked, heads=self.num_kv_heads)).call
        tokens = default_tokens(call.length, call.key_length)
        own = of_pattern(And.of(self.pattern, Chunks(self.block)), call, *tokens)
        here = sorting(*tokens, self.block, self._causal, torch.device("cpu"))
        found = counts(here)
        n, e, wide = here.k.count, call.head_dim, call.products
        pairs = own.pairs + call.heads * found.seen
        computed = call.heads * here.q.count * 2 * self.block**2
        scored = self.network.products(n, found.may), self.network.products(n, n * n)
        means = n * n * e if self._causal else 0
        mixing = here.q.count * n * self.block * wide
        return Work(
            call, pairs=pairs, computed=computed,
            multiplications=pairs * wide + call.kv_heads * (found.mixed * wide + scored[0]),
            computed_multiplications=computed * wide
            + call.kv_heads * (mixing + means + scored[1]),
            numbers=call.numbers + numbers_in(self),
            steps=self.iterations + 2,
        )  # fmt: skip

    def _checked(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        q_tokens: Tokens | None,
        k_tokens: Tokens | None,
    ) -> Call:
        call = check_call(
            query, key, value, self.pattern, scale=None, q_tokens=q_tokens, k_tokens=k_tokens,
            dropout_p=self.dropout if self.training else 0.0,
        )  # fmt: skip
        self.check_heads(Heads.of(query, key))
        return call

    def _run(self, call: Call) -> Tensor:
        with torch.autocast(call.query.device.type, enabled=False):
            work = sorting_of(call, self.block)
            return sorted_attention(call, work, self._matrix(call, work))

    def _matrix(self, call: Call, work: Sorting) -> Tensor:
        taking, giving = descriptors(work.k.take(call.key), work, causal=self._causal)
        scores: Tensor = self.network(taking, giving, work.k.numbers)
        if self.noise and self.training:
            scores = scores + self.noise * _gumbel(scores)
        return balanced(
            scores / self.temperature, work.may, iterations=self.iterations, causal=self._causal
        )

    def extra_repr(self) -> str:
        parts = [f"block={self.block}", str(self.pattern), f"iterations={self.iterations}"]
        parts.append(f"temperature={self.temperature:g}")
        parts += [f"noise={self.noise:g}"] if self.noise else []
        return ", ".join(parts + ([f"dropout={self.dropout:g}"] if self.dropout else []))


def _network(
    network: str, num_kv_heads: int, head_dim: int, blocks: int | None
) -> SortPairs | SortTable:
    if network not in _NETWORKS:
        raise InvalidArgument(f"sinkhorn network={network!r}: it is {', '.join(_NETWORKS)}")
    if network == "table":
        check_size('sinkhorn with network="table": blocks', blocks)
        assert blocks is not None
        return SortTable(num_kv_heads, head_dim, blocks)
    if blocks is not None:
        raise InvalidArgument(f'sinkhorn blocks={blocks}: only network="table" has a table of them')
    return SortPairs(num_kv_heads, head_dim)


def _gumbel(like: Tensor) -> Tensor:
    """-log(-log u), u uniform: by torch's own generator, as dropout is."""
    return -torch.empty_like(like).exponential_().log()
