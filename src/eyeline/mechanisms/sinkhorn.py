"""Sparse Sinkhorn attention as a module: a small network sorts blocks of keys to blocks."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, final

import torch
from torch import Tensor, nn

from eyeline.checks import check_number, check_size
from eyeline.errors import InvalidArgument
from eyeline.exact.call import Call, PatternLike, as_pattern, check_call, probability
from eyeline.functional.routed import Coverage
from eyeline.functional.sinkhorn import check_balance, is_causal, sorted_attention, sorting_of
from eyeline.kernels.autograd import eager
from eyeline.mechanisms.sort_network import SortPairs, SortTable, descriptors
from eyeline.mechanisms.told import in_words
from eyeline.patterns import And, Chunks, Full
from eyeline.planning.cost import Asked, Work, numbers_in, of_pattern
from eyeline.routing.balancing import balanced
from eyeline.routing.sorting import Sorting, counts, reached, sorting
from eyeline.tokens import Tokens, default_tokens

Network = Literal["pairs", "table"]
"""What scores the order of blocks: pairs of their descriptors, or a table of block numbers."""

_NETWORKS = ("pairs", "table")


@final
class Sinkhorn(nn.Module):
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
    dropout: of weights, while training. pattern: full, causal, same_document, or & of them;
    documents are kept apart in any case.

    causality: "functional" with Causal(): a block takes only blocks before it, and the first none.
    It decodes from the kept keys, from which each step derives P anew. Else "none", and there is no
    cache. Since row i + 1 is the first that may take block i, causal balancing always gives it a
    large share: every block looks at the one before it.

    Raises InvalidArgument for sizes below 1, a temperature that is not above 0, another word for
    network, blocks beside "pairs"; NotSupported for other patterns. Tay et al. 2020.
    """

    def __init__(
        self,
        block: int,
        *,
        num_kv_heads: int,
        head_dim: int,
        network: Network = "pairs",
        blocks: int | None = None,
        iterations: int = 8,
        temperature: float = 0.75,
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
    def causality(self) -> str:
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

    def check(self, num_heads: int, num_kv_heads: int, head_dim: int) -> None:
        """Raise InvalidArgument if it was made for other heads."""
        if (self.num_kv_heads, self.head_dim) != (num_kv_heads, head_dim):
            raise InvalidArgument(
                f"sinkhorn for {self.num_kv_heads} key heads of {self.head_dim}; there are "
                f"{num_kv_heads} of {head_dim}"
            )

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
        self.check(query.shape[1], key.shape[1], key.shape[3])
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
