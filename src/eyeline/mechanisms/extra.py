"""Keys and tokens that do not belong to the sequence, merged exactly with those that do."""

from __future__ import annotations

import math
from dataclasses import replace
from operator import attrgetter
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from eyeline.budgets import budgets
from eyeline.checks import check_size, wide_dtype
from eyeline.errors import InvalidArgument, NotSupported
from eyeline.exact import attention_with_lse
from eyeline.kernels.merge import merge
from eyeline.mechanisms.base import Heads, Mechanism, register
from eyeline.mechanisms.exact import Exact
from eyeline.memory import remembered, traced
from eyeline.patterns import Full, Pattern, Window
from eyeline.planning import dense_mask, pairs
from eyeline.planning.cost import Asked, CallSizes, Work, numbers_in, of_pattern
from eyeline.scores import ScoreMod
from eyeline.tokens import NOBODY, Tokens, default_tokens

# Attention over more keys than those of the sequence, merged exactly by the log-sum-exp.


def looked(
    exact: Exact,
    pattern: Pattern,
    heads: tuple[Tensor, Tensor, Tensor],
    more: tuple[Tensor, Tensor],
    *,
    tokens: tuple[Tokens | None, Tokens | None],
    score_mods: tuple[ScoreMod, ...],
) -> Tensor:
    """softmax over the sequence's keys under a pattern and, at once, over more keys for everyone.

    heads: query (B, H, L, E), key (B, Hk, S, E) and value (B, Hk, S, Ev) of the sequence; more:
    keys (B or 1, Hk, m, E) and values (B or 1, Hk, m, Ev) that do not belong to it, to which no
    score modifier applies.
    """
    query, key, value = heads
    p = exact.dropout if exact.training else 0.0
    own = attention_with_lse(
        query, key, value, pattern, score_mod=score_mods, dropout_p=p,
        scale=exact.scale, q_tokens=tokens[0], k_tokens=tokens[1],
    )  # fmt: skip
    with torch.autocast(query.device.type, enabled=False):
        dtype = own[0].dtype
        score = more_scores(query.to(dtype), more[0], exact.scale)
        weight = functional.dropout(score.softmax(-1), p, training=p > 0)
        extra = _grouped(weight, more[1].to(weight.dtype))
        own = own[0].to(extra.dtype), own[1]
        return merge(own, (extra, score.logsumexp(-1)))[0].to(dtype)


def without_nobody(out: Tensor, tokens: Tokens) -> Tensor:
    """out (B, H, L, Ev) with 0 where nobody asks: more keys are there for everyone, not for it."""
    nobody = (tokens.positions == NOBODY).to(out.device)
    return out.masked_fill(torch.atleast_2d(nobody)[:, None, :, None], 0.0)


def all_weights(
    exact: Exact,
    query: Tensor,
    key: Tensor,
    more: Tensor,
    *,
    q_tokens: Tokens | None,
    k_tokens: Tokens | None,
) -> Tensor:
    """The weights of the sequence's S keys, then of the m more: (B, H, L, S + m)."""
    own = exact.weights(query, key, q_tokens=q_tokens, k_tokens=k_tokens)
    _, lse = attention_with_lse(
        query, key, key, exact.pattern, score_mod=exact.score_mods,
        scale=exact.scale, q_tokens=q_tokens, k_tokens=k_tokens,
    )  # fmt: skip
    score = more_scores(query, more, exact.scale)
    beside = nn.functional.pad(own.to(score.dtype), (0, more.shape[2]))
    extra = nn.functional.pad(score.softmax(-1), (own.shape[3], 0))
    return merge((beside, lse), (extra, score.logsumexp(-1)))[0].to(query.dtype)


def beyond(work: Work, pairs: int, module: nn.Module) -> Work:
    """The work with so many pairs more in each head, and a module's parameters."""
    more = work.call.heads * pairs
    return replace(
        work,
        pairs=work.pairs + more,
        computed=work.computed + more,
        multiplications=work.multiplications + more * work.call.products,
        computed_multiplications=work.computed_multiplications + more * work.call.products,
        numbers=work.numbers + numbers_in(module),
        backward=None,
    )


