"""Attention over one key for each few neighbours; causal in blocks."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal, NamedTuple, final

import torch
from torch import Tensor, nn

from eyeline.checks import check_size, probability, wide_dtype
from eyeline.errors import InvalidArgument, NotSupported
from eyeline.exact import attention, attention_with_lse
from eyeline.exact.call import Call, PatternLike, as_pattern, check_call
from eyeline.kernels.merge import merge
from eyeline.mechanisms.base import Causality, Heads, Mechanism, register
from eyeline.mechanisms.fewer.linformer import check_keys
from eyeline.mechanisms.routed.clusters import lloyd, means
from eyeline.memory import traced
from eyeline.patterns import Causal, Chunks, Full, Pattern
from eyeline.planning.cost import Asked, Work, numbers_in, of_pattern
from eyeline.tokens import Tokens, default_tokens
from eyeline.tokens.groups import PositionBlocks, blocks_of_slots, position_blocks
from eyeline.tokens.ordering import Ordering, real_slots, sorted_by

# One key for a group of neighbours: by a strided convolution, their mean, or their maximum.


@final
class GroupConv(nn.Module):
    """y_g = Σ_t x[g · factor + t] W_t + b, per head: a convolution whose kernel is its stride.

    weight: (num_kv_heads, factor, head_dim, head_dim), W_t in the middle; bias: (num_kv_heads,
    head_dim). Nobody counts as 0. Drawn as nn.Conv1d with groups=num_kv_heads draws its own.
    """

    def __init__(self, factor: int, num_kv_heads: int, head_dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_kv_heads, factor, head_dim, head_dim))
        self.bias = nn.Parameter(torch.empty(num_kv_heads, head_dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws weight and bias anew, uniform within 1/√(factor · head_dim)."""
        bound = 1 / math.sqrt(self.weight.shape[1] * self.weight.shape[2])
        for parameter in (self.weight, self.bias):
            nn.init.uniform_(parameter, -bound, bound)

    def forward(self, groups: PositionBlocks, x: Tensor) -> Tensor:
        """(B, Hk, S, E) to (B, Hk, G, E)."""
        taken, weight = groups.take(x).flatten(3), self.weight.flatten(1, 2).to(x.dtype)
        return torch.einsum("bhgi,hio->bhgo", taken, weight) + self.bias[:, None].to(x.dtype)


@final
class GroupMean(nn.Module):
    """y_g = the mean of the group's real keys; 0 where there are none."""

    def forward(self, groups: PositionBlocks, x: Tensor) -> Tensor:
        """(B, Hk, S, E) to (B, Hk, G, E)."""
        return groups.pool(x)


@final
class GroupMax(nn.Module):
    """y_g = the largest number of the group's real keys, for each feature; or 0."""

    def forward(self, groups: PositionBlocks, x: Tensor) -> Tensor:
        """(B, Hk, S, E) to (B, Hk, G, E)."""
        return groups.pool(x, "max")


# k-means of keys: a few centres that stand for all of them, each with the mean of its values.


class Centroids(NamedTuple):
    """key (B, Hk, C, E), value (B, Hk, C, Ev), and size (B, Hk, C): how many keys each stands for.

    Where nobody chose a centre its size is 0, and so are its key and value.
    """

    key: Tensor
    value: Tensor
    size: Tensor


