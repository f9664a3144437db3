"""The table that compares everything: its lines by name, what is counted, and what is timed."""

from __future__ import annotations

import pytest
import torch

from eyeline.errors import EyelineError, InvalidArgument, NotSupported
from eyeline.measuring import Counted, Shape, count, kind, standard, sweep
from eyeline.measuring import sweeping as sweeping_module
from eyeline.measuring.kinds import DILATED
from eyeline.mechanisms import Heads
from eyeline.patterns import Causal, Explicit, Full, bigbird, sliding_window

SHAPE = Shape(heads=2, dim=8)


def one(text: str, length: int = 1024, width: int = 64, heads: int = 4) -> Counted:
    (row,) = count([kind(text)], length, width, heads)
    return row


def test_the_textbooks_table_comes_out() -> None:
    n, d = 1024, 64
    conv, recurrent = one("convolution(kernel=7)"), one("recurrent(cell=elman)")
    full, linear = one("exact"), one("linear")
    assert conv.computed == 7 * n * d**2 and conv.steps == 1
    assert recurrent.multiplications == 2 * n * d**2 and recurrent.steps == n
    assert full.multiplications == 2 * n**2 * d and full.steps == full.path == 1
    assert full.projections == 4 * n * d**2 and conv.projections == 0
    assert conv.path == -(-(n - 1) // 3) and recurrent.path == n - 1
    assert one(f"{DILATED}(kernel=2, causal=true)").path == 10
    growth = {x: (one(x).growth_in_length, one(x).growth_in_width) for x in ("exact", "linear")}
    assert growth == {"exact": (2.0, 1.0), "linear": (1.0, 2.0)}
    assert conv.growth_in_width == 2.0 and conv.growth_in_length == pytest.approx(1, abs=0.01)
    assert linear.path == 1 and linear.steps == 1


def test_all_lines_at_all_lengths() -> None:
    for length in (1, 2, 5, 67, 300):
        found = count(standard(length), length, 16, 2)
        assert len(found) == len({row.label for row in found}) > 15
        for row in found:
            assert row.computed >= row.multiplications > 0 or length == 1, row
            if row.path is None:
                assert row.unknown is not None
                assert "by content" in row.unknown or "makes no tokens" in row.unknown
            else:
                assert row.path >= int(length > 1) or "compressed" in row.label


def test_names_and_their_errors() -> None:
    assert kind("linear").label == "linear"
    assert kind("linear", Causal()).label == "linear under causal"
    assert kind("exact", sliding_window(7), under="w").label == "w"
    wrong = {
        "foo": "there is no mechanism 'foo'.*recurrent",
        "convolution": "missing a required argument: 'kernel'; convolution takes kernel",
        "recurrent(width=3)": "multiple values|recurrent takes",
        "recurrent(cell=rnn)": "elman, gru, lstm",
        "convolution(kernel=big)": "kernel='big'",
        f"{DILATED}(kernel=1)": "reaches nobody",
        "linformer": "missing a required argument: 'k'",
        "linear[": "not of the form",
    }
    for text, words in wrong.items():
        with pytest.raises(EyelineError, match=words):
            kind(text)
    with pytest.raises(NotSupported, match="recurrent is no attention, and cannot honour causal"):
        kind("recurrent", Causal())


def test_a_path_that_is_not_known_is_said() -> None:
    pattern = bigbird(8, 2, 0)
    (row,) = count([kind("exact", pattern)], 8192, 16, 2)
    assert row.path is None and row.unknown is not None and "4,096" in row.unknown
    assert row.multiplications > 0


def test_counts_are_for_sizes() -> None:
    with pytest.raises(InvalidArgument, match="heads=0"):
        count([kind("exact")], 7, 8, 0)
    with pytest.raises(InvalidArgument, match="width of 7 cannot be 2 heads"):
        count([kind("exact")], 7, 7, 2)


@pytest.mark.parametrize("backward", [False, True])
def test_every_kind_is_timed(backward: bool) -> None:
    shape = Shape(heads=2, dim=4, backward=backward)
    kinds = standard(67, 61)
    found = sweep(shape, [61, 67], {}, kinds=kinds, rounds=1, memory=False)
    assert sorted(case.label for case in found.cases) == sorted(x.label for x in kinds)
    assert len(found.cases) == len(kinds) and list(found.around_seconds) == [61, 67]
    for case in found.cases:
        for point in case.points:
            assert point.seconds is not None and point.refusal is None
            assert point.attention_share is not None and 0 < point.attention_share < 1


def test_gradients_of_parameters_are_part_of_the_run() -> None:
    shape = Shape(heads=2, dim=4, backward=True)
    module = kind("linformer(k=3)").call(Heads(2, 2, 4), 13, dtype=torch.float64)
    tensors = tuple(x.double() for x in shape.tensors(13))
    assert len(shape.run(module, tensors)) == 1 + 3 + 2
    tokens = kind("recurrent").call(Heads(2, 2, 4), 13)
    out = shape.run(tokens, shape.tensors(13))[0]
    assert out.shape == (1, 2, 13, 4)


def test_tokens_are_the_heads_side_by_side() -> None:
    layer = kind("convolution(kernel=3)").call(Heads(2, 2, 4), 13)
    query, other = torch.randn(2, 1, 2, 13, 4)
    x = query.transpose(1, 2).reshape(1, 13, 8)
    expected = layer.layer(x).reshape(1, 13, 2, 4).transpose(1, 2)  # type: ignore[operator]
    torch.testing.assert_close(layer(query, other, other), expected)


def test_what_is_too_large_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeping_module, "installed", lambda: 4 * 67**2 * 2 * 4 * 2)
    kinds = [kind("additive"), kind("linear")]
    found = sweep(SHAPE, [67, 68], {}, kinds=kinds, rounds=1, memory=False)
    additive, linear = found.cases
    fits, large = additive.points
    assert fits.seconds is not None and large.seconds is None and large.attention_share is None
    assert large.refusal is not None and large.refusal.startswith("too large")
    assert all(point.seconds is not None for point in linear.points)


def test_what_was_too_slow_is_not_run_at_longer_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeping_module, "_PATIENCE", 0.0)
    found = sweep(SHAPE, [7, 11], {}, kinds=[kind("linear")], rounds=1, memory=False)
    first, second = found.cases[0].points
    assert first.seconds is not None and second.seconds is None
    assert second.refusal is not None and second.refusal.endswith("at 7 tokens")


def test_memory_of_a_mechanism_is_that_of_a_process_of_its_own() -> None:
    found = sweep(SHAPE, [521], {}, kinds=[kind("additive")], rounds=1)
    peak = found.cases[0].peak_bytes
    if found.baseline_peak_bytes is not None:
        assert peak is not None and peak > 521**2 * 2 * 4  # the weights at least


def test_bound_patterns_have_no_text_for_another_process() -> None:
    mask = torch.ones(5, 5, dtype=torch.bool)
    assert kind("exact", Explicit(mask)).label.startswith("explicit")
    assert kind("linear", Full()).pattern == Full()
