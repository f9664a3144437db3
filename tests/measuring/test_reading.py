"""Reading under a pattern: the right model, the right clock, the right caches."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch

from eyeline.errors import InvalidArgument
from eyeline.layers import PackedLinear, pack
from eyeline.measuring import compare, under
from eyeline.measuring.comparison import AttentionClock, pairs_per_layer, read, writing_speed
from eyeline.measuring.peaks import Peak
from eyeline.mechanisms import Exact
from eyeline.patterns import Causal, Full, SameSegment, prefix_lm, sliding_window, streaming
from models.tiny import ids, llama


@pytest.mark.parametrize("packed", [False, True])
def test_the_same_weights_under_another_pattern(packed: bool) -> None:
    model, text = llama(), ids(2, 19)
    if packed:
        pack(model)
    for pattern in (sliding_window(5), [Causal(), sliding_window(3), Causal()]):
        with torch.no_grad():
            got, want = under(model, pattern)(text), llama(pattern=pattern)(text)
        torch.testing.assert_close(got, want, rtol=0, atol=1e-5 if packed else 0)
        assert not torch.equal(got, model(text))
    other = under(model, Causal())
    assert other.embedding.weight is model.embedding.weight
    assert [m for m in other.modules() if isinstance(m, (PackedLinear, torch.nn.Linear))] == [
        m for m in model.modules() if isinstance(m, (PackedLinear, torch.nn.Linear))
    ]


def test_the_number_of_patterns_must_be_that_of_layers() -> None:
    with pytest.raises(InvalidArgument, match="2 patterns for 3 layers"):
        under(llama(), [Causal(), Causal()])


def test_the_clock_counts_attention_and_leaves_no_hook(monkeypatch: pytest.MonkeyPatch) -> None:
    forward = Exact.forward

    def slow(self: Exact, *args: Any, **options: Any) -> Any:
        time.sleep(0.01)
        return forward(self, *args, **options)

    monkeypatch.setattr(Exact, "forward", slow)
    model = llama()
    reading = read(model, ids(1, 19))
    assert 0.03 <= reading.attention_seconds <= reading.seconds
    clock = AttentionClock(model)
    model(ids(1, 3))
    assert clock.seconds == 0.0
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_a_reading_is_that_of_the_model() -> None:
    model, text = under(llama(), streaming(7, 2)), ids(1, 23)
    reading = read(model, text)
    torch.testing.assert_close(reading.hidden, model.hidden(text), rtol=0, atol=1e-6)
    assert [cache.position for cache in reading.caches] == [23]
    # 9 keys are all that can be looked at again, less the one that the next token replaces.
    assert sum(cache.nbytes for cache in reading.caches) == 8 * 3 * 3 * 20 * 4
    assert writing_speed(model, reading, 5) > 0
    assert [cache.position for cache in reading.caches] == [23 + 6]


def test_the_peak_is_what_the_body_held() -> None:
    with Peak() as peak:
        torch.zeros(16_000_000)
    with Peak() as nothing:
        pass
    # The kernel counts a little late; on some systems it does not count at all.
    assert peak.bytes is None or 60e6 <= peak.bytes < 96e6
    assert nothing.bytes is None or nothing.bytes < 16e6
    assert (peak.bytes is None) == (nothing.bytes is None)


def test_pairs_are_the_mean_over_layers() -> None:
    model = llama(pattern=[Causal(), sliding_window(1), sliding_window(1)])
    assert pairs_per_layer(model, 11) == (66 + 11 + 11) / 3


def text(length: int) -> list[int]:
    return ids(1, length)[0].tolist()


def test_rows_say_what_was_asked_for() -> None:
    told: list[tuple[str, int, int]] = []
    wide = {"wide": sliding_window(1000), "narrow": sliding_window(2)}
    found = compare(llama(), text(131), wide, rounds=2, progress=lambda *step: told.append(step))
    causal, same, narrow = found.rows
    assert (found.length, found.rounds) == (131, 2)
    assert [row.label for row in found.rows] == ["causal", "wide", "narrow"]
    assert causal.share == same.share == 1.0 and causal.pairs == 131 * 66
    assert narrow.pairs == 1 + 2 * 130
    assert causal.change is None and same.change is not None and narrow.change is not None
    assert same.perplexity == pytest.approx(causal.perplexity, rel=1e-5)
    assert same.change.relative == pytest.approx(0.0, abs=1e-5)
    assert narrow.change.relative == pytest.approx(narrow.perplexity / causal.perplexity - 1)
    assert narrow.cache_bytes < causal.cache_bytes == 131 * 3 * 3 * 20 * 4
    assert all(0 < row.attention_share < 1 and not row.recall for row in found.rows)
    assert told[-1][1] == told[-1][2] and [step[1] for step in told] == sorted(s[1] for s in told)


def test_the_baseline_is_not_measured_twice() -> None:
    found = compare(llama(), text(131), {"causal": Causal()}, rounds=1)
    assert [row.label for row in found.rows] == ["causal"]


@pytest.mark.parametrize("pattern", [Full(), prefix_lm(5), SameSegment()])
def test_a_pattern_that_looks_ahead_would_read_the_answers(pattern: Any) -> None:
    with pytest.raises(InvalidArgument, match="under ahead tokens look at later ones"):
        compare(llama(), text(131), {"ahead": pattern})
    with pytest.raises(InvalidArgument, match="under ahead"):
        compare(llama(), text(131), {"ahead": [Causal(), pattern, Causal()]})


def test_too_short_a_text_is_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"127 tokens are too few.*128"):
        compare(llama(), text(127), {})