def more_scores(query: Tensor, key: Tensor, scale: float | None) -> Tensor:
    """scale · query · key, wide: (B, H, L, E) and (B or 1, Hk, m, E) to (B, H, L, m)."""
    scale = scale if scale is not None else 1.0 / math.sqrt(query.shape[-1])
    wide = wide_dtype(query)
    return _grouped(query.to(wide), key.to(wide).transpose(-2, -1)) * scale


def _grouped(rows: Tensor, matrix: Tensor) -> Tensor:
    """(B, H, L, x) times (B or 1, Hk, x, y), each matrix for H / Hk heads: (B, H, L, y)."""
    shared = matrix.shape[1]
    heads = rows.reshape(rows.shape[0], shared, rows.shape[1] // shared, *rows.shape[2:])
    return (heads @ matrix.unsqueeze(2)).flatten(1, 2)


# Trained keys and values that do not belong to the sequence, and that every token looks at.


@register("extra_keys")
@final
class ExtraKeys(Mechanism):
    """softmax over the keys that a query may look at and, in each head, ``count`` trained ones.

    exact: how the sequence's own keys are looked at. Its score modifiers do not apply to the
    extra keys, which stand nowhere. key, value: (num_kv_heads, count, head_dim), parameters.
    They hold nothing of the sequence, so no future leaks through them, and it decodes from a
    cache. torch's ``add_bias_kv`` is count = 1. Sukhbaatar et al. 2019, "Augmenting
    self-attention with persistent memory"; its keys start as N(0, 1/E), as do these values.

    A query that may look at nobody else looks at them alone; nobody (-1) gets 0. Raises
    InvalidArgument for sizes below 1.
    """

    def __init__(self, exact: Exact, count: int, *, num_kv_heads: int, head_dim: int) -> None:
        super().__init__()
        sizes = {"count": count, "num_kv_heads": num_kv_heads, "head_dim": head_dim}
        for name, size in sizes.items():
            check_size(f"extra keys {name}", size)
        self.exact = exact
        self.key = nn.Parameter(torch.empty(num_kv_heads, count, head_dim))
        self.value = nn.Parameter(torch.empty(num_kv_heads, count, head_dim))
        self.reset_parameters()

    @classmethod
    def filled(cls, heads: Heads, pattern: Pattern, dropout: float) -> dict[str, Any]:
        """``exact`` is made of the pattern and the dropout."""
        sizes = {"num_kv_heads": heads.num_kv_heads, "head_dim": heads.head_dim}
        return {**sizes, "exact": Exact(pattern, dropout=dropout)}

    @property
    def pattern(self) -> Pattern:  # type: ignore[override]
        """Who may attend to whom in the sequence."""
        return self.exact.pattern

    def reset_parameters(self) -> None:
        """Draws the extra keys and values anew."""
        for x in (self.key, self.value):
            nn.init.normal_(x, std=1 / math.sqrt(x.shape[-1]))

    def check_heads(self, heads: Heads) -> None:
        """Raise InvalidArgument if it, or how it attends to the sequence, is for other heads."""
        self.exact.check_heads(heads)
        num_kv_heads, _, head_dim = self.key.shape
        self._check_made(heads, num_kv_heads=num_kv_heads, head_dim=head_dim)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        q_tokens: Tokens | None = None,
        k_tokens: Tokens | None = None,
    ) -> Tensor:
        """(B, H, L, E), (B, Hk, S, E), (B, Hk, S, E) to (B, H, L, E)."""
        self.check_heads(Heads.of(query, key))
        heads, more = (query, key, value), (self.key[None], self.value[None])
        out = looked(
            self.exact, self.pattern, heads, more,
            tokens=(q_tokens, k_tokens), score_mods=self.exact.score_mods,
        )  # fmt: skip
        return out if q_tokens is None else without_nobody(out, q_tokens)

    def weights(
        self,
        query: Tensor,
        key: Tensor,
        *,
        q_tokens: Tokens | None = None,
        k_tokens: Tokens | None = None,
    ) -> Tensor:
        """The weights of the sequence's keys, then of the extra ones: (B, H, L, S + count)."""
        self.check_heads(Heads.of(query, key))
        return all_weights(
            self.exact, query, key, self.key[None], q_tokens=q_tokens, k_tokens=k_tokens
        )

    def work(self, asked: Asked) -> Work:
        """Each query also looks at ``count`` keys more; see ``eyeline.cost``."""
        shared, count, width = self.key.shape
        call = asked.known("extra keys", kv_heads=shared, head_dim=width, value_dim=width)
        return beyond(of_pattern(self.pattern, call.call), call.call.length * count, self)

    def extra_repr(self) -> str:
        return f"count={self.key.shape[1]}"


