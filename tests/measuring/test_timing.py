"""Turns are taken, medians are medians, and the crossover lies where the lines cross."""

from __future__ import annotations

import pytest

from eyeline.measuring.timing import Stages, by_turns, crossover


def test_runs_take_turns_and_the_first_round_is_not_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    order: list[str] = []
    clock = [0.0]
    lasts = {"a": iter((100.0, 1.0, 9.0, 2.0)), "b": iter((100.0, 5.0, 5.0, 7.0))}

    def run(name: str) -> None:
        order.append(name)
        clock[0] += next(lasts[name])

    monkeypatch.setattr("eyeline.measuring.timing.perf_counter", lambda: clock[0])
    found = by_turns({"a": lambda: run("a"), "b": lambda: run("b")}, rounds=3)
    assert order == ["a", "b"] * 4
    assert found == {"a": 2.0, "b": 5.0}


@pytest.mark.parametrize(
    ("speedups", "length"),
    [
        ([0.5, 2.0, 4.0], 200.0),  # half way between 100 and 400, in logarithms
        ([0.5, 0.25, 4.0], 800.0),
        ([0.5, 1.0, 4.0], 400.0),
        ([1.0, 2.0, 4.0], 100.0),
        ([2.0, 0.5, 2.0], 800.0),  # from where on it stays faster
        ([0.5, 0.6, 0.9], None),
        ([2.0, 2.0, 0.9], None),
    ],
)
def test_crossover(speedups: list[float], length: float | None) -> None:
    found = crossover([100, 400, 1600], speedups)
    assert found == (None if length is None else pytest.approx(length))


def test_stages_add_up_to_the_whole() -> None:
    told: list[tuple[str, int, int]] = []
    stages = Stages(10, lambda *step: told.append(step))
    with stages.stage("one", 4) as within:
        within("half", 1, 2)
    with stages.stage("two", 6) as within:
        within("nothing to do", 0, 0)
    assert told == [
        ("one", 0, 10), ("one", 2, 10), ("one", 4, 10), ("two", 4, 10), ("two", 4, 10),
        ("two", 10, 10),
    ]  # fmt: skip
