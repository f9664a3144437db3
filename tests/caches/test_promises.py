"""Truncation, reordering, and what caches refuse."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from eyeline.caches import Cache, Evicting, Growing, Layout, recount
from eyeline.errors import InvalidArgument, NotSupported
from eyeline.patterns import (
    Causal,
    Full,
    Pattern,
    Sinks,
    Window,
    prefix_lm,
    sliding_window,
    streaming,
)
from eyeline.tokens import NOBODY, Tokens


def new(kind: type[Growing] | type[Evicting], pattern: Pattern, batch: int = 1) -> Cache:
    return kind(pattern, Layout(1, batch, 1, 2, 2, torch.float32, torch.device("cpu")))


def feed(cache: Cache, tokens: Tokens, values: Tensor | None = None) -> dict[int, float]:
    """Writes each token's position, or the value given, as its key. What row 0 then sees."""
    rows = cache.layout.batch
    marks = tokens.positions.expand(rows, -1) if values is None else values
    key = marks.float()[:, None, :, None].expand(rows, 1, -1, 2)
    cache.advance(tokens)
    keys, _, seen = cache.append(0, key, -key)
    where = zip(seen.row(0).positions.tolist(), keys[0, 0, :, 0].tolist(), strict=True)
    somebody = [pair for pair in where if pair[0] != NOBODY]
    assert len(dict(somebody)) == len(somebody), "a position is there twice"
    return dict(somebody)


@pytest.mark.parametrize("kind", [Growing, Evicting])
def test_truncated_text_is_written_anew(kind: type[Growing] | type[Evicting]) -> None:
    cache = new(kind, streaming(5, 2))
    feed(cache, Tokens.arange(0, 3))
    feed(cache, Tokens.arange(3, 4))
    cache.truncate(2)
    assert cache.position == 2
    seen = feed(cache, Tokens.arange(2, 4), torch.tensor([[52, 53]]))
    assert seen == {0: 0, 1: 1, 2: 52, 3: 53}
    cache.truncate(0)
    assert feed(cache, Tokens.arange(0, 1)) == {0: 0}


@pytest.mark.parametrize("kind", [Growing, Evicting])
def test_what_is_kept_survives_each_growth(kind: type[Growing] | type[Evicting]) -> None:
    cache, start = new(kind, Causal()), 0
    for step in (1, 1, 200, 100, 1, 400, 1):
        seen = feed(cache, Tokens.arange(start, start + step))
        start += step
        assert seen == {position: position for position in range(start)}


def test_truncation_that_needs_evicted_keys_is_refused() -> None:
    cache = new(Evicting, sliding_window(3))
    for position in range(9):
        feed(cache, Tokens.arange(position, position + 1))
    with pytest.raises(NotSupported, match=r"truncate\(7\).*positions 5 to 5"):
        cache.truncate(7)
    # The last token was placed over one that nobody needed any more, so one step back is free.
    cache.truncate(8)
    assert feed(cache, Tokens.arange(8, 9)) == {6: 6, 7: 7, 8: 8}
    with pytest.raises(InvalidArgument, match="next position is 9"):
        cache.truncate(10)


@pytest.mark.parametrize("kind", [Growing, Evicting])
def test_rows_can_be_exchanged(kind: type[Growing] | type[Evicting]) -> None:
    cache = new(kind, streaming(3, 1), batch=2)
    feed(cache, Tokens.padded([2, 4]), torch.tensor([[0, 0, 10, 11], [20, 21, 22, 23]]))
    cache.reorder(torch.tensor([1, 1]))
    position = cache.position
    assert isinstance(position, Tensor) and position.tolist() == [[4], [4]]
    seen = feed(cache, Tokens(position), torch.tensor([[24], [34]]))
    assert {p: seen[p] for p in (0, 2, 3, 4)} == {0: 20, 2: 22, 3: 23, 4: 24}
    with pytest.raises(InvalidArgument, match="2 batch rows"):
        cache.reorder(torch.tensor([0]))


@pytest.mark.parametrize("kind", [Growing, Evicting])
@pytest.mark.parametrize(
    "tokens",
    [Tokens.arange(2, 4), Tokens.listed([4, 4]), Tokens.listed([5, 4]), Tokens.listed([3])],
)
def test_positions_must_go_up(kind: type[Growing] | type[Evicting], tokens: Tokens) -> None:
    cache = new(kind, Causal())
    feed(cache, Tokens.arange(0, 4))
    with pytest.raises(InvalidArgument, match="go up"):
        cache.advance(tokens)


def test_nobody_may_stand_between_positions() -> None:
    cache = new(Growing, Causal())
    feed(cache, Tokens.listed([-1, 0, -1, 1]))
    assert feed(cache, Tokens.listed([-1, 2])) == {0: 0, 1: 1, 2: 2}


def test_another_batch_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="2 batch rows for a cache of 3"):
        new(Growing, Causal(), batch=3).advance(Tokens.padded([1, 2]))