def centroids(key: Tensor, value: Tensor, order: Ordering, factor: int, rounds: int) -> Centroids:
    """⌈n / factor⌉ clusters of a row's n keys (B, Hk, S, E), by Lloyd's algorithm.

    The first centres are keys evenly spaced in the order of positions. In each round every key
    goes to the nearest centre (Euclid; of equal ones the first), and each centre to the mean of
    its keys. After the rounds keys choose once more. Which key chooses what has no gradient; means
    do. Nothing is drawn by chance. Sums of half types are float32.
    """
    keys, values = order.take(key, 2), order.take(value, 2)
    real = order.real[:, None].expand(key.shape[0], key.shape[1], -1)
    with torch.no_grad():
        chosen = _chosen(keys.to(wide_dtype(key)), real, factor, rounds)
    shape, count = keys.shape[:2], -(-keys.shape[2] // factor)
    flat = [x.to(wide_dtype(x)).flatten(0, 1) for x in (keys, values)]
    (key_mean, size), (value_mean, _) = (means(x, chosen.flatten(0, 1), count) for x in flat)
    found = key_mean.to(keys.dtype), value_mean.to(values.dtype), size.to(flat[0].dtype).squeeze(-1)
    return Centroids(*(x.unflatten(0, shape) for x in found))


def _chosen(keys: Tensor, real: Tensor, factor: int, rounds: int) -> Tensor:
    """Which centre each key goes to, (B, Hk, n); -1 for nobody."""
    if not keys.shape[2]:
        return real.long()
    first, live, rows, there = (x.flatten(0, 1) for x in (*_first(keys, real, factor), keys, real))
    return lloyd(rows, first, rounds, real=there, live=live).view(real.shape)


def _first(keys: Tensor, real: Tensor, factor: int) -> tuple[Tensor, Tensor]:
    """Evenly spaced keys, (B, Hk, C, E), and which of the C places a row uses, (B, Hk, C)."""
    there = real.sum(-1, keepdim=True)
    used = (there + factor - 1) // factor
    place = torch.arange(-(-keys.shape[2] // factor), device=keys.device)
    live = place < used
    slot = ((2 * place + 1) * there // (2 * used).clamp(min=1)).masked_fill(~live, 0)
    return keys.gather(2, slot[..., None].expand(-1, -1, -1, keys.shape[3])), live


By = Literal["conv", "mean", "max", "centroids"]
"""How several keys become one."""

_BY = ("conv", "mean", "max", "centroids")


@register("compressed")
@final
class Compressed(Mechanism):
    """softmax(Q K̂ᵀ/√d) V̂, where K̂ and V̂ have one row for each ``factor`` rows of K and V.

    by: "conv": a convolution with kernel = stride = factor, its own for keys and for values, which
    needs num_kv_heads and head_dim; "mean"; "max", of each feature; "centroids": clusters of keys
    and the means of their values, see ``centroids``, whose weights count each cluster by its
    size: softmax(q·k̂ + log size). All but the last group g = ⌊position / factor⌋, wherever pads
    lie; a pad is 0 to the convolution and does not count in means and maxima.

    pattern: Full(), or Causal(): a query sees the groups that end at or before it, so the first
    factor - 1 see nobody and get 0. local: a query sees its own group exactly, key by key (as far
    as the pattern goes), and the other groups compressed, in one softmax. rounds: of k-means.
    dropout: of weights, while training.

    Multiplications, forward: L·S/factor·(d + d′) for each query head (half of it where causal),
    L·factor·(d + d′) with local; before it S·(d² + d′²) for each key head by "conv",
    S²/factor·d·(rounds + 1) by "centroids". The convolution is that of Liu et al. 2018.

    causality: "functional" with Causal(), else "none". With Causal() it decodes from the kept
    keys, which each step compresses anew; without, later tokens change groups, and there is no
    cache. Raises NotSupported for other patterns, documents, and for centroids with Causal() or
    local; InvalidArgument for sizes below 1, and two tokens at one position.
    """

    pattern: Pattern

    def __init__(
        self,
        factor: int,
        *,
        by: By = "conv",
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        pattern: PatternLike = Full(),
        local: bool = False,
        rounds: int = 5,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        check_size("compressed factor", factor)
        check_size("compressed rounds", rounds)
        if not isinstance(local, bool):
            raise InvalidArgument(f"compressed local={local!r}: True or False")
        self.pattern = _known(as_pattern(pattern), by, local)
        self.factor, self.by, self.local, self.rounds = factor, by, local, rounds
        self.num_kv_heads, self.head_dim = num_kv_heads, head_dim
        self.dropout = probability("dropout", dropout)
        self.key, self.value = self._compressor(), self._compressor()
        blocks = Chunks(factor)  # combined here, since torch.compile traces no operators of ours
        self._own, self._others = self.pattern & blocks, self.pattern & ~blocks

    @property
    def causality(self) -> Causality:
        """ "functional": no past output depends on the future; or "none"."""
        return "functional" if self.pattern == Causal() else "none"

    @property
    def no_cache(self) -> str | None:
        """Why a text cannot be read in steps; None where it can."""
        if self.pattern == Causal():
            return None
        return (
            f"under {self.pattern} later tokens change what earlier ones saw: read the whole text "
            "at once, or use Causal()"
        )

    @property
    def no_weights(self) -> str | None:
        """Why pairs of a query and a key have none."""
        if self.by in ("mean", "centroids"):
            return None
        return f"by={self.by!r} makes a group's value of several, of which none has a share"

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
        call = check_call(
            query, key, value, self.pattern, scale=None, q_tokens=q_tokens, k_tokens=k_tokens
        )
        self.check_heads(Heads.of(query, key))
        p = self.dropout if self.training else 0.0
        if self.by == "centroids":
            return self._by_centroids(call, p)
        queries, keys = call.standing
        groups = self._groups(call, keys)
        k, v = self.key(groups, call.key), self.value(groups, call.value)
        if not self.local:
            q_tokens, k_tokens = _said(self.pattern, queries.bare, groups.tokens)
            return attention(
                call.query, k, v, self.pattern,
                dropout_p=p, q_tokens=q_tokens, k_tokens=k_tokens,
            )  # fmt: skip
        own = attention_with_lse(
            call.query, call.key, call.value, self._own,
            dropout_p=p, q_tokens=queries, k_tokens=keys,
        )  # fmt: skip
        others = attention_with_lse(
            call.query, k, v, self._others,
            dropout_p=p, q_tokens=queries.bare, k_tokens=groups.tokens,
        )  # fmt: skip
        return merge(own, others)[0]

    def work(self, asked: Asked) -> Work:
        """Each query looks at groups, and with local at its own group; before it keys become
        groups: S·(E² + Ev²) by "conv", S·⌈S/factor⌉·E·(rounds + 1) by "centroids". A group that
        is not full is convolved as if it were. See ``eyeline.cost``."""
        own = {"kv_heads": self.num_kv_heads, "head_dim": self.head_dim}
        asked = asked.known("compressed", **own)
        if asked.heads is None and asked.kv_heads is not None:
            asked = replace(asked, heads=asked.kv_heads)
        call = asked.call
        queries, keys = default_tokens(call.length, call.key_length)
        groups = position_blocks(keys, self.factor).tokens
        count, widths = groups.length, call.head_dim**2 + call.value_dim**2
        parts = [of_pattern(self._others if self.local else self.pattern, call, queries, groups)]
        parts += [of_pattern(self._own, call, queries, keys)] if self.local else []
        before = made = more = 0
        if self.by == "conv":
            before = call.kv_heads * call.key_length * widths
            made = call.kv_heads * count * self.factor * widths
        elif self.by == "centroids":
            before = made = call.kv_heads * call.key_length * count * call.head_dim
            before, made = before * (self.rounds + 1), made * (self.rounds + 1)
            more = 2 * parts[0].computed  # the logarithm of a size, and a 0 beside values
        return Work(
            call,
            pairs=sum(x.pairs for x in parts),
            computed=sum(x.computed for x in parts),
            multiplications=before + sum(x.multiplications for x in parts),
            computed_multiplications=made + more + sum(x.computed_multiplications for x in parts),
            numbers=call.numbers + numbers_in(self),
            steps=self.rounds + 2 if self.by == "centroids" else 1,
        )

    def path(self, length: int) -> int | Pattern:
        """1 if anybody hears somebody else, at once or never: what i hears of k, and k of j, is of
        groups that have ended when i looks. See ``max_path_length``."""
        waits = self.factor if self.causality == "functional" and not self.local else 1
        return int(length >= max(waits, 2))

    def _by_centroids(self, call: Call, p: float) -> Tensor:
        """The logarithm of a cluster's size is one more feature of its key; queries have a 1."""
        order = Ordering.as_it_is(call.key.shape[2], call.key.device)
        if call.tokens is not None:
            check_keys("compressed", *call.tokens)
            order = sorted_by(call.tokens[1], "positions", device=call.key.device)
        found = centroids(call.key, call.value, order, self.factor, self.rounds)
        most = -torch.finfo(torch.float16).max / 2  # finite, so that no gradient is NaN
        share = found.size.log().div(call.scale).clamp(min=most)[..., None]
        asking: tuple[Tokens | None, Tokens | None] = None, None
        if call.tokens is not None and real_slots(call.tokens[0]) is not None:
            asking = call.tokens[0].bare, default_tokens(share.shape[2], share.shape[2])[0]
        out = attention(
            torch.nn.functional.pad(call.query, (0, 1), value=1.0),
            torch.cat((found.key, share.to(found.key.dtype)), -1),
            torch.nn.functional.pad(found.value, (0, 1)),
            scale=call.scale, dropout_p=p, q_tokens=asking[0], k_tokens=asking[1],
        )  # fmt: skip
        return out[..., :-1]

    def _groups(self, call: Call, keys: Tokens) -> PositionBlocks:
        if call.tokens is None:
            return blocks_of_slots(keys.length, self.factor, call.key.device)
        check_keys("compressed", *call.tokens)
        return position_blocks(keys, self.factor, call.key.device)

    def _compressor(self) -> nn.Module:
        if self.by == "conv":
            for name, size in (("num_kv_heads", self.num_kv_heads), ("head_dim", self.head_dim)):
                check_size(f"compressed by conv: {name}", size)
            return GroupConv(self.factor, self.num_kv_heads, self.head_dim)  # type: ignore[arg-type]
        return GroupMean() if self.by != "max" else GroupMax()

    def extra_repr(self) -> str:
        return f"factor={self.factor}, by={self.by!r}, {self.pattern}, local={self.local}"


def _known(pattern: Pattern, by: str, local: bool) -> Pattern:
    """The pattern. Raises for what fewer keys cannot honour."""
    if by not in _BY:
        raise InvalidArgument(f"compressed by={by!r}: it is {', '.join(_BY)}")
    if pattern not in (Full(), Causal()):
        raise NotSupported(
            f"compressed groups keys before anyone looks, and cannot honour {pattern}: it knows "
            "full() and causal(); mechanisms for other patterns are exact ones"
        )
    if by == "centroids" and (local or pattern != Full()):
        what = "local=True" if local else str(pattern)
        raise NotSupported(
            f"compressed by centroids with {what}: clusters hold keys of all places; by conv, mean "
            "and max know it"
        )
    return pattern


def _said(pattern: Pattern, q: Tokens, k: Tokens) -> tuple[Tokens | None, Tokens | None]:
    """The tokens; none where they make no difference, which more kernels serve."""
    if pattern.compares_positions or traced():
        return q, k
    return (None, None) if real_slots(q) is None and real_slots(k) is None else (q, k)
