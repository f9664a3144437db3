"""A few tokens that do not belong to the sequence: they look at all of it, and all look at them."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import final

import torch
from torch import Tensor, nn

from eyeline.checks import check_size
from eyeline.errors import InvalidArgument, NotSupported
from eyeline.mechanisms.exact import Exact
from eyeline.mechanisms.merging import beyond, looked, without_nobody
from eyeline.patterns import Full, Pattern, Window
from eyeline.patterns.remember import remember
from eyeline.planning import dense_mask, pairs
from eyeline.planning.cost import Asked, Call, Work, of_pattern
from eyeline.tokens import NOBODY, Tokens, default_tokens

# So many pairs are asked, at most, whether a token looks ahead.
_PAIRS = 1 << 22


@final
class ExtraTokens(nn.Module):
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

    def __init__(self, exact: Exact, count: int) -> None:
        super().__init__()
        check_size("extra tokens count", count)
        self.exact, self.count = exact, count

    def check(self, num_heads: int, num_kv_heads: int, head_dim: int) -> None:
        """Raise InvalidArgument if how the sequence is looked at is for other heads."""
        self.exact.check(num_heads, num_kv_heads, head_dim)

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
        # Whoever they are, they may look at everybody: where they stand does not matter.
        asking = default_tokens(self.count, self.count)[0]
        extra = looked(
            self.exact, Full(), (q_more, k, v), (k_more, v_more),
            tokens=(asking, tokens), score_mods=(),
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
        sizes = Call(own, own, call.heads, call.kv_heads, call.head_dim, call.value_dim)
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
        if torch.compiler.is_compiling():
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


@lru_cache(maxsize=16)
def _with(tokens: Tokens, count: int) -> Tokens:
    if tokens.documents is not None:
        raise NotSupported("extra tokens would carry one document to the next")
    shape = (*tokens.positions.shape[:-1], count)
    nobody = tokens.positions.new_full(shape, NOBODY)
    return Tokens(torch.cat((nobody, tokens.positions), -1))


@lru_cache(maxsize=16)
def _without(tokens: Tokens, count: int) -> Tokens:
    """Remembered, so that all layers share one object, and the plans made for it."""
    extra = tokens.positions[..., :count]
    if tokens.length < count or bool((extra != NOBODY).any()):
        raise InvalidArgument(
            f"the first {count} slots must be nobody's (-1), for the extra tokens; they stand at "
            f"{extra.tolist()}"
        )
    return Tokens(tokens.positions[..., count:])


@remember(maxsize=16)
def _looks_at_none_ahead(pattern: Pattern, tokens: Tokens, heads: int) -> int | None:
    """A position that nobody after it is looked at from, as far as some hundred of them tell."""
    host = tokens.host
    rows = torch.atleast_2d(host.positions)
    row = host.row(int((rows != NOBODY).sum(-1).argmax()))
    step = max(row.length // max(min(256, _PAIRS // max(row.length, 1)), 1), 1)
    some = Tokens(row.positions[::step])
    varies = pattern.varies_by & {"batch", "head"}
    rules = [pattern.at(0, head) for head in range(heads)] if varies else [pattern]
    later = (row.positions[None, :] > some.positions[:, None]) & (some.positions[:, None] >= 0)
    seen = [dense_mask(rule, q_tokens=some, k_tokens=row) & later for rule in rules]
    blind = later.any(-1) & ~torch.stack(seen).any(0).any(-1)
    found = some.positions[blind]
    return int(found[0]) if len(found) else None