@pytest.mark.parametrize(
    "pattern", [Full(), Full() & Sinks(9), prefix_lm(5), Window(None, 1)], ids=str
)
def test_patterns_that_look_ahead_are_refused_in_steps(pattern: Pattern) -> None:
    cache = new(Growing, pattern)
    feed(cache, Tokens.arange(0, 4))
    with pytest.raises(NotSupported, match="before position 4 may attend to later ones"):
        cache.advance(Tokens.arange(4, 5))


def test_a_prefix_that_is_read_at_once_is_fine() -> None:
    cache = new(Growing, prefix_lm(5))
    feed(cache, Tokens.arange(0, 5))
    assert len(feed(cache, Tokens.arange(5, 6))) == 6


@pytest.mark.parametrize("kind", [Growing, Evicting])
def test_gradients_are_refused(kind: type[Growing] | type[Evicting]) -> None:
    cache = new(kind, Causal())
    cache.advance(Tokens.arange(0, 1))
    with pytest.raises(NotSupported, match="no_grad"):
        cache.append(0, torch.zeros(1, 1, 1, 2, requires_grad=True), torch.zeros(1, 1, 1, 2))


def test_a_cache_filled_in_inference_mode_can_be_written_to_outside_of_it() -> None:
    with torch.inference_mode():
        cache = new(Evicting, sliding_window(2))
        feed(cache, Tokens.arange(0, 3))
        feed(cache, Tokens.arange(3, 4))
    assert feed(cache, Tokens.arange(4, 5)) == {3: 3, 4: 4}


def test_ranks_count_kept_tokens_in_order_of_position() -> None:
    kept = Tokens(torch.tensor([[9, -1, 0, 7, 1], [-1, -1, 3, 2, -1]]))
    ranks = recount(Tokens(torch.tensor([[9], [3]])), kept)
    assert ranks.key.tolist() == [[3, -1, 0, 2, 1], [-1, -1, 1, 0, -1]]
    assert ranks.query.tolist() == [[3], [1]]
    shared = recount(Tokens.arange(8, 10), Tokens.listed([0, 8, 6, 9]))
    assert (shared.query.tolist(), shared.key.tolist()) == ([2, 3], [0, 2, 1, 3])


@pytest.mark.parametrize("kind", [Growing, Evicting])
def test_truncating_what_is_empty(kind: type[Growing] | type[Evicting]) -> None:
    cache = new(kind, sliding_window(1))
    cache.truncate(0)
    feed(cache, Tokens.arange(0, 1))
    cache.truncate(0)
    assert feed(cache, Tokens.arange(0, 1)) == {0: 0}
    with pytest.raises(InvalidArgument, match="0 is the first position"):
        cache.truncate(-3)


def test_a_text_that_begins_late_has_lost_nothing() -> None:
    cache = new(Evicting, sliding_window(6))
    feed(cache, Tokens.arange(10, 14))
    cache.truncate(12)
    assert feed(cache, Tokens.arange(12, 13)) == {10: 10, 11: 11, 12: 12}


@pytest.mark.parametrize("kind", [Growing, Evicting])
def test_keys_of_another_step_are_refused(kind: type[Growing] | type[Evicting]) -> None:
    cache = new(kind, Causal(), batch=3)
    cache.advance(Tokens.arange(0, 3))
    right = torch.zeros(3, 1, 3, 2)
    for key in (right[:, :, :1], right[:1], right.double(), right[..., :1]):
        with pytest.raises(InvalidArgument, match=r"key is .* takes"):
            cache.append(0, key, right)
    with pytest.raises(InvalidArgument, match="value is"):
        cache.append(0, right, right.double())
    cache.append(0, right, right)


@pytest.mark.parametrize("kind", [Growing, Evicting])
def test_a_layer_writes_once_after_each_advance(kind: type[Growing] | type[Evicting]) -> None:
    cache, token = new(kind, sliding_window(3)), torch.zeros(1, 1, 1, 2)
    for start in range(3):
        with pytest.raises(InvalidArgument, match=r"layer 0 of 1 .*advance\(tokens\)"):
            cache.append(0, token, token)
        tokens = Tokens.arange(start, start + 1)
        cache.advance(tokens)
        assert cache.latest is tokens
        with pytest.raises(InvalidArgument, match="layer 1 of 1"):
            cache.append(1, token, token)
        cache.append(0, token, token)


@pytest.mark.parametrize("kind", [Growing, Evicting])
def test_nothing_is_written_after_a_change_of_the_past(
    kind: type[Growing] | type[Evicting],
) -> None:
    token = torch.zeros(1, 1, 1, 2)
    cache = new(kind, sliding_window(3))
    cache.advance(Tokens.arange(0, 1))
    cache.truncate(0)
    with pytest.raises(InvalidArgument, match="layer 0 of 1"):
        cache.append(0, token, token)
    cache.advance(Tokens.arange(0, 1))
    cache.reorder(torch.tensor([0]))
    with pytest.raises(InvalidArgument, match="layer 0 of 1"):
        cache.append(0, token, token)
