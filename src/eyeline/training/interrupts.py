"""Ctrl-C as a wish: the step that is under way is finished, and what was learned is stored."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, final


@final
class Interrupts:
    """``with Interrupts() as interrupts: …``: ``wanted`` says whether someone wants to stop.

    Ctrl-C and a polite kill (SIGTERM) are noted; a second one ends the program at once. Outside
    the main thread nothing is caught.
    """

    def __init__(self) -> None:
        self.wanted = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.wanted:
            raise KeyboardInterrupt
        self.wanted = True
