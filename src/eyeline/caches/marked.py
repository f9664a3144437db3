"""A cache that keeps, beside keys and values, named tensors for each token and each block."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Any, final

import torch
from torch import Tensor

from eyeline.caches.base import Cache
from eyeline.caches.buffers import Layout
from eyeline.caches.growing import Growing
from eyeline.checks import check_size, wide_dtype
from eyeline.errors import InvalidArgument
from eyeline.patterns import Pattern
from eyeline.tokens import NOBODY, Tokens
from eyeline.tokens.groups import PoolBy
from eyeline.tokens.slots import Position, Reached

# Room for blocks grows by half, at least by so many.
_CHUNK = 64


@final
@dataclass(frozen=True)
class Mark:
    """What is kept of each token, once for each key head: ``width`` numbers of one dtype."""

    width: int
    dtype: torch.dtype = torch.int64

    def __post_init__(self) -> None:
        check_size("mark width", self.width, least=0)


@final
@dataclass(frozen=True)
class Pool:
    """What is kept of each block: the mean, largest or sum of what its tokens have.

    of: "key", "value", or the name of a mark of a floating dtype. Sums and means are kept in
    float32, or float64 for float64.
    """

    of: str = "key"
    by: PoolBy = "mean"

    def __post_init__(self) -> None:
        if self.by not in ("mean", "max", "sum"):
            raise InvalidArgument(f'pool by {self.by!r}: "mean", "max" or "sum"')


@final
class Marked(Cache):
    """``Growing``, and beside each key, and for each block of tokens, tensors that have a name.

    marks: what is kept of each token: a hash bucket, a compressed key. pools: what is kept of each
    block of tokens: a mean key. In place of keys and values where the layout's widths are 0. maker:
    what makes the marks; a mechanism refuses a cache of another maker.

    After ``advance`` each layer calls ``append`` once, and ``mark`` once for each name. ``pooled``
    then reads what its blocks have; only tokens that are new since the last time are added up.

    Raises InvalidArgument for a name that is both, and for a pool of what is not kept.
    """

    def __init__(
        self,
        pattern: Pattern,
        layout: Layout,
        *,
        marks: Mapping[str, Mark] | None = None,
        pools: Mapping[str, Pool] | None = None,
        maker: Hashable = None,
    ) -> None:
        super().__init__(pattern, layout)
        self.maker = maker
        self.marks = dict(marks) if marks is not None else {}
        self._keys = Growing(pattern, layout)
        self._marks = {name: _growing(pattern, layout, mark) for name, mark in self.marks.items()}
        self.pools = dict(pools) if pools is not None else {}
        self._pools = {name: self._new_pool(name, pool) for name, pool in self.pools.items()}

    @property
    def length(self) -> int:
        return self._keys.length

    @property
    def nbytes(self) -> int:
        """Bytes of the stored keys, values, marks, and of what blocks have."""
        tokens = self._keys.nbytes + sum(marks.nbytes for marks in self._marks.values())
        return tokens + sum(pool.nbytes for pool in self._pools.values())

    def append(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tokens]:
        return self._keys.append(layer, key, value)

    def mark(self, layer: int, name: str, new: Tensor) -> Tensor:
        """Stores what the new tokens have, (B, Hk, m, width); returns that of all, (…, S, width).

        Raises InvalidArgument as ``append`` does, and for an unknown name.
        """
        marks: Growing = self._named(self._marks, name, "mark")
        return marks.append(layer, new, new[..., :0])[0]

    def pooled(self, layer: int, name: str, numbers: Tensor, count: int) -> Tensor:
        """What each of ``count`` blocks has, (B, Hk, count, width), in the dtype of its tokens.

        numbers: int64 (B or 1, S), the block of each slot that is in use, -1 for padding. A slot's
        number must stay what it was until tokens are forgotten. 0 for a block without tokens.

        Raises InvalidArgument for an unknown name, numbers of another shape, and before the layer
        has given this step's tokens.
        """
        tokens, rows = self.tokens_of(layer, name), (1, self.layout.batch)
        if numbers.dim() != 2 or numbers.shape[0] not in rows or numbers.shape[1] != self.length:
            raise InvalidArgument(
                f"pooled({name!r}): block numbers {tuple(numbers.shape)} for {self.length} slots "
                f"of {self.layout.batch} rows"
            )
        return self._pools[name].read(layer, tokens, numbers.to(self.layout.device), count)

    def tokens_of(self, layer: int, name: str) -> Tensor:
        """What the pool of this name is made of: (B, Hk, S, width) of all slots in use."""
        pool: _Pooled = self._named(self._pools, name, "pool")
        source, part = self._source(pool.spec.of)
        return source.stored(layer)[part]

    def _place(self, tokens: Tokens, following: Reached) -> Tokens:
        for marks in self._marks.values():
            marks.advance(tokens)
        return self._keys.advance(tokens)

    def _forget(self, position: Position) -> None:
        for part in (self._keys, *self._marks.values()):
            part.truncate(position)
        for pool in self._pools.values():
            pool.clear()

    def _exchange(self, index: Tensor) -> None:
        for part in (self._keys, *self._marks.values()):
            part.reorder(index)
        for pool in self._pools.values():
            pool.reorder(index)

    def _new_pool(self, name: str, pool: Pool) -> _Pooled:
        if name in self.marks:
            raise InvalidArgument(f"{name!r} is a mark and a pool: names differ")
        if pool.of not in ("key", "value", *self.marks):
            known = ", ".join(("key", "value", *self.marks))
            raise InvalidArgument(f"pool {name!r} of {pool.of!r}: there are {known}")
        source, part = self._source(pool.of)
        if not source.layout.dtype.is_floating_point:
            raise InvalidArgument(
                f"pool {name!r} of {pool.of!r}: {source.layout.dtype} has no mean"
            )
        width = source.layout.value_dim if part else source.layout.head_dim
        return _Pooled(pool, replace(source.layout, head_dim=width, value_dim=0))

    def _source(self, of: str) -> tuple[Growing, int]:
        """Where the tokens' own tensors are, and which of the two it keeps."""
        return (self._marks[of], 0) if of in self._marks else (self._keys, int(of == "value"))

    def _named(self, parts: Mapping[str, Any], name: str, what: str) -> Any:
        if name not in parts:
            known = ", ".join(parts) if parts else "none"
            raise InvalidArgument(f"there is no {what} {name!r} in this cache: there are {known}")
        return parts[name]


