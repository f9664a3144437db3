"""LSH: who looks at whom when tokens are sorted by the bucket that their keys fall into."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, final, get_args

import torch
from torch import Tensor
from torch.nn.functional import pad

from eyeline.budgets import at_once, budgets
from eyeline.checks import check_size
from eyeline.errors import InvalidArgument
from eyeline.hashing import absorb, seeded
from eyeline.kernels.route import Route
from eyeline.memory import remembered
from eyeline.tokens import NOBODY, Tokens
from eyeline.tokens.groups import ByDocument, by_document
from eyeline.tokens.ordering import remembered_by_tokens

# Hashing by random rotations: vectors that point the same way fall into the same bucket.


# Up to so many buckets one rotation has them all.
_ONE = 16

Factors = tuple[int | Tensor, ...]
"""The factors of a number of buckets: for all tokens, or for each its own, int64 (B or 1, S)."""


def factors(buckets: int) -> tuple[int, int]:
    """Two even numbers whose product is ``buckets``, as alike as can be; 1 for what is not there.

    (8, 8) for 64, (10, 1) for 10, (1, 1) for 1. An odd number above 1 has none.
    """
    if buckets <= _ONE or buckets % 4:
        return buckets, 1
    quarter = buckets // 4
    less = next(x for x in range(math.isqrt(quarter), 0, -1) if quarter % x == 0)
    return 2 * less, 2 * (quarter // less)


def factors_about(buckets: float) -> tuple[int, int]:
    """Even factors of about so many buckets, both about its root; (1, 1) for one or fewer."""
    if buckets <= 1.0:
        return 1, 1
    if buckets <= _ONE:
        return _even(buckets), 1
    less = _even(math.sqrt(buckets))
    return less, _even(buckets / less)


def hashed(x: Tensor, factors: Factors, *, rounds: int, seed: int) -> Tensor:
    """The bucket of each vector in each round: x (B, H, S, E) to int64 (B, H, rounds, S).

    A bucket is a number in mixed radix. Its digit for a factor b is argmax [xR; -xR], where R
    (E, b/2) is drawn from the normal distribution for each head, round and factor. b columns take
    E·b/2 multiplications, so two factors of √b take far fewer than one of b. Andoni et al. 2015;
    Kitaev et al. 2020.
    """
    batch, heads, length, width = x.shape
    bucket = torch.empty(batch, heads, rounds, length, dtype=torch.int64, device=x.device)
    half = [_half(factor) for factor in factors]
    turns = [rotations(seed, heads, rounds, n, most, width) for n, (_, most) in enumerate(half)]
    a_token = max(batch * heads * rounds * max((most for _, most in half), default=1) * 8, 1)
    step = at_once(a_token, budgets.hashed)
    for first in range(0, length, step):
        part = slice(first, first + step)
        piece, found = x[:, :, part].to(_wide(x)).mT, torch.zeros_like(bucket[..., part])
        for factor, (own, most), turn in zip(factors, half, turns, strict=True):
            if most:
                digit = _digit(piece, turn.to(piece), _of(own, part))
                found = found.mul_(_of(factor, part)).add_(digit)
        bucket[..., part] = found
    return bucket


@remembered(64)
def rotations(seed: int, heads: int, rounds: int, number: int, columns: int, width: int) -> Tensor:
    """(heads, rounds, columns, width), float32: normal numbers, each a function of its own place.

    number: that of the factor. So a head, a round and a column have the same numbers however
    many others there are.
    """
    with torch.inference_mode(False):
        state = torch.tensor(seeded(seed, number), device="cpu")
        for count, dims in ((heads, 3), (rounds, 2), (columns, 1), (width, 0)):
            state = absorb(state, torch.arange(count, device="cpu").view(-1, *[1] * dims))
        # Box and Muller 1958. The 53 bits a float64 holds, and never 0.
        one, two = (((absorb(state, n) >> 11) & ((1 << 53) - 1)) + 0.5 for n in (0, 1))
        radius = (one.double() / 2**53).log().mul(-2).sqrt()
        return (radius * (two.double() / 2**53).mul(2 * math.pi).cos()).float()


def _digit(piece: Tensor, turn: Tensor, half: int | Tensor) -> Tensor:
    """piece (B, H, E, n), turn (H, rounds, columns, E) to (B, H, rounds, n)."""
    heads, rounds, columns, width = turn.shape
    turned = turn.view(heads, rounds * columns, width) @ piece
    turned = turned.view(len(piece), heads, rounds, columns, piece.shape[3])
    if isinstance(half, Tensor):  # (B, 1, 1, n): some use fewer columns
        column = torch.arange(columns, device=turned.device).view(-1, 1)
        turned.masked_fill_(column >= half.unsqueeze(3), 0.0)
    index = turned.abs().max(3, keepdim=True).indices  # argmax along such a dimension is slow
    negative = turned.gather(3, index).squeeze(3) < 0
    return index.squeeze(3) + negative * half


def _half(factor: int | Tensor) -> tuple[int | Tensor, int]:
    """Half of a factor, the columns that it takes, and the most of them."""
    half = factor // 2
    if isinstance(half, Tensor):
        return half, int(half.max()) if half.numel() else 0
    return half, half


def _of(x: int | Tensor, part: slice) -> int | Tensor:
    return x[:, None, None, part] if isinstance(x, Tensor) else x


def _wide(x: Tensor) -> torch.dtype:
    """float64 where there is one: a step of a text and the whole round products differently, and
    a bucket must not depend on that."""
    return torch.float32 if x.device.type == "mps" else torch.float64


def _even(x: float) -> int:
    return 2 * max(round(x / 2), 1)


def columns_of(factors: Sequence[int]) -> int:
    """How many columns are multiplied for the digits of one token in one round."""
    return sum(factor // 2 for factor in factors)


By = Literal["chunks", "buckets"]
"""Whether chunks of the sorted tokens look, or tokens of one bucket."""

# The fixed number of buckets where chunks do not say how many.
BUCKETS = 64


@final
@dataclass(frozen=True)
class Hashing:
    """How tokens are hashed and sorted; see ``LSH``."""

    bucket_size: int = 64
    rounds: int = 4
    by: By = "chunks"
    buckets: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("bucket_size", "rounds"):
            check_size(f"lsh {name}", getattr(self, name))
        if self.by not in get_args(By):
            raise InvalidArgument(f"lsh by={self.by!r}: it is {' or '.join(get_args(By))}")
        if not isinstance(self.seed, int) or isinstance(self.seed, bool):
            raise InvalidArgument(f"lsh seed={self.seed!r}: a whole number")
        if self.buckets is None:
            return
        check_size("lsh buckets", self.buckets)
        if self.buckets > 1 and self.buckets % 2:
            raise InvalidArgument(
                f"lsh buckets={self.buckets}: an even number, since each direction has an "
                f"opposite: {self.buckets - 1} or {self.buckets + 1}; or 1"
            )

    def factors(self, length: int) -> tuple[int, int]:
        """The factors of the number of buckets for a document of so many tokens."""
        if self.buckets is not None:
            return factors(self.buckets)
        if self.by == "buckets":
            return factors(BUCKETS)
        return factors_about(length / self.bucket_size)

    def columns(self, length: int) -> int:
        """How many products of E a token takes in each round to be hashed."""
        return columns_of(self.factors(length))

    @torch.no_grad()
    def buckets_of(self, key: Tensor, tokens: Tokens) -> Tensor:
        """The bucket of each key (B, H, S, E) in each round: int64 (B, H, rounds, S)."""
        own = _to(_own_factors(self, tokens), key.device)
        return hashed(key.detach(), own, rounds=self.rounds, seed=self.seed)

    @torch.no_grad()
    def route(self, bucket: Tensor, queries: int, tokens: Tokens, *, ahead: bool) -> Route:
        """bucket: of all keys, of which the last ``queries`` are queries too; tokens: of the keys.

        ahead: whether anybody may look at a later token at all. Nobody meets himself.
        """
        line = by_document(tokens)
        if not line.longest:
            nobody = bucket[..., :0]
            return Route(nobody, nobody, 1, 1, 1)
        own = _own_factors(self, tokens)
        most = max(_most(own[0]) * _most(own[1]), 1)
        group, slots = _sorted(bucket, by_document(tokens, bucket.device), most)
        size = min(self.bucket_size, line.longest)
        if self.by == "chunks":
            return _chunked(slots, bucket.shape[3] - queries, tokens, size)
        if queries == bucket.shape[3]:
            return _banded(slots, group, size, ahead=ahead)
        return _listed(slots, group, bucket.shape[3], queries, size, ahead=ahead)


def _sorted(bucket: Tensor, line: ByDocument, most: int) -> tuple[Tensor, Tensor]:
    """Slots in the order of document, bucket and position, and the group each is in.

    bucket (B, H, A, S). group: a number for each document and bucket, (B, H, A, n) in that order;
    rows with fewer real tokens than n end in slots -1.
    """
    count = line.number.shape[1]
    slots = line.ordering.slots[:, None, None].expand(*bucket.shape[:3], count)
    group = bucket.gather(3, slots.clamp(min=0)) + line.number[:, None, None] * most
    # One sort of all lanes is quicker than one of each.
    lanes = torch.arange(bucket.shape[:3].numel(), device=bucket.device).view(-1, 1)
    end = (line.count + 1) * most
    order = (group.flatten(0, 2) + lanes * end).flatten().argsort(stable=True)
    order = (order.view(len(lanes), count) - lanes * count).view(slots.shape)
    return group.gather(3, order), slots.gather(3, order)


def _chunked(slots: Tensor, before: int, tokens: Tokens, size: int) -> Route:
    """Chunks attend to their own tokens and to those of the chunk before; slots (B, H, A, n).

    before: how many keys come before the first query.
    """
    places, document = _places(tokens, size, slots.device)
    keys = _at(slots, places)
    own = torch.arange(size, device=slots.device)
    band = torch.ones(size, 2 * size, dtype=torch.bool, device=slots.device)
    band[own, own + size] = False
    label = None if document is None else document[:, None, None].expand(keys.shape)
    asking = (keys - before).clamp(min=NOBODY) if before else keys
    return Route(
        asking, _behind(keys, size), size, 2 * size, size,
        label, None if label is None else _behind(label, size), band,
    )  # fmt: skip


def _behind(x: Tensor, count: int) -> Tensor:
    """x after so many places of nobody."""
    return pad(x, (count, 0), value=NOBODY)


def _banded(slots: Tensor, group: Tensor, size: int, *, ahead: bool) -> Route:
    """A token looks at the ``size`` before it in its group, and ahead of it at as many."""
    after = size if ahead else 0
    columns, fill = 2 * size + after, -slots.shape[3] % size
    queries, label = pad(slots, (0, fill), value=NOBODY), pad(group, (0, fill), value=NOBODY)
    keys, key_label = (pad(x, (size, after), value=NOBODY) for x in (queries, label))
    offset = torch.arange(columns, device=slots.device) - size
    offset = offset - torch.arange(size, device=slots.device)[:, None]
    band = (offset >= -size) & (offset <= after) & (offset != 0)
    return Route(queries, keys, size, columns, size, label, key_label, band)


def _listed(
    slots: Tensor, group: Tensor, keys: int, queries: int, size: int, *, ahead: bool
) -> Route:
    """``_banded`` for the last slots only, each with a list of its own."""
    length = slots.shape[3]
    ranks = torch.arange(length, device=slots.device).expand(slots.shape)
    # Padding has no rank; what is written of it goes behind the last slot.
    behind = torch.where(slots == NOBODY, keys, slots)
    rank = slots.new_zeros(*slots.shape[:3], keys + 1).scatter_(3, behind, ranks)
    rank = rank[..., keys - queries : keys]
    offset = torch.arange(-size, size + 1 if ahead else 0, device=slots.device)
    offset = offset[offset != 0]
    places = (rank.unsqueeze(4) + offset).flatten(3)
    inside = places.clamp(0, length - 1)
    same = group.gather(3, inside) == group.gather(3, rank).repeat_interleave(len(offset), 3)
    met = slots.gather(3, inside).masked_fill(~same | (places != inside), NOBODY)
    asking = torch.arange(queries, device=slots.device).expand(*slots.shape[:3], queries)
    return Route(asking, met, 1, len(offset), len(offset))


def _at(slots: Tensor, places: Tensor) -> Tensor:
    """The slots (B, H, A, S) whose ranks stand at the places (R, M), -1 where none does."""
    ranks = places[:, None, None].expand(*slots.shape[:3], places.shape[1])
    return slots.gather(3, ranks.clamp(min=0)).masked_fill_(ranks == NOBODY, NOBODY)


@remembered_by_tokens
def _places(tokens: Tokens, size: int, device: torch.device) -> tuple[Tensor, Tensor | None]:
    """Which rank stands at each place, and the document it is of, where there are several."""
    line = by_document(tokens)
    places = line.chunked(size)
    if line.count < 2:
        return places.to(device), None
    document = line.number.gather(1, places.clamp(min=0))
    return places.to(device), document.masked_fill(places == NOBODY, NOBODY).to(device)


@remembered_by_tokens
def _own_factors(hashing: Hashing, tokens: Tokens) -> Factors:
    """Those of each slot's document; numbers where all are alike."""
    line = by_document(tokens)
    sizes, index = line.sizes.unique(return_inverse=True)
    found = [hashing.factors(int(size)) for size in sizes if size]
    if len(set(found)) < 2:
        return found[0] if found else (1, 1)
    table = sizes.new_tensor([hashing.factors(int(size)) for size in sizes])
    one, two = (line.by_slot(table[index, n]) for n in (0, 1))
    return one, two


def _to(own: Factors, device: torch.device) -> Factors:
    return tuple(x.to(device) if isinstance(x, Tensor) else x for x in own)


def _most(factor: int | Tensor) -> int:
    return int(factor.max()) if isinstance(factor, Tensor) else factor
