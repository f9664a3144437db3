"""A test that hangs fails by the limit of tests/limits.py, and says so."""

from __future__ import annotations

import time

import pytest

from limits import SLOW, USUAL, limit_of, limited


def test_what_hangs_is_ended() -> None:
    start = time.monotonic()
    with pytest.raises(pytest.fail.Exception, match=r"longer than 0\.05 s"), limited(0.05):
        time.sleep(30)
    assert time.monotonic() - start < 20


def test_the_limit_around_holds_on() -> None:
    with pytest.raises(pytest.fail.Exception, match=r"longer than 0\.2 s"), limited(0.2):
        with limited(10):
            pass
        time.sleep(30)


def test_a_limit_ends_with_its_test() -> None:
    with limited(0.05):
        pass
    time.sleep(0.1)


@pytest.mark.slow
def test_slow_tests_have_longer(request: pytest.FixtureRequest) -> None:
    assert limit_of(request.node) == SLOW


def test_this_one_has_not(request: pytest.FixtureRequest) -> None:
    assert limit_of(request.node) == USUAL