def _growing(pattern: Pattern, layout: Layout, mark: Mark) -> Growing:
    return Growing(pattern, replace(layout, head_dim=mark.width, value_dim=0, dtype=mark.dtype))


@final
class _Pooled:
    """The sums, or largest, of blocks, layer by layer: (layers, B, Hk, room, width)."""

    def __init__(self, spec: Pool, layout: Layout) -> None:
        self.spec, self._layout, self._room = spec, layout, 0
        self.clear()

    @property
    def nbytes(self) -> int:
        """Bytes of the blocks in use."""
        return (
            self._used
            * self._layout.batch
            * self._layout.layers
            * (
                self._layout.num_kv_heads * self._layout.head_dim * self._sums.element_size()
                + self._counts.element_size()
            )
        )

    def clear(self) -> None:
        """Forgets everything; the next ``read`` takes up all tokens again."""
        self._done, self._used = [0] * self._layout.layers, 0
        self._sums, self._counts = self._empty(self._room)

    def reorder(self, index: Tensor) -> None:
        """Row b becomes what row index[b] was."""
        index = index.to(self._layout.device)
        self._sums, self._counts = (x.index_select(1, index) for x in (self._sums, self._counts))

    def read(self, layer: int, tokens: Tensor, numbers: Tensor, count: int) -> Tensor:
        """What the blocks have, once all ``tokens`` (B, Hk, S, width) are taken up."""
        start, dtype = self._done[layer], tokens.dtype
        self._reserve(count)
        new = tokens[:, :, start:].to(self._sums.dtype)
        own = numbers[:, start:].expand(len(new), -1)
        real, sums, counts = own != NOBODY, self._sums[layer], self._counts[layer]
        counts.scatter_add_(1, own.clamp(min=0), real.long())
        index = own.clamp(min=0)[:, None, :, None].expand_as(new)
        new = new.masked_fill(~real[:, None, :, None], self._nothing)
        if self.spec.by == "max":
            sums.scatter_reduce_(2, index, new, "amax")
        else:
            sums.scatter_add_(2, index, new)
        self._done[layer], self._used = tokens.shape[2], count
        blocks, each = sums[:, :, :count], counts[:, None, :count, None]
        if self.spec.by == "mean":
            blocks = blocks / each.clamp(min=1)
        return blocks.masked_fill(each == 0, 0.0).to(dtype)

    @property
    def _nothing(self) -> float:
        return -torch.inf if self.spec.by == "max" else 0.0

    def _reserve(self, count: int) -> None:
        if count <= self._room:
            return
        old, held = (self._sums, self._counts), self._room
        self._room = max(count, held + max(_CHUNK, held // 2))
        self._sums, self._counts = self._empty(self._room)
        self._sums[:, :, :, :held], self._counts[:, :, :held] = old

    def _empty(self, room: int) -> tuple[Tensor, Tensor]:
        layout = self._layout
        wide = wide_dtype(layout.dtype)
        shape = (layout.layers, layout.batch, layout.num_kv_heads, room, layout.head_dim)
        with torch.inference_mode(False):
            sums = torch.full(shape, self._nothing, dtype=wide, device=layout.device)
            return sums, torch.zeros((*shape[:2], room), dtype=torch.int64, device=layout.device)
