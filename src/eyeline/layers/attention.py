"""MultiHeadAttention: projections to heads, a mechanism by which they look, and one back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn

from eyeline.caches import LayerCache, Layout
from eyeline.checks import check_sizes
from eyeline.errors import InvalidArgument, NotSupported
from eyeline.exact.call import PatternLike
from eyeline.layers.checks import (
    check_cached,
    check_input,
    check_last,
    check_mechanism,
    check_same,
    check_shared,
    check_tokens,
    head_width,
    refuse_apart,
)
from eyeline.layers.positions import Position, added_at, check_fit, rotary_tables, sorted_positions
from eyeline.mechanisms import Exact, Heads, Mechanism
from eyeline.mechanisms.base import ProjectsLast
from eyeline.patterns import Full, Pattern
from eyeline.planning.cost import Asked, Countable, Work, numbers_in
from eyeline.tokens import Tokens, default_tokens


class Projected(NamedTuple):
    """Keys (B, Hk, S, E) and values (B, Hk, S, E) of a layer: what cross attention can keep.

    tokens: where they stand; None if nobody has said, and the layer has no positions.
    """

    key: Tensor
    value: Tensor
    tokens: Tokens | None = None


@final
class MultiHeadAttention(nn.Module, Countable):
    """out = W_o [head_1; …; head_h] + b_o,  head_i = f(W_q^i query, W_k^i key, W_v^i value).

    f is the mechanism: softmax(QKᵀ/√E)V under a pattern, or what is given. Batch first:
    query (B, L, embed_dim), key (B, S, kdim), value (B, S, vdim) to (B, L, embed_dim). Without a
    key it is self attention; a key without a value is its own value.

    pattern: who may attend to whom, Full() if not given; or mechanism: a Mechanism, with dropout
    and score modifiers of its own.
    num_kv_heads: key and value heads; num_heads / num_kv_heads query heads share each.
    head_dim: the width E of a head, embed_dim / num_heads if not given.
    kdim, vdim: the widths of key and value, embed_dim if not given.
    position: a Rotary; a ScoreMod (ALiBi, T5Bias, Shaw, …); an encoding that is added to what
    queries and keys are made of, but not to values; or several of them.
    bias: whether the four projections have one. dropout: of weights, and only while training.

    Parameters: q_proj, k_proj, v_proj, out_proj, nn.Linear each, drawn as nn.MultiheadAttention
    draws its own; where a mechanism's keys are its queries (LSH), k_proj is q_proj. With head_dim =
    embed_dim / num_heads, h heads have as many parameters and multiplications as one of full
    width. Vaswani et al. 2017; Ainslie et al. 2023 (shared heads).

    Raises InvalidArgument for sizes that do not fit together, for what was made for other heads,
    for a pattern beside a mechanism, and for dropout or score modifiers beside a mechanism, which
    would not see them.
    """

    # pattern and mechanism fill one place, so these are ten choices.
    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        pattern: PatternLike | None = None,
        mechanism: Mechanism | None = None,
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        kdim: int | None = None,
        vdim: int | None = None,
        position: Position | Sequence[Position] | None = None,
        bias: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.embed_dim, self.num_heads = embed_dim, num_heads
        self.num_kv_heads = num_kv_heads if num_kv_heads is not None else num_heads
        self.head_dim = head_width(embed_dim, num_heads, self.num_kv_heads, head_dim)
        self.kdim = kdim if kdim is not None else embed_dim
        self.vdim = vdim if vdim is not None else embed_dim
        check_sizes(kdim=self.kdim, vdim=self.vdim)
        positions = sorted_positions(position)
        check_fit(positions, self.head_dim, query=embed_dim, key=self.kdim)
        self.added, self.rotary = positions.added, positions.rotary
        if mechanism is None:
            rule = pattern if pattern is not None else Full()
            mechanism = Exact(rule, score_mod=positions.score_mods, dropout=dropout)
        else:
            check_mechanism(mechanism, pattern, positions.score_mods, dropout)
        mechanism.check_heads(Heads(num_heads, self.num_kv_heads, self.head_dim))
        self.mechanism: Mechanism = mechanism
        width, kv_width = num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        self.q_proj = nn.Linear(embed_dim, width, bias=bias)
        shared = mechanism.shared_qk
        if shared:
            check_shared(type(mechanism).__name__, embed_dim, self.kdim)
            self.register_load_state_dict_pre_hook(refuse_apart)  # type: ignore[no-untyped-call]
        self.k_proj = self.q_proj if shared else nn.Linear(self.kdim, kv_width, bias=bias)
        self.v_proj = nn.Linear(self.vdim, kv_width, bias=bias)
        self.out_proj = nn.Linear(width, embed_dim, bias=bias)
        self.reset_parameters()

    @property
    def pattern(self) -> Pattern:
        """Who may look at whom. Raises NotSupported if the mechanism has no pattern."""
        if self.mechanism.pattern is None:
            raise NotSupported(f"{type(self.mechanism).__name__} has no pattern")
        return self.mechanism.pattern

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draws the projections anew, as nn.MultiheadAttention does, and sets biases to 0.

        Where all widths are embed_dim, torch holds queries, keys and values in one matrix, whose
        Xavier bound is that of its 3d rows: √(6 / 4d), not √(6 / 2d).
        """
        inward = dict.fromkeys((self.q_proj, self.k_proj, self.v_proj))  # a shared one once
        packed = self.kdim == self.vdim == self.embed_dim
        rows = sum(layer.out_features for layer in inward)
        for layer in inward:
            fan_out = rows if packed else layer.out_features
            bound = math.sqrt(6.0 / (layer.in_features + fan_out))
            nn.init.uniform_(layer.weight, -bound, bound)
        nn.init.kaiming_uniform_(self.out_proj.weight, a=math.sqrt(5))
        for layer in (*inward, self.out_proj):
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)

    def forward(
        self,
        query: Tensor,
        key: Tensor | Projected | None = None,
        value: Tensor | None = None,
        *,
        q_tokens: Tokens | None = None,
        k_tokens: Tokens | None = None,
        cache: LayerCache | None = None,
    ) -> Tensor:
        """query (B, L, embed_dim), key (B, S, kdim), value (B, S, vdim) to (B, L, embed_dim).

        q_tokens, k_tokens: what stands in each slot. In self attention the keys' are the
        queries'; in cross attention they default as in ``attention``: the queries are the last L.
        key: also what ``project`` returned, to look at the same keys again and again; they stand
        where ``project`` was told. cache: for self attention in steps; q_tokens is then what
        ``cache.advance`` was given.

        Raises InvalidArgument for shapes, dtypes and options that do not fit together.
        """
        if cache is not None:
            check_cached(cache.cache, key, q_tokens, k_tokens)
            self.mechanism.check_steps()
        if self.mechanism.needs_input and key is not None:
            raise NotSupported(
                f"{self.mechanism.name} needs the input of its layer, and cross attention has two"
            )
        q_tokens, k_tokens = self._standing(query, key, q_tokens, k_tokens)
        sums = self._sums_first() if cache is None else None
        if sums is not None:
            heads = self._summed(sums, query, key, value, q_tokens, k_tokens)
            if heads is not None:
                return self._merged(sums.over(*heads, q_tokens=q_tokens))
        q, k, v = self._in_heads(query, key, value, q_tokens, k_tokens)
        seen = self.mechanism.attend(
            q, k, v, q_tokens=q_tokens, k_tokens=k_tokens, place=cache, inputs=query
        )
        return self._merged(seen)

    def project(
        self, key: Tensor, value: Tensor | None = None, *, k_tokens: Tokens | None = None
    ) -> Projected:
        """The keys and values of cross attention, made once, for ``forward(query, projected)``.

        k_tokens: what stands there, in every call that is given them; 0 … S-1 if not given.
        """
        check_input("key", key, self.kdim, self.k_proj.weight)
        if k_tokens is not None:
            check_tokens("k_tokens", k_tokens, *key.shape[:2])
        elif self._has_positions:
            k_tokens = default_tokens(key.shape[1], key.shape[1])[0]
        k, v = self._projected(key, value if value is not None else key, k_tokens)
        return Projected(k, v, k_tokens)

    def weights(
        self,
        query: Tensor,
        key: Tensor | Projected | None = None,
        *,
        q_tokens: Tokens | None = None,
        k_tokens: Tokens | None = None,
    ) -> Tensor:
        """weight[h, i, j], (B, num_heads, L, S): how much of value j query i takes in head h.

        After the softmax and all that changes scores, before dropout; each row sums to 1, or to 0
        where a query may look at nobody. For short inputs: memory is L·S. Raises NotSupported for
        a mechanism that has no weights.
        """
        q_tokens, k_tokens = self._standing(query, key, q_tokens, k_tokens)
        source = query if key is None else key
        check_input("query", query, self.embed_dim, self.q_proj.weight)
        q = self._heads(self.q_proj(self._placed(query, q_tokens)), q_tokens)
        k = source.key if isinstance(source, Projected) else self._keys(source, k_tokens)
        more: dict[str, Any] = {"inputs": query} if self.mechanism.needs_input else {}
        return self.mechanism.weights(q, k, q_tokens=q_tokens, k_tokens=k_tokens, **more)

    def new_cache(self, batch: int = 1) -> LayerCache:
        """An empty cache for this layer alone, in the dtype and on the device of its weights."""
        weight = self.k_proj.weight
        width, device = self.head_dim, weight.device
        layout = Layout(1, batch, self.num_kv_heads, width, width, weight.dtype, device)
        return LayerCache(self.mechanism.new_cache(layout), 0)

    def work(self, asked: Asked) -> Work | None:
        """The mechanism's, and apart from it L·d·H·E for queries and for the output, and S·d·Hk·E
        for keys and for values, once for queries that are keys; see ``eyeline.cost``."""
        own = {"heads": self.num_heads, "kv_heads": self.num_kv_heads, "head_dim": self.head_dim}
        inner = self.mechanism.work(asked.known("a layer", value_dim=self.head_dim, **own))
        if inner is None:
            return None
        queries, keys = inner.call.length, inner.call.key_length
        asking = 0 if self._shares else queries  # a shared projection's queries are its keys
        parts = ((self.q_proj, asking), (self.k_proj, keys), (self.v_proj, keys))
        made = sum(rows * x.weight.numel() for x, rows in (*parts, (self.out_proj, queries)))
        around = 2 * queries * self.embed_dim + numbers_in(self) - numbers_in(self.mechanism)
        return replace(inner, projections=made, numbers=inner.numbers + around, backward=None)

    def path(self, length: int) -> int | Pattern:
        """The mechanism's."""
        return self.mechanism.path(length)

    @property
    def _shares(self) -> bool:
        """Whether queries and keys are of one projection, and so are the same."""
        return self.k_proj.weight is self.q_proj.weight

    @property
    def _has_positions(self) -> bool:
        return self.added is not None or self.rotary is not None

    def _standing(
        self,
        query: Tensor,
        key: Tensor | Projected | None,
        q_tokens: Tokens | None,
        k_tokens: Tokens | None,
    ) -> tuple[Tokens | None, Tokens | None]:
        """The tokens of queries and keys; where the layer places them itself, always some."""
        if isinstance(key, Projected):
            k_tokens = self._kept(key, k_tokens)
        if key is None and k_tokens is None:
            k_tokens = q_tokens
        if not self._has_positions:
            return q_tokens, k_tokens  # the mechanism checks them
        keys = query if key is None else key.key if isinstance(key, Projected) else key
        if q_tokens is None:
            check_last(query.shape[1], keys.shape[-2])
        if k_tokens is None and q_tokens is None:
            return default_tokens(query.shape[1], keys.shape[-2])
        if k_tokens is None:
            raise InvalidArgument("q_tokens without k_tokens: say where the keys stand too")
        q_tokens = q_tokens if q_tokens is not None else k_tokens.last(query.shape[1])
        check_tokens("q_tokens", q_tokens, query.shape[0], query.shape[1])
        check_tokens("k_tokens", k_tokens, keys.shape[0], keys.shape[-2])
        return q_tokens, k_tokens

    @staticmethod
    def _kept(keys: Projected, k_tokens: Tokens | None) -> Tokens | None:
        """The tokens of projected keys. They are not others than those they were made with."""
        if k_tokens is None:
            return keys.tokens
        if keys.tokens is not None:
            check_same("k_tokens", k_tokens, keys.tokens, "project(key) placed the keys at others")
        return k_tokens

    def _in_heads(
        self,
        query: Tensor,
        key: Tensor | Projected | None,
        value: Tensor | None,
        q_tokens: Tokens | None,
        k_tokens: Tokens | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values as heads (B, ·, ·, E), placed and turned."""
        q_proj = self.q_proj
        check_input("query", query, self.embed_dim, q_proj.weight)
        placed = self._placed(query, q_tokens)
        q = self._heads(q_proj(placed), q_tokens)
        if isinstance(key, Projected):
            if value is not None:
                raise InvalidArgument("value beside projected keys: they have their values")
            return q, key.key, key.value
        if key is not None:
            return q, *self._projected(key, value if value is not None else key, k_tokens)
        if value is not None:
            raise InvalidArgument("value without key: give both, or neither in self attention")
        if self.kdim != self.embed_dim or self.vdim != self.embed_dim:
            raise InvalidArgument(
                f"self attention with embed_dim={self.embed_dim}, kdim={self.kdim} and "
                f"vdim={self.vdim}: the layer needs a key and a value"
            )
        if self._shares and k_tokens is q_tokens:
            return q, q, self._split(self.v_proj(query))
        if k_tokens is not q_tokens:
            placed = self._placed(query, k_tokens)
        return q, self._heads(self.k_proj(placed), k_tokens), self._split(self.v_proj(query))

    def _sums_first(self) -> ProjectsLast | None:
        """What sums the inputs before they are projected, if that saves something."""
        key, value = self.k_proj, self.v_proj
        plain = isinstance(key, nn.Linear) and isinstance(value, nn.Linear)
        return self.mechanism.project_first(key, value) if plain else None

    def _summed(
        self,
        mechanism: ProjectsLast,
        query: Tensor,
        key: Tensor | Projected | None,
        value: Tensor | None,
        q_tokens: Tokens | None,
        k_tokens: Tokens | None,
    ) -> tuple[Tensor, Tensor, Tensor] | None:
        """Queries in heads, and sums of keys and values, of inputs that were summed up first.

        None for what the usual way refuses.
        """
        one_sided = (q_tokens is None) != (k_tokens is None)
        if isinstance(key, Projected) or self.rotary is not None or one_sided:
            return None
        widths = {self.embed_dim, self.kdim, self.vdim}
        if key is None and (value is not None or len(widths) > 1):
            return None
        key = key if key is not None else query
        value = value if value is not None else key
        if key.shape[:2] != value.shape[:2]:
            return None
        for name, x, width in (
            ("query", query, self.embed_dim), ("key", key, self.kdim), ("value", value, self.vdim),
        ):  # fmt: skip
            check_input(name, x, width, self.q_proj.weight)
        q = self._split(self.q_proj(self._placed(query, q_tokens)))
        inputs = self._placed(key, k_tokens), value
        if k_tokens is not None:
            check_tokens("k_tokens", k_tokens, *key.shape[:2])
        k, v = mechanism.summed(inputs, (self.k_proj, self.v_proj), k_tokens)
        return q, self._split(k), self._split(v)

    def _projected(
        self, key: Tensor, value: Tensor, k_tokens: Tokens | None
    ) -> tuple[Tensor, Tensor]:
        k = self._keys(key, k_tokens)
        check_input("value", value, self.vdim, self.v_proj.weight)
        return k, self._split(self.v_proj(value))

    def _keys(self, key: Tensor, k_tokens: Tokens | None) -> Tensor:
        check_input("key", key, self.kdim, self.k_proj.weight)
        return self._heads(self.k_proj(self._placed(key, k_tokens)), k_tokens)

    def _placed(self, x: Tensor, tokens: Tokens | None) -> Tensor:
        """x with what the layer's encoding adds where the tokens stand."""
        return x if self.added is None else added_at(self.added, x, tokens)

    def _heads(self, x: Tensor, tokens: Tokens | None) -> Tensor:
        """``_split``, and turned where the tokens stand."""
        heads = self._split(x)
        if self.rotary is None:
            return heads
        assert tokens is not None
        return self.rotary.rotate(heads, rotary_tables(self.rotary, tokens, heads))

    def _split(self, x: Tensor) -> Tensor:
        """(B, L, heads · E) to (B, heads, L, E)."""
        batch, length, width = x.shape
        heads = width // self.head_dim
        if length == 1:  # while a model writes, an operator less
            return x.reshape(batch, heads, 1, self.head_dim)
        return x.reshape(batch, length, heads, self.head_dim).transpose(1, 2)

    def _merged(self, seen: Tensor) -> Tensor:
        """(B, heads, L, E) to (B, L, embed_dim)."""
        out: Tensor = self.out_proj(seen.transpose(1, 2).flatten(2))
        return out

    def extra_repr(self) -> str:
        parts = [f"embed_dim={self.embed_dim}", f"num_heads={self.num_heads}"]
        if self.num_kv_heads != self.num_heads:
            parts.append(f"num_kv_heads={self.num_kv_heads}")
        parts.append(f"head_dim={self.head_dim}")
        untrained = (self.rotary, None if isinstance(self.added, nn.Module) else self.added)
        return ", ".join(parts + [str(x) for x in untrained if x is not None])