# A few tokens that do not belong to the sequence: they look at all of it, and all look at them.


@final
class ExtraTokens(Mechanism):
    """Slots 0 … count-1 are extra tokens; the others follow the pattern, and see all extra ones.

    out[i] of the sequence = softmax over the keys it may look at and the extra ones;
    out[g] of an extra token = softmax over the whole sequence and the extra ones.

    Extra tokens stand nowhere: their position is -1, nobody's (``beside`` makes such tokens). So
    the sequence's positions do not shift, no encoding is added to the extra ones or turns them,
    and ``exact``'s score modifiers apply within the sequence only. Ainslie et al. 2020 (ETC);
    Zaheer et al. 2020 (BigBird, "ETC").

    In the layer above the extra tokens carry what they have seen to everyone. A pattern under
    which some token, with others after it, looks at none of them would lose that, so it is refused
    (NotSupported), as are documents; ``ExtraKeys`` is the form for causal patterns. There is no
    cache: the whole text is read at once. Nor is there a graph of torch.compile or torch.export
    (NotSupported); with fullgraph=False the layers that hold extra tokens run as they are. Raises
    InvalidArgument for a count below 1 and for tokens without the extra slots.
    """

    causality = "none"
    no_cache = "its extra tokens attend to the whole sequence: read the whole text at once"

    def __init__(self, exact: Exact, count: int) -> None:
        super().__init__()
        check_size("extra tokens count", count)
        self.exact, self.count = exact, count

    def check_heads(self, heads: Heads) -> None:
        """Raise InvalidArgument if how the sequence is attended to is for other heads."""
        self.exact.check_heads(heads)

    @property
    def extra_slots(self) -> int:
        """``count``."""
        return self.count

    def beside(self, tokens: Tokens | int) -> Tokens:
        """The tokens (or so many, at 0, 1, …) with the extra slots before them."""
        given = tokens if isinstance(tokens, Tokens) else default_tokens(tokens, tokens)[0]
        return _with(given, self.count)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        q_tokens: Tokens | None = None,
        k_tokens: Tokens | None = None,
    ) -> Tensor:
        """(B, H, count + L, E), (B, Hk, count + L, E and Ev) to (B, H, count + L, Ev)."""
        tokens = self._sequence(q_tokens, k_tokens, query, key)
        (q_more, q), (k_more, k), (v_more, v) = (self._apart(x) for x in (query, key, value))
        own = looked(
            self.exact, self.exact.pattern, (q, k, v), (k_more, v_more),
            tokens=(tokens, tokens), score_mods=self.exact.score_mods,
        )  # fmt: skip
        # They attend to all, of every segment: only what is padding matters.
        asking = default_tokens(self.count, self.count)[0]
        extra = looked(
            self.exact, Full(), (q_more, k, v), (k_more, v_more),
            tokens=(asking, tokens.bare), score_mods=(),
        )  # fmt: skip
        return torch.cat((extra, without_nobody(own, tokens)), 2)

    def work(self, asked: Asked) -> Work:
        """The sequence looks at itself and the extra tokens, and they at all L slots, their own
        count among them. See ``eyeline.cost``."""
        call = asked.call
        own = call.length - self.count
        if own < 0 or call.key_length != call.length:
            raise InvalidArgument(
                f"{self.count} extra tokens in self attention: their slots are among the length "
                f"of both queries and keys, not {call.length} and {call.key_length}"
            )
        sizes = CallSizes(own, own, call.heads, call.kv_heads, call.head_dim, call.value_dim)
        pairs_more = self.count * (own + call.length)
        found = beyond(of_pattern(self.exact.pattern, sizes), pairs_more, self)
        return replace(found, call=call, numbers=call.numbers)

    def path(self, length: int) -> int:
        """Everybody hears everybody through an extra token: 2, or 1 if all look at all.

        length: with the extra slots. See ``max_path_length``.
        """
        own = max(length - self.count, 0)
        if own < 2:
            return int(length > 1)
        varies = self.exact.pattern.varies_by & {"batch", "head"}
        every = not varies and pairs(self.exact.pattern | Window(0, 0), own) == own**2
        return 1 if every else 2

    def _apart(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x[:, :, : self.count], x[:, :, self.count :]

    def _sequence(self, q: Tokens | None, k: Tokens | None, query: Tensor, key: Tensor) -> Tokens:
        """The tokens without the extra slots."""
        if traced():
            raise NotSupported(
                "extra tokens look up where the others stand, which a graph does not know before "
                "it runs: compile with fullgraph=False, and these layers run as they are"
            )
        if q is None or k is not q or q.length != query.shape[2] or key.shape[2] != query.shape[2]:
            raise InvalidArgument(
                f"{self.count} extra tokens look in self attention, and q_tokens says where the "
                "others stand: ExtraTokens.beside(length or tokens)"
            )
        if q.documents is not None:
            raise NotSupported("extra tokens would carry one document to the next")
        tokens = _without(q, self.count)
        blind = _looks_at_none_ahead(self.exact.pattern, tokens, query.shape[1])
        if blind is not None:
            raise NotSupported(
                f"under {self.exact.pattern} the token at {blind} looks at none that come later, "
                "and extra tokens, which look at everybody, would tell it of them: use ExtraKeys"
            )
        return tokens

    def extra_repr(self) -> str:
        return f"count={self.count}"


@remembered(16)
def _with(tokens: Tokens, count: int) -> Tokens:
    if tokens.documents is not None:
        raise NotSupported("extra tokens would carry one document to the next")
    return tokens.mapped(lambda column: functional.pad(column, (count, 0), value=NOBODY))


@remembered(16)
def _without(tokens: Tokens, count: int) -> Tokens:
    """Remembered, so that all layers share one object, and the plans made for it."""
    extra = tokens.positions[..., :count]
    if tokens.length < count or bool((extra != NOBODY).any()):
        raise InvalidArgument(
            f"the first {count} slots must be nobody's (-1), for the extra tokens; they stand at "
            f"{extra.tolist()}"
        )
    return tokens.mapped(lambda column: column[..., count:])


@remembered(16, unless=attrgetter("bound"))
def _looks_at_none_ahead(pattern: Pattern, tokens: Tokens, heads: int) -> int | None:
    """A position that nobody after it is looked at from, as far as some hundred of them tell."""
    host = tokens.host
    rows = torch.atleast_2d(host.positions)
    row = host.row(int((rows != NOBODY).sum(-1).argmax()))
    step = max(row.length // max(min(256, budgets.asked_ahead // max(row.length, 1)), 1), 1)
    some = row.mapped(lambda column: column[::step])
    varies = pattern.varies_by & {"batch", "head"}
    rules = [pattern.at(0, head) for head in range(heads)] if varies else [pattern]
    later = (row.positions[None, :] > some.positions[:, None]) & (some.positions[:, None] >= 0)
    seen = [dense_mask(rule, q_tokens=some, k_tokens=row) & later for rule in rules]
    blind = later.any(-1) & ~torch.stack(seen).any(0).any(-1)
    found = some.positions[blind]
    return int(found[0]) if len(found) else None
