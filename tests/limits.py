"""A limit of time for each test, so that one that hangs is named and not waited for.

It is no measure of speed: a hundred times what a test takes. A test that hangs in Python fails; one
that hangs in C ends the process, with the stacks of all its threads on stderr.
"""

from __future__ import annotations

import faulthandler
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import pytest

USUAL, SLOW = 300.0, 1800.0  # seconds
AFTER = 60.0  # from the failure that is asked for to the end of the process

# pytest captures the usual stderr, also that of a process which then ends.
_STDERR = sys.__stderr__


def limit_of(item: pytest.Item) -> float:
    return SLOW if item.get_closest_marker("slow") is not None else USUAL


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Fails the test that is inside after so many seconds. Limits may lie in each other."""
    if (
        not hasattr(signal, "setitimer")
        or threading.current_thread() is not threading.main_thread()
    ):
        yield
        return

    def fail(*_: object) -> NoReturn:
        pytest.fail(f"longer than {seconds:g} s")

    handler = signal.signal(signal.SIGALRM, fail)
    left, _ = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, left)
        signal.signal(signal.SIGALRM, handler)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    seconds = limit_of(item)
    faulthandler.dump_traceback_later(seconds + AFTER, exit=True, file=_STDERR)
    try:
        with limited(seconds):
            return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()
