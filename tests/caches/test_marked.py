"""A cache that keeps named tensors of tokens and of blocks beside keys and values."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from eyeline import Causal, Full, Pattern, Tokens, streaming
from eyeline.caches import Cache, Layout, Mark, Marked, Pool
from eyeline.errors import InvalidArgument, NotSupported
from eyeline.testing import check_cache
from eyeline.testing.cache import marks_follow_their_tokens
from eyeline.tokens import NOBODY

MARKS = {"bucket": Mark(3), "short key": Mark(2, torch.float64)}
POOLS = {
    "mean key": Pool(), "largest value": Pool("value", "max"),
    "sum of short keys": Pool("short key", "sum"),
}  # fmt: skip


def layout(dtype: torch.dtype = torch.float32, *, layers: int = 1, batch: int = 2) -> Layout:
    return Layout(layers, batch, 3, 4, 5, dtype, torch.device("cpu"))


def marked(pattern: Pattern, sizes: Layout) -> Cache:
    return Marked(pattern, sizes, marks=MARKS, pools=POOLS)


def keys_and_values(sizes: Layout, count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    key, value = (torch.randn(shape, generator=generator) for shape in sizes.shapes(count))
    return key.to(sizes.dtype), value.to(sizes.dtype)


def test_the_suite() -> None:
    check_cache(marked, Causal(), streaming(7, 3))


@pytest.mark.parametrize("lost", ["clear", "reorder"])
def test_the_suite_sees_blocks_that_stay_as_they_were(
    monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    kind = type(Marked(Full(), layout(), pools=POOLS, marks=MARKS)._pools["mean key"])
    right = getattr(kind, lost)

    def once(self: object, *arguments: object) -> None:
        if not hasattr(self, "_sums"):
            right(self, *arguments)

    monkeypatch.setattr(kind, lost, once)
    with pytest.raises(AssertionError, match="differ"):
        marks_follow_their_tokens(marked, Causal())


def test_each_layer_has_its_own() -> None:
    sizes = layout(layers=2)
    cache = Marked(Full(), sizes, marks={"bucket": Mark(1)}, pools={"mean": Pool()})
    cache.advance(Tokens.arange(0, 6))
    numbers = torch.arange(6)[None] // 4
    for layer in (1, 0):
        key, value = keys_and_values(sizes, 6, seed=layer)
        cache.append(layer, key, value)
        bucket = torch.full((2, 3, 6, 1), layer)
        assert torch.equal(cache.mark(layer, "bucket", bucket), bucket)
        due = torch.stack((key[:, :, :4].mean(2), key[:, :, 4:].mean(2)), 2)
        torch.testing.assert_close(cache.pooled(layer, "mean", numbers, 2), due)


def test_only_new_tokens_are_added_up() -> None:
    """A pool is not read from all tokens again: what stands there is changed behind its back."""
    sizes = layout()
    cache = Marked(Causal(), sizes, pools={"sum": Pool(by="sum")})
    key, value = keys_and_values(sizes, 3)
    cache.advance(Tokens.arange(0, 3))
    keys, _, _ = cache.append(0, key, value)
    before = cache.pooled(0, "sum", torch.zeros(1, 3, dtype=torch.int64), 1)
    cache.tokens_of(0, "sum").zero_()
    cache.advance(Tokens.arange(3, 4))
    new, value = keys_and_values(sizes, 1, seed=1)
    cache.append(0, new, value)
    after = cache.pooled(0, "sum", torch.zeros(1, 4, dtype=torch.int64), 1)
    torch.testing.assert_close(after, before + new)
    assert keys.shape == key.shape


@pytest.mark.parametrize("by", ["mean", "max", "sum"])
def test_blocks_without_tokens_have_zeros(by: str) -> None:
    cache = Marked(Full(), layout(), pools={"pool": Pool(by=by)})  # type: ignore[arg-type]
    cache.advance(Tokens(torch.tensor([0, NOBODY, 1])))
    cache.append(0, *keys_and_values(layout(), 3))
    numbers = torch.tensor([[1, NOBODY, 1]])
    pooled = cache.pooled(0, "pool", numbers, 3)
    assert not pooled[:, :, [0, 2]].any() and pooled[:, :, 1].all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_types_and_bytes_by_name(dtype: torch.dtype) -> None:
    sizes = layout(dtype)
    cache = Marked(
        Causal(), sizes, marks={"bucket": Mark(3), "half": Mark(2, torch.float16)},
        pools={"mean": Pool(), "small": Pool("half", "max")},
    )  # fmt: skip
    assert cache.nbytes == 0
    cache.advance(Tokens.arange(0, 7))
    cache.append(0, *keys_and_values(sizes, 7))
    cache.mark(0, "bucket", torch.zeros(2, 3, 7, 3, dtype=torch.int64))
    cache.mark(0, "half", torch.ones(2, 3, 7, 2, dtype=torch.float16))
    tokens = 7 * 2 * 3 * (9 * dtype.itemsize + 3 * 8 + 2 * 2)
    assert cache.nbytes == tokens
    numbers = torch.arange(7)[None] // 5
    assert cache.pooled(0, "mean", numbers, 2).dtype == dtype
    assert cache.pooled(0, "small", numbers, 2).dtype == torch.float16
    wide = 8 if dtype == torch.float64 else 4
    blocks = 2 * 2 * (3 * 4 * wide + 8) + 2 * 2 * (3 * 2 * 4 + 8)
    assert cache.nbytes == tokens + blocks


def test_in_place_of_keys_and_values() -> None:
    sizes = Layout(1, 2, 3, 0, 0, torch.float32, torch.device("cpu"))
    cache = Marked(Causal(), sizes, marks={"short": Mark(2, torch.float32)})
    cache.advance(Tokens.arange(0, 4))
    nothing = torch.empty(2, 3, 4, 0)
    cache.append(0, nothing, nothing)
    short = torch.randn(2, 3, 4, 2)
    assert torch.equal(cache.mark(0, "short", short), short)
    assert cache.nbytes == 4 * 2 * 3 * 2 * 4


def test_refusals() -> None:
    cache = Marked(Causal(), layout(), marks={"bucket": Mark(1)}, pools={"mean": Pool()})
    cache.advance(Tokens.arange(0, 2))
    numbers = torch.zeros(1, 2, dtype=torch.int64)
    with pytest.raises(InvalidArgument, match="layer 0 has not appended"):
        cache.pooled(0, "mean", numbers, 1)
    cache.append(0, *keys_and_values(layout(), 2))
    with pytest.raises(InvalidArgument, match=r"no mark 'key'.*bucket"):
        cache.mark(0, "key", numbers)
    with pytest.raises(InvalidArgument, match=r"no pool 'bucket'.*mean"):
        cache.pooled(0, "bucket", numbers, 1)
    with pytest.raises(InvalidArgument, match=r"\(1, 3\) for 2 slots"):
        cache.pooled(0, "mean", torch.zeros(1, 3, dtype=torch.int64), 1)
    with pytest.raises(InvalidArgument, match="this step of the cache takes"):
        cache.mark(0, "bucket", torch.zeros(2, 3, 2, 2, dtype=torch.int64))
    cache.mark(0, "bucket", torch.zeros(2, 3, 2, 1, dtype=torch.int64))
    with pytest.raises(InvalidArgument, match="no tokens to write"):
        cache.mark(0, "bucket", torch.zeros(2, 3, 2, 1, dtype=torch.int64))
    with pytest.raises(NotSupported, match="no gradients"):
        wrong = Marked(Causal(), layout(), marks={"m": Mark(1, torch.float32)})
        wrong.advance(Tokens.arange(0, 1))
        wrong.mark(0, "m", torch.zeros(2, 3, 1, 1, requires_grad=True))
    for marks, pools, words in (
        ({"a": Mark(1)}, {"a": Pool()}, "a mark and a pool"),
        ({}, {"a": Pool("b")}, "'b': there are key, value"),
        ({"b": Mark(1)}, {"a": Pool("b")}, "int64 has no mean"),
    ):
        with pytest.raises(InvalidArgument, match=words):
            Marked(Causal(), layout(), marks=marks, pools=pools)
    with pytest.raises(InvalidArgument, match="pool by 'least'"):
        Pool(by="least")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="mark width=-1"):
        Mark(-1)
